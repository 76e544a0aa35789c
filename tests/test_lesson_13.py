"""Lesson 13: its programs have the fault that they're caged for, and a mended one is told from one that isn't."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT
from kernels import Cell, Kernel, own_kernel  # noqa: F401

from course_utils import LaunchError
from course_utils.for_lessons import digest

sys.path.insert(0, str(ROOT / "notebooks"))
import lesson_13
from lesson_13.keeper import CAGES, KINDS, Mended, StillIll, alike, gap, need, split

NOTEBOOK = ROOT / "notebooks" / "13_bug_zoo.ipynb"
MENDS = tomllib.loads((ROOT / "tests" / "zoo.toml").read_text(encoding="utf-8"))
IN_THE_GATE = ("uneven_batches", "late_load")  # a hang and a wrong result; the others are slow tests


def programs() -> dict[str, str]:
    """The programs in the notebook, as they were caught."""
    cells = [c.source for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.source.startswith("%%cage ")]
    return {source.split()[1]: source.partition("\n")[2] for source in cells}


PROGRAMS = programs()


def changed(name: str, row: dict[str, Any]) -> str:
    """A program as a row of the table mends it."""
    source: str = row.get("source", PROGRAMS[name])
    for was, now in row.get("replace", []):
        assert source.count(was) == 1, f"{name}: {was!r} occurs {source.count(was)} times"
        source = source.replace(was, now)
    return source


def rows(right: bool) -> list[Any]:
    found = []
    kind = "right" if right else "wrong"
    for name, table in MENDS.items():
        for i, (label, row) in enumerate(table[kind].items()):
            fast = name in IN_THE_GATE and i == 0
            found.append(pytest.param(name, row, id=f"{name}-{label}", marks=() if fast else pytest.mark.slow))
    return found


def judged(name: str, source: str) -> Any:
    return lesson_13.judged(CAGES[name], Mended.of(source, name))


# --- The cages --------------------------------------------------------------------------------------------------------


def test_every_cage_has_its_program_its_choices_and_its_mends() -> None:
    assert set(PROGRAMS) == set(CAGES) == set(MENDS) and len(CAGES) >= 24
    assert {cage.kind for cage in CAGES.values()} == set(KINDS)
    for name, cage in CAGES.items():
        assert digest(PROGRAMS[name]) == cage.found, f"{name}: the program isn't the one that was caught"
        assert 15 <= len(PROGRAMS[name].splitlines()) <= 45, name
        assert max(map(len, PROGRAMS[name].splitlines())) <= 110, name
        assert cage.right in cage.told and len(cage.told) == 4, name
        assert len(MENDS[name]["right"]) >= 2 and len(MENDS[name]["wrong"]) >= 2, name
    rights = [cage.right for cage in CAGES.values()]
    assert all(rights.count(letter) >= 3 for letter in "abcd"), "no letter is a good guess"


def test_the_page_lists_the_same_letters_and_links_a_thread_and_a_lesson() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    for page, cell in zip(cells, cells[1:], strict=False):
        if not cell.source.startswith("%%cage "):
            continue
        name = cell.source.split()[1]
        assert f"`{name}`" in page.source.partition("\n")[0] and CAGES[name].title in page.source, name
        assert re.findall(r"^- \*\*(\w)\*\* ", page.source, re.M) == list(CAGES[name].told), name
        assert re.search(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", page.source), name
        assert re.search(r"\d\d_\w+\.ipynb", page.source), name
        assert page.source.count("<details>") == page.source.count("</details>") == 2, name


@pytest.mark.parametrize("name", [n if n in IN_THE_GATE else pytest.param(n, marks=pytest.mark.slow) for n in CAGES])
def test_a_program_as_it_was_caught_is_ill(name: str) -> None:
    card = judged(name, PROGRAMS[name])
    assert card.outcome == "not solved" and card.differs


@pytest.mark.parametrize(("name", "row"), rows(right=True))
def test_a_right_mend_is_accepted(name: str, row: dict[str, Any]) -> None:
    card = judged(name, changed(name, row))
    assert card.outcome == "solved", card.differs
    assert card.checked


@pytest.mark.parametrize(("name", "row"), rows(right=False))
def test_a_wrong_mend_is_refused_in_words(name: str, row: dict[str, Any]) -> None:
    card = judged(name, changed(name, row))
    assert card.outcome == "not solved" and row["says"] in card.differs, card.differs


def said(cell: Cell) -> str:
    """All that a cell showed, as text."""
    return "\n".join([cell.text, *(text for _, text in cell.displays)])


# --- What `%%cage` does -----------------------------------------------------------------------------------------------


def test_a_cage_shows_its_symptom_hears_a_bet_and_judges_a_mended_program(own_kernel: Kernel) -> None:  # noqa: F811
    assert own_kernel.run("%load_ext course_utils\nimport lesson_13").error is None
    program = PROGRAMS["late_load"]
    first = own_kernel.run(f"%%cage late_load\n{program}")
    assert first.error is None and "What's wrong? Bet on a letter" in said(first)
    bet = own_kernel.run(f"%%cage late_load (A)\n{program}")
    assert "You said a." in said(bet) and "mend the program" in said(bet) and CAGES["late_load"].right != "a"
    mend = changed("late_load", next(iter(MENDS["late_load"]["right"].values())))
    assert "mended, in" in said(own_kernel.run(f"%%cage late_load c\n{mend}"))
    wrong = changed("late_load", next(iter(MENDS["late_load"]["wrong"].values())))
    assert "not mended yet" in said(own_kernel.run(f"%%cage late_load c\n{wrong}"))
    tally = said(own_kernel.run("print(lesson_13.tally())"))
    assert "1 of 29 mended" in tally and "1 of 1 caught program did what the pages say" in tally
    row = next(line for line in tally.splitlines() if "late_load" in line)
    assert "✗" in row and "✓" in row, "the first bet counts, and a mended program stays mended"

    refused = own_kernel.run("%%cage late_lode\npass")
    assert refused.error is not None and "late_load" in refused.error[1]
    broken = own_kernel.run("%%cage late_load\nfor")
    assert broken.error is not None and "not valid Python" in broken.error[1]


@pytest.mark.parametrize("line", ["", "late", "late_load e", "late_load a b", "late_load both", "None"])
def test_a_line_that_makes_no_sense_is_refused(line: str) -> None:
    with pytest.raises(LaunchError, match=r"name a cage, as in %%cage \w+|bet on one of a, b, c, d"):
        lesson_13._run_cage(line, "pass")


# --- What judges use --------------------------------------------------------------------------------------------------


class Ranks:
    """A run of which only the reports matter."""

    def __init__(self, *values: Any):
        self.world_size = len(values)
        self.ranks = [type("Rank", (), {"rank": i, "records": [{"x": v}]})() for i, v in enumerate(values)]


def test_what_ranks_report_is_compared_in_words() -> None:
    assert alike(Ranks([1.0, 2.0], [1.0, 2.0]), "x", "the weights") == [1.0, 2.0]  # type: ignore[arg-type]
    for other in ([1.0, 2.1], [1.0], [float("nan"), 2.0], "no"):
        with pytest.raises(StillIll, match="On 2 ranks, the weights of rank 0 and rank 1 differ"):
            alike(Ranks([1.0, 2.0], other), "x", "the weights")  # type: ignore[arg-type]
    split(Ranks([0, 2], [1, 3]), "x", range(4), "sample")  # type: ignore[arg-type]
    with pytest.raises(StillIll, match="1 sample of 4 were seen by nobody: 3|1 sample of 4"):
        split(Ranks([0, 2], [1]), "x", range(4), "sample")  # type: ignore[arg-type]
    with pytest.raises(StillIll, match="more than once: 1"):
        split(Ranks([0, 1, 2], [1, 3]), "x", range(4), "sample")  # type: ignore[arg-type]
    with pytest.raises(StillIll, match="something else"):
        split(Ranks([0, 1, 2], [3, 9]), "x", range(4), "sample")  # type: ignore[arg-type]
    with pytest.raises(StillIll, match="doesn't report `y`"):
        alike(Ranks(1.0, 1.0), "y", "it")  # type: ignore[arg-type]
    with pytest.raises(StillIll, match="because"):
        need(False, "because")
    assert gap(3, 1) == 2 and gap([1, 2], [1]) == gap(float("nan"), 1) == gap(None, 1) == float("inf")


# --- The file to take home --------------------------------------------------------------------------------------------

FAULTS = {
    "": "All ranks are in step.",
    "torch.manual_seed(rank)|torch.manual_seed(0)": "draw the same random numbers",
    "sampler=DistributedSampler(data))|shuffle=True)": "seen 128 samples together, and not 64",
    "        seen += len(x)|        seen += len(x)\n        model.module.bias.data += rank": "[1] differ from rank 0's",
    "lr=0.1|lr=1e30": "NaN or infinite",
}


@pytest.mark.parametrize(
    ("fault", "said"),
    [(fault, said) if i in (0, 3) else pytest.param(fault, said, marks=pytest.mark.slow)
     for i, (fault, said) in enumerate(FAULTS.items())],
)  # fmt: skip
def test_the_file_to_take_home_notices_what_nobody_notices(fault: str, said: str, tmp_path: Path) -> None:
    program = str(lesson_13.take_home())
    was, _, now = fault.partition("|")
    assert program.count(was) == 1 or not was
    (tmp_path / "check.py").write_text(program.replace(was, now) if was else program)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    found = subprocess.run([*torchrun, "2", "check.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said in found.stdout
    if not fault:
        alone = subprocess.run([*torchrun, "1", "check.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert said in alone.stdout
