"""The course as a static site, in site/: `build.py [LESSON ...] [--out DIR]`, for example `build.py 04 05`.

Lessons run here first, and their outputs are kept under .site/ by the hash of all that they depend on: a change of
words runs nothing. Sphinx makes pages of them; nothing that a page needs comes from another server. Explorers move in
the browser, by the course's own code in Pyodide, an npm package: without npm they stay pictures.
"""

from __future__ import annotations

import argparse
import base64
import copy
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE)]

import nbformat  # noqa: E402
from jupyter_client import AsyncKernelManager  # noqa: E402
from navigation import elsewhere, repository  # type: ignore[import-not-found]  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError  # noqa: E402
from PIL import Image  # noqa: E402
from slides import SLIDES, slides  # type: ignore[import-not-found]  # noqa: E402

from course_utils.lab.lessons import Lesson, lessons  # noqa: E402

KEPT = Path(os.environ.get("COURSE_SITE_KEPT") or ROOT / ".site")  # executed notebooks, npm's package, Sphinx's sources
CELL_TIMEOUT_S = 300
WIDGET = "application/vnd.jupyter.widget-view+json"
_PNG = re.compile(r"""(width='(\d+)'[^>]*)src='data:image/png;base64,([^']+)'""")
_WORDS = r"\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]"
_TARGET = r"(?!\w+:|#)(?P<path>[^)\"#\s]+)(?P<anchor>(?:#[^)\"\s]*)?)"
_LINK = re.compile(rf"(?<!!){_WORDS}\({_TARGET}\)")  # of Markdown
_HREF = re.compile(rf'href="{_TARGET}"')
BRING = "bring-the-course"  # the cell for Kaggle and Colab: no page needs it, and no result depends on it


# --- what lessons print and draw --------------------------------------------------------------------------------------


@cache
def shared() -> str:
    """The hash of what all lessons run: the package, the data that comes with it, the versions of all packages."""
    return hashed([*(ROOT / "course_utils").rglob("*.py"), *(ROOT / "data").glob("*.*"), ROOT / "uv.lock"])


def hashed(paths: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts):
        found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()


def dependencies(lesson: Lesson) -> list[Path]:
    """The files of a lesson's own, besides its notebook, that may change what its cells print."""
    places = [
        *(ROOT / "notebooks").rglob(f"*{lesson.number}*"),
        *(ROOT / "data" / "recorded").rglob(f"*{lesson.number}*"),
    ]
    inside = [path for place in places if place.suffix != ".ipynb" for path in (place, *place.rglob("*"))]
    return sorted({path for path in inside if path.is_file()})


