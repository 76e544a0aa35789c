"""What is kept of a learner's progress, and what's read from it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course_utils import claim
from course_utils.folders import COURSE
from course_utils.lab import progress
from course_utils.lab.lessons import Lesson, cell_hash, lessons

ONE, TWO, BOTH = "x = 1", "guess = ...", "%load_ext course_utils"


def lesson(number: str, *cells: tuple[str, str]) -> Lesson:
    core = tuple((name, cell_hash(source)) for name, source in cells)
    paths = [f"{folder}/{number}_made_up.ipynb" for folder in ("notebooks", "exercises", "solutions")]
    return Lesson(number, "Made up", "Why?", 45, paths[0], core, (f"{number}.1", f"{number}.2"), paths[1], paths[2])


LESSONS = [lesson("04", ("a", BOTH), ("b", ONE), ("c", TWO)), lesson("05", ("a", BOTH), ("b", "y = 2"))]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.delenv("COURSE_NOTEBOOK", raising=False)
    monkeypatch.setenv("JPY_SESSION_NAME", "copies/04_made_up-Copy1.ipynb")
    return tmp_path / "runs"


@pytest.fixture
def shell(runs: Path) -> Any:
    shell = InteractiveShell()
    progress.watch(shell)
    yield shell
    progress.unwatch(shell)


def test_a_kernel_records_what_ran_and_what_was_claimed(shell: Any, runs: Path) -> None:
    progress.watch(shell)  # once more, as after %reload_ext
    shell.user_ns["claim"] = claim
    shell.run_cell(ONE, store_history=True, cell_id="b")
    shell.run_cell("guess = 7", store_history=True, cell_id="c")  # edited, as learners should
    shell.run_cell("1 / 0", store_history=True, cell_id="a")
    shell.run_cell("claim('2.5 times faster', True); claim('3.1 times faster', True); claim('no', None, why='no GPU')")
    assert len((runs / "progress.jsonl").read_text().splitlines()) == 5
    assert (runs / "progress.jsonl").stat().st_mode & 0o777 == 0o600
    done = progress.progress(LESSONS)
    assert (done["04"].cells, done["04"].claims, done["05"].cells) == (2, 1, 0)
    progress.unwatch(shell)
    shell.run_cell(BOTH.replace("%load_ext", "#"), cell_id="a")
    assert progress.progress(LESSONS) == done


@pytest.mark.parametrize(
    ("notebook", "record", "cells"),
    [
        ("04_made_up", {"cell": "a", "hash": "edited"}, {"04": 1, "05": 0}),
        ("04 my own copy", {"cell": "vscode-1", "hash": cell_hash(ONE)}, {"04": 1, "05": 0}),
        ("04_made_up_exercises", {"cell": "a", "hash": cell_hash(BOTH)}, {"04": 0, "05": 0}),
        ("python", {"cell": "", "hash": cell_hash("y = 2")}, {"04": 0, "05": 1}),  # a front end that names no notebook
        ("thesis", {"cell": "b", "hash": cell_hash(BOTH)}, {"04": 0, "05": 0}),  # more than one lesson has this cell
        ("99_gone", {"cell": "b", "hash": "other"}, {"04": 0, "05": 0}),
    ],
)
def test_to_which_lesson_a_cell_counts(
    runs: Path, notebook: str, record: dict[str, str], cells: dict[str, int]
) -> None:
    runs.mkdir()
    (runs / "progress.jsonl").write_text(json.dumps({"notebook": notebook, "time": 1.0, **record}) + "\n")
    assert {number: done.cells for number, done in progress.progress(LESSONS).items()} == cells


def test_exercises_count_wherever_they_were_solved_but_not_in_solutions(runs: Path) -> None:
    for notebook, name, outcome in [
        ("04_made_up_exercises", "04.1", "solved"),
        ("04_made_up_exercises", "04.1", "not solved"),  # tried again since
        ("04_made_up_solutions", "04.2", "solved"),
        ("my_copy", "05.2", "solved"),
        ("my_copy", "05.9", "solved"),  # an exercise that's gone
    ]:
        (runs / notebook).mkdir(parents=True, exist_ok=True)
        line = {"exercise": name, "outcome": outcome, "notebook": notebook, "time": "2026-01-02T03:04:05+0100"}
        with open(runs / notebook / "exercises.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
    done = progress.progress(LESSONS)
    assert (done["04"].solved, done["05"].solved) == (("04.1",), ("05.2",)) and done["04"].last > 1.7e9
    progress.forget()
    assert all(d == progress.Done() for d in progress.progress(LESSONS).values())
    progress.forget()


def test_a_damaged_file_and_a_folder_that_cannot_be_written_disturb_nobody(
    shell: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.mkdir()
    (runs / "progress.jsonl").write_bytes(b'{"notebook": "04_x", "ce\xff\n[1]\n{}\n{"time": null, "notebook": 3}\n')
    shell.run_cell(ONE, cell_id="b")
    assert progress.progress(LESSONS)["04"].cells == 1
    for broken in ("/dev/null", "/proc/1"):  # as root, no folder is read-only
        monkeypatch.setenv("COURSE_HOME", broken)
        assert shell.run_cell(ONE, cell_id="b").success
        assert progress.progress(LESSONS)["04"] == progress.Done()


def test_a_notebook_that_a_tool_runs_is_nobodys_progress(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_NOTEBOOK", "04_made_up.ipynb")
    shell = InteractiveShell()
    progress.watch(shell)
    shell.run_cell(ONE)
    claim("true", True)
    assert not runs.exists()


def test_a_record_costs_a_cell_nothing_that_can_be_felt(runs: Path) -> None:
    import time

    start = time.process_time()
    for _ in range(200):
        progress._ran(SimpleNamespace(success=True, info=SimpleNamespace(raw_cell=ONE, cell_id="b")))
    assert (time.process_time() - start) / 200 < 0.005
    assert os.path.getsize(runs / "progress.jsonl") < 200 * 150


def test_the_lessons_describe_themselves() -> None:
    known = lessons()
    assert [lesson.number for lesson in known] == [f"{n:02d}" for n in range(15)]
    for each in known:
        assert each.question and 20 <= each.minutes <= 60 and len(each.core) > 5, each
        own = each.number in ("13", "14")  # exercises from end to end, judged in the lesson's own cells
        assert own or each.exercises and each.exercises_path and each.solutions_path, each


@pytest.mark.parametrize("number", ["00", "01", "02", "03", "04"])
def test_the_minutes_of_sections_add_up_to_what_the_page_says(number: str) -> None:
    """Of the core exactly, and of its part up to the place to stop; of the deeper part about."""
    (known,) = (each for each in lessons() if each.number == number)
    cells = [c for c in json.loads((COURSE / known.path).read_text())["cells"] if c["cell_type"] == "markdown"]
    core, deeper = (
        "\n\n".join("".join(c["source"]) for c in cells if ("core" in c["metadata"].get("tags", ())) == in_core)
        for in_core in (True, False)
    )

    def minutes(text: str) -> int:
        return sum(map(int, re.findall(r"(?ms)^## .*?^\*(\d+) minutes", text)))

    assert minutes(core) == known.minutes
    first, _ = core.split("**A good place to stop.**")
    (stop,) = re.findall(r"a good place to stop after (\d+)", first)
    assert minutes(first) == int(stop)
    (said,) = re.findall(r"Together they take about (\d+) minutes", deeper)
    assert abs(minutes(deeper) - int(said)) <= 3


def test_a_damaged_notebook_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    for number, text in enumerate(["", "[]", '{"cells": [3]}', '{"cells": []}']):
        (tmp_path / "notebooks" / f"0{number}_x.ipynb").write_text(text)
    assert lessons(tmp_path) == []
