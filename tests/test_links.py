"""Links and pictures in the notebooks: well formed, and what they lead to is there. Nothing is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import nbformat
import pytest
from conftest import ROOT

from course_utils.lab.lessons import lessons

PAGES = sorted(path for kind in ("notebooks", "exercises", "solutions") for path in (ROOT / kind).glob("*.ipynb"))
GLOSSARY = ROOT / "notebooks" / "glossary.md"
DOCUMENTS = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "ARCHITECTURE")] + sorted(
    ROOT.glob("docs/*.md")
)
# Lessons in the form that links each API and each paper where it first comes up.
LINKED = {
    "00": (
        "all_reduce", "DDP", "Amdahl", "torchrun", "FSDP", "synchronize", "efficiency", "Reevaluating", "Deep Residual",
        "Ring Attention", "GShard", "Reducing Activation",
    ),
    "01": ("torch.compile", "Triton", "torch.jit.script", "torch.jit.trace", "torch.export", "PyTorch 2"),
    "03": ("DataParallel", "functional_call", "NCCL", "GIL", "recommend DDP", "Patarasuk", "measured", "comm.cpp"),
    "04": (
        "DistributedDataParallel", "all_reduce", "init_process_group", "DistributedSampler", "set_device", "torchrun",
        "map_location", "Goyal", "Li et al.", "V100", "A100", "P100",
    ),
    "07": (
        "RPC", "Ray", "Monarch", "rpc_sync", "rpc_async", "remote", "dist_autograd.context", "DistributedOptimizer",
        "share_memory_", "Hogwild", "async_execution", "local SGD", "DiLoCo", "AReaL",
    ),
}  # fmt: skip


def markdown(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def links(text: str) -> list[tuple[str, str]]:
    """The text and the target of each link; not of what stands in code."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    return re.findall(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)]*)\)", text)


def anchors(path: Path) -> set[str]:
    """Of the headings of a Markdown file, as JupyterLab and GitHub name them."""
    return {
        re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")
        for head in re.findall(r"(?m)^#+ (.+)$", path.read_text())
    }


@pytest.mark.parametrize("path", [*PAGES, GLOSSARY, *DOCUMENTS], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_links_are_well_formed_and_lead_somewhere(path: Path) -> None:
    for text, target in links(path.read_text() if path.suffix == ".md" else markdown(path)):
        assert text.strip() and target and not re.search(r"\s", target), f"[{text}]({target})"
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme == "https" and re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc), target
            continue
        there = (path.parent / parts.path) if parts.path else path
        assert there.exists(), f"[{text}]({target}) leads nowhere"
        if parts.fragment and there.suffix == ".md":
            assert parts.fragment in anchors(there), f"{there.name} has no heading for #{parts.fragment}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_folded_answer_stays_folded_in_every_viewer(path: Path) -> None:
    """nbconvert, and so GitHub and the book, ends a `<details>` at its first blank line."""
    for block in re.findall(r"<details>.*?</details>", markdown(path), re.S):
        assert "\n\n" not in block, f"write this as one block of HTML, without a blank line:\n{block}"
        inside = re.sub(r"<(code|pre)>.*?</\1>", "", block, flags=re.S)
        assert not re.search(r"`|\*\w|\]\(", inside), f"Markdown isn't rendered in there, write HTML:\n{block}"


@pytest.mark.parametrize("number", LINKED)
def test_a_lesson_links_what_it_names(number: str) -> None:
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    linked = [text for text, _ in links(markdown(path))]
    assert not [name for name in LINKED[number] if not any(name in text for text in linked)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_pictures_are_said_in_words_and_can_be_drawn(path: Path) -> None:
    for picture in re.findall(r'<img (?:[^">]|"[^"]*")*>', markdown(path)):
        said = re.search(r'alt="([^"]+)"', picture)
        assert said and len(said[1].split()) > 5, "what does it show?"
        found = re.search(r'src="data:image/svg\+xml,([^"]+)"', picture)
        assert found and "#" not in found[1] and "\n\n" not in found[1], (
            "a bare # ends the picture, a blank line the HTML"
        )
        ElementTree.fromstring(found[1].replace("%23", "#").replace("\n", ""))  # browsers drop line ends in an address


def test_the_glossary_is_in_order_and_short() -> None:
    words = re.findall(r"(?m)^## (.+)$", GLOSSARY.read_text())
    assert words == sorted(words, key=lambda word: word.lower().replace("-", " "))
    lines = GLOSSARY.read_text().splitlines()
    assert max(map(len, lines)) < 200 and "rank" in words


def test_instructors_read_the_minutes_that_the_lessons_say() -> None:
    table = (ROOT / "docs" / "instructors.md").read_text()
    told = {
        row[0]: row[1:] for row in re.findall(r"\| \[(\d\d) · [^\]]*\]\([^)]*\) \| (\d+) \| (\d+) \| (\d+) \|", table)
    }
    for lesson in lessons(ROOT):
        deeper = markdown(ROOT / lesson.path).partition("\n# Deeper")[2]
        exercises = 0  # 13 and 14 are exercises from end to end
        if lesson.exercises_path:
            (exercises,) = re.findall(r"\*\*Time:\*\* (\d+)", markdown(ROOT / lesson.exercises_path))
        minutes = sum(map(int, re.findall(r"(?m)^## .+\n+\*(\d+) minutes?\b", deeper)))
        assert told.pop(lesson.number) == (str(lesson.minutes), str(minutes), str(exercises))
    assert not told


def test_instructors_read_the_minutes_of_each_section() -> None:
    told = (ROOT / "docs" / "instructors.md").read_text()
    for lesson in lessons(ROOT):
        core, _, deeper = markdown(ROOT / lesson.path).partition("\n# Deeper")
        for kind, part in (("core", core), ("deeper", deeper)):
            each = re.findall(r"(?m)^## (?:\d+ · )?(.+)\n+\*(\d+) minutes?", part)
            line = f"**{lesson.number}, {kind}**: " + " · ".join(f"{title} {minutes}" for title, minutes in each)
            assert line in told, line


def test_the_map_of_the_front_page_has_every_lesson() -> None:
    front = (ROOT / "README.md").read_text()
    assert len(re.sub(r"(?s)```.*?```|\|.*?\|\n", "", front).split()) < 1000, "the rest belongs into docs/"
    for lesson in lessons(ROOT):
        assert f"({lesson.path})" + f", [exercises]({lesson.exercises_path})" * bool(lesson.exercises_path) in front