def digest(lesson: Lesson, notebook: Any) -> str:
    """The hash of a lesson's code, and of all that it runs."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code" and cell.get("id") != BRING]
    told = json.dumps([code, shared(), hashed(dependencies(lesson))])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def executed(lesson: Lesson) -> tuple[Any, float]:
    """A lesson's notebook with its outputs, and the seconds that took: 0 where they were kept. Raises
    CellExecutionError if a cell fails."""
    notebook = nbformat.read(ROOT / lesson.path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.get("id") != BRING]
    kept = KEPT / "executed" / f"{Path(lesson.path).stem}-{digest(lesson, notebook)}.json"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    start = time.perf_counter()
    if not kept.exists():
        made = run(notebook, Path(lesson.path).name)
        outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
        kept.parent.mkdir(parents=True, exist_ok=True)
        for old in kept.parent.glob(f"{Path(lesson.path).stem}-*"):
            old.unlink()
        kept.write_text(json.dumps({"made": made, "outputs": outputs}), encoding="utf-8")
    found = json.loads(kept.read_text(encoding="utf-8"))
    for cell, outputs in zip(code, found["outputs"], strict=True):
        cell.outputs = [nbformat.from_dict(output) for output in outputs]
    notebook.metadata["made"] = found["made"]
    return notebook, time.perf_counter() - start


def run(notebook: Any, name: str) -> str:
    """Execute a notebook in place. Returns on what its numbers were made, in words."""
    import torch

    from course_utils.machine.here import Machine

    os.environ |= {"COURSE_NOTEBOOK": name, "JUPYTER_PREFER_ENV_PATH": "1"}
    resources = {"metadata": {"path": str(ROOT / "notebooks")}}
    with tempfile.TemporaryDirectory() as folder:
        kernels = type(
            "Kernels", (AsyncKernelManager,), {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}
        )
        NotebookClient(
            notebook, kernel_manager_class=kernels, kernel_name="python3", timeout=CELL_TIMEOUT_S,
            store_widget_state=False, resources=resources,
        ).execute()  # over sockets in that folder: no port that others could reach  # fmt: skip
    return f"{Machine.here()}, torch {torch.__version__.partition('+')[0]}, {time.strftime('%-d %B %Y')}"


# --- pages ------------------------------------------------------------------------------------------------------------


class Pages:
    """Writes the pages' sources into a folder, and what they refer to into `extra`, which the site has as it is."""

    def __init__(self, source: Path, extra: Path, address: str):
        self.source, self.extra, self.address = source, extra, address
        self.there: set[str] = set()  # the names of pages
        for folder in (source, extra / "images", extra / "notebooks"):
            folder.mkdir(parents=True)

    def lesson(self, lesson: Lesson, notebook: Any) -> None:
        """A lesson with its outputs."""
        self.notebook(notebook, lesson.path, f"The numbers on this page were made on {notebook.metadata['made']}.")

    def exercises(self, lesson: Lesson) -> None:
        """What a lesson's exercises ask for. They are solved in JupyterLab, where they are checked."""
        notebook = nbformat.read(ROOT / lesson.exercises_path, as_version=4)
        self.notebook(notebook, lesson.exercises_path, "Solve these in JupyterLab, where each is checked as you go.")

    def notebook(self, notebook: Any, path: str, words: str) -> None:
        titles = 0  # so far: a page has one, and the notebook's parts, such as Deeper, stand below it
        cells = [
            cell for cell in notebook.cells
            if "navigation" not in cell.metadata.get("tags", ()) and cell.get("id") != BRING
        ]  # fmt: skip
        for cell in cells:
            cell.metadata = {}
            if cell.cell_type == "markdown":
                lines, fenced = [], False
                for line in self.linked(cell.source).split("\n"):
                    fenced ^= line.startswith("```")
                    if line.startswith("# ") and not fenced:
                        titles, line = titles + 1, f"#{line}" if titles else line
                    elif line.startswith("##") and not fenced and titles > 1:
                        line = f"#{line}"
                    lines.append(line)
                cell.source = "\n".join(lines)
            else:
                cell.execution_count = None
                cell.outputs = [self.output(output) for output in cell.outputs]
        shutil.copy(ROOT / path, self.extra / "notebooks")
        places = [f'<a href="notebooks/{Path(path).name}" download>Download this notebook</a>']
        branch = "published" if os.environ.get("COURSE_ADDRESS") else "main"
        found = re.findall(r"\[(.*?)\]\((.*?)\)", elsewhere(self.address, path, branch))
        places += [f'<a href="{url}">Open in {name}</a>' for name, url in found]
        made = f"<p class='course-made'>{html.escape(words)} {' · '.join(places)}</p>"
        notebook.cells = [*cells, nbformat.v4.new_markdown_cell(made)]
        notebook.metadata = {"kernelspec": notebook.metadata.get("kernelspec", {})}
        nbformat.write(notebook, self.source / Path(path).name)

    def output(self, output: Any) -> Any:
        """An output as a page can show it: pictures as files, explorers with what moves them."""
        data = output.get("data", {})
        if "text/html" in data:
            shown = "".join(data["text/html"])
            call = re.search(r"<figure data-explorer='([^']*)'", shown) if WIDGET in data else None
            figure = re.sub("<img [^>]*>", lambda img: f"<div class='course-figure'>{img[0]}</div>", shown)
            shown = explorer(html.unescape(call[1])) if call else _PNG.sub(self.picture, figure)
            output.data = {"text/html": self.linked(shown), "text/plain": data.get("text/plain", "")}
        return output

    def picture(self, found: re.Match[str]) -> str:
        """A picture that a figure carries, as a file, with its size, so that the page doesn't jump."""
        before, width, raw = found[1], int(found[2]), base64.b64decode(found[3])
        image = Image.open(BytesIO(raw))
        name = f"images/{hashlib.sha256(raw).hexdigest()[:16]}.webp"
        if not (self.extra / name).exists():
            image.save(self.extra / name, lossless=True, quality=80)
        return f"{before}height='{round(width * image.height / image.width)}' loading='lazy' src='{name}'"

    def linked(self, text: str, folder: str = "notebooks") -> str:
        """The text, of a file in this folder of the course, with its relative links as they are in the site: pages lie
        side by side, and files of the course under files/, or where they're at home once that has an address."""

        def there(path: str) -> str | None:
            """Where a path leads, if it's no page; None for a page. Empty if it leads nowhere."""
            file = (ROOT / folder / path).resolve()
            if not file.is_relative_to(ROOT):
                return ""
            place = file.relative_to(ROOT)
            if re.fullmatch(r"(notebooks|exercises)/\d\d_\w+\.ipynb|notebooks/glossary\.md|docs/\w+\.md", str(place)):
                return None
            if self.address:
                return f"{self.address}/{'tree' if file.is_dir() else 'blob'}/main/{place}"
            if not file.is_file():
                return ""
            copied = self.extra / "files" / place
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copied)
            return f"files/{place}"

        def link(found: re.Match[str]) -> str:
            words, path, anchor = found.group("words", "path", "anchor")
            to = there(path)
            if to is None:
                return f"[{words}]({Path(path).name}{anchor})"
            return f'<a href="{to}{anchor}">{words}</a>' if to else words

        def href(found: re.Match[str]) -> str:
            path, anchor = found.group("path", "anchor")
            to = there(path)
            return f'href="{Path(path).stem}.html{anchor}"' if to is None else f'href="{to or path}{anchor}"'

        return _HREF.sub(href, _LINK.sub(link, text))

    def write(self, name: str, text: str) -> None:
        (self.source / name).write_text(text, encoding="utf-8")


def explorer(call: str) -> str:
    """An explorer as a page has it: its picture, and what explorers.js makes controls of."""
    from course_utils.explore import in_page

    about = in_page.described(in_page.explorer(call))
    svg, summary, leaves_out, actions = (about.pop(key) for key in ("svg", "summary", "leaves_out", "actions"))
    told = json.dumps(about, separators=(",", ":")).replace("</", "<\\/")
    room = f"--controls:{sum(not control['more'] for control in about['controls'])};--asks:{int('question' in about)}"
    more = "".join(f"<p><b>{html.escape(label)}</b> is for the notebook: {why}.</p>" for label, why in actions)
    return (
        f"<div class='explorer' style='{room}'><script type='application/json'>{told}</script>"
        f"<div class='explorer-picture'>{svg}</div><p class='explorer-said' role='status'>{summary}</p>"
        f"<details><summary>what this picture leaves out</summary><p>{leaves_out}</p>{more}</details></div>"
    )


def explorers_page() -> str:
    """All explorers on one page."""
    from course_utils import explore

    told = dict(re.findall(r"^    explore\.(\w+)\(\)\s+([^:\n]*)", explore.__doc__ or "", re.M))
    parts = [
        "# All explorers",
        "Each is a figure that computes while you move it, by the course's own code, in your browser.",
    ]
    for name in explore.__all__:
        parts += [f"## {told[name][:1].upper()}{told[name][1:]}", explorer(f"{name}()")]
    return "\n\n".join(parts)


def glossary() -> tuple[str, dict[str, str]]:
    """The course's words as a page, and each word's first sentence."""
    text = (ROOT / "notebooks" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^## (.+)\n(.+)$", text, re.M)
    plain = {word.replace(" ", "-"): re.sub(r"[*`]|\]\([^)]*\)|\[", "", line) for word, line in words}
    return text, plain


# What the theme and notebooks leave out: who has no mouse reaches what scrolls, and hears what a part of the page is.
ACCESSIBLE = (
    (r"<pre(?=[ >])", '<pre tabindex="0"'),
    (r"<div class='(course-figure|explorer-picture)'", r"<div tabindex='0' class='\1'"),
    (r"<div (style=(['\"])[^'\"]*overflow-x:auto)", r"<div tabindex='0' \1"),
    (r'<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
    (r'<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    (r'<aside class="sidebar-drawer"', '<aside class="sidebar-drawer" aria-label="All pages"'),
    (r'<aside class="toc-drawer', '<aside aria-label="On this page" class="toc-drawer'),
)


def accessible(page: str) -> str:
    for pattern, better in ACCESSIBLE:
        page = re.sub(pattern, better, page)
    return page


def with_terms(page: str, words: dict[str, str]) -> str:
    """Links to words carry their sentence, for who rests on them."""

    def term(found: re.Match[str]) -> str:
        said = words.get(found[2])
        return (
            found[0]
            if said is None
            else f'<a class="course-term" data-sentence="{html.escape(said)}" href="{found[1]}"'
        )

    return re.sub(r'<a class="[^"]*" href="(glossary\.html#([^"]+))"', term, page)


# --- explorers in the browser -----------------------------------------------------------------------------------------

TRACE = """
import json, sys
opened = set()
sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
from course_utils import explore
from course_utils.explore.in_page import described, drawn
for name in explore.__all__:
    about = described(getattr(explore, name)())
    drawn(about["call"], {control["name"]: control["value"] for control in about["controls"]})
explore.scaling(money=True).view()
modules = {module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)}
print(json.dumps(sorted(modules | opened)))
"""


def shipped() -> list[Path]:
    """The files of the course that explorers need: what they import, and the data that they open."""
    found = subprocess.run([sys.executable, "-c", TRACE], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {Path(path) for path in json.loads(found.stdout.splitlines()[-1]) if path.startswith(str(ROOT))}
    kept = [path for path in files if path.suffix != ".pyc" and path.parts[len(ROOT.parts)] in ("course_utils", "data")]
    return sorted(path for path in kept if path.is_file())


def pack(out: Path, files: Iterable[Path]) -> None:
    """The files in a zip, the same bytes for the same files."""
    contents = {str(path.relative_to(ROOT)): path.read_bytes() for path in files}
    contents["pyproject.toml"] = b""  # so that it's taken for a checkout
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in contents.items():
            packed.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")


def python_for_pages(extra: Path) -> str:
    """Put Pyodide and the course's code for explorers into the site. Returns their size in words; empty, and a line
    that says why, where there's no npm."""
    npm, home = shutil.which("npm"), KEPT / "npm"
    lock = HERE / "package-lock.json"
    if npm is None:
        print("explorers stay pictures on this site: that needs npm, which isn't installed here")
        return ""
    marker = home / "fetched"  # holds the lock file that was fetched, once it was
    if not marker.exists() or marker.read_bytes() != lock.read_bytes():
        home.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", lock.name):
            shutil.copy(HERE / name, home)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True)
        if done.returncode:
            print(f"explorers stay pictures on this site: npm couldn't fetch Pyodide\n{done.stderr.strip()}")
            return ""
        shutil.copy(lock, marker)
    place = extra / "_static" / "explorers"
    (place / "pyodide").mkdir(parents=True)
    for name in PYODIDE:
        shutil.copy(home / "node_modules" / "pyodide" / name, place / "pyodide")
    shutil.copy(HERE / "worker.js", place)
    pack(place / "course.zip", shipped())
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return f"{size / 1e6:.0f} MB"


# --- the whole --------------------------------------------------------------------------------------------------------


def build(chosen: Sequence[Lesson], out: Path, everything: bool) -> list[str]:
    """Write the site of these lessons. Returns those that failed."""
    address = os.environ.get("COURSE_ADDRESS") or repository(ROOT)  # a fork says it when it publishes
    work = KEPT / "work"
    shutil.rmtree(work, ignore_errors=True)
    pages = Pages(work / "source", work / "extra", address)
    failed: list[str] = []
    ran: dict[str, Any] = {}
    for lesson in chosen:
        try:
            notebook, seconds = executed(lesson)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            failed.append(lesson.number)
            print(f"{lesson.path}: a cell failed\n{error}", flush=True)
            continue
        print(f"{lesson.number}: {f'ran in {seconds:.0f} s' if seconds > 1 else 'as it ran before'}", flush=True)
        ran[lesson.number] = copy.deepcopy(notebook)
        pages.lesson(lesson, notebook)
        if lesson.exercises_path:
            pages.exercises(lesson)
    text, words = glossary()
    pages.write("glossary.md", text)
    pages.write("explorers.md", explorers_page())
    for path in (ROOT / "docs").glob("*.md"):
        pages.write(path.name, pages.linked(path.read_text(encoding="utf-8"), "docs"))
    pages.write("index.md", home_page([lesson for lesson in chosen if lesson.number in ran]))
    if all(place is None or place[0] in ran for _, place, _ in SLIDES):
        (work / "extra" / "slides.html").write_text(slides(ran), encoding="utf-8")
    told = {
        "repository": address, "static": [str(HERE / name) for name in ("course.css", "moves.css", "explorers.js")],
        "extra": [str(work / "extra")], "explorers": python_for_pages(work / "extra"),
        "suppress": [] if everything else ["myst.xref_missing"],  # of a part, other lessons aren't there
    }  # fmt: skip
    made = work / "html"
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-c", str(HERE), str(work / "source"), str(made)]
    env = {**os.environ, "COURSE_SITE": json.dumps(told), "PYTHONPATH": str(HERE)}
    subprocess.run(sphinx, env=env, check=True)
    for path in made.glob("*.html"):
        path.write_text(accessible(with_terms(path.read_text(encoding="utf-8"), words)), encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(made, out)
    return failed


def home_page(made: Sequence[Lesson]) -> str:
    """The first page: what the course is, and its map."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    rows = "\n".join(
        f"| [{lesson.number} · {lesson.title}]({Path(lesson.path).name}) | {lesson.question} | {lesson.minutes} |"
        for lesson in made
    )
    contents = {
        "Lessons": [Path(lesson.path).stem for lesson in made],
        "Exercises": [Path(lesson.exercises_path).stem for lesson in made if lesson.exercises_path],
        "More": ["explorers", "glossary"],
        "To run it": ["places", "setup", "gpus", "emulated_gpus", "slurm", "behind_a_cell", "troubleshooting"],
        "To teach it": ["instructors", "workshop"],
    }
    trees = "\n".join(
        f"```{{toctree}}\n:caption: {caption}\n:maxdepth: 1\n:hidden:\n{chr(10).join(names)}\n```"
        for caption, names in contents.items()
    )
    return f"{text}\n\n## The lessons\n\n| lesson | question | minutes |\n|---|---|---|\n{rows}\n\n{trees}\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The course as a static site.")
    parser.add_argument("lessons", nargs="*", help="numbers of lessons, as in 04 05; all if none")
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    asked = parser.parse_args(argv)
    known = lessons()
    unknown = set(asked.lessons) - {lesson.number for lesson in known}
    if unknown:
        parser.error(
            f"no lesson {', '.join(sorted(unknown))}; there are {', '.join(lesson.number for lesson in known)}"
        )
    out = asked.out.resolve()
    if out.exists() and any(out.iterdir()) and not (out / ".buildinfo").exists():
        parser.error(f"{out} has something in it that is no site; it would be replaced")
    chosen = [lesson for lesson in known if not asked.lessons or lesson.number in asked.lessons]
    start = time.perf_counter()
    failed = build(chosen, out, not asked.lessons)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(
        f"{asked.out}: {len(chosen) - len(failed)} lessons, {size / 1e6:.0f} MB, in {time.perf_counter() - start:.0f} s"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
