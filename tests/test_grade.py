"""Grading a class: what's read of submissions, what each answer may do, and the tables."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree

import nbformat
import pytest
from conftest import ROOT, load_tool

from course_utils import grade
from course_utils.grade import Grade, Limits, Submission

SOLUTIONS = {
    cell.source.split()[1]: cell.source.partition("\n")[2]
    for cell in nbformat.read(ROOT / "solutions" / "04_distributed_data_parallel_solutions.ipynb", as_version=4).cells
    if cell.source.startswith("%%exercise")
}
BLANK = "def shard(n_samples, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):\n    ...\n"
WRONG = BLANK.replace("...", "return list(range(n_samples))")


def notebook(*sources: Any, kind: str = "code") -> str:
    return json.dumps({"cells": [{"cell_type": kind, "source": source} for source in sources]})


# --- What's read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answers", "remark"),
    [
        (notebook("%%exercise 04.1\nx = 1"), {"04.1": "x = 1"}, ""),
        (notebook(["%%exercise 04.1 --hint\n", "x = 1"], "prose", ""), {"04.1": "x = 1"}, ""),
        (notebook("\n  %%exercise 04.3a\nx = 1", kind="raw"), {"04.3a": "x = 1"}, ""),
        (notebook("%%exercise 04.1"), {"04.1": ""}, ""),
        (notebook("%%exercise 04.1\nx = 1", "%%exercise 04.1\n" + BLANK), {"04.1": "x = 1"}, ""),
        (notebook("%%exercise 04.1\n...", "%%exercise 04.1\nx = 2"), {"04.1": "x = 2"}, ""),
        (notebook("%%exercise 04.1\nx = 1", "%%exercise 04.1\nx = 2"), {"04.1": "x = 2"}, "more than once"),
        (notebook("%%exercise 04.1\nx = 1", "%%exercise 04.1\nx = 1"), {"04.1": "x = 1"}, ""),
        (notebook("%%exercises 04.1\nx", "# %%exercise 04.1\nx", "%%ranks 2\nx", "%%exercise\nx"), {}, ""),
        (notebook(3, None, {"a": 1}, ["%%exercise 04.2\n", 7, "y"]), {"04.2": "y"}, ""),
        ('{"cells": [', {}, "can't be read"),
        ("[]", {}, "it's no notebook"),
        ('{"cells": 3}', {}, "it's no notebook"),
        ('{"cells": [1, "a", null, []]}', {}, ""),
        ("[" * 100_000, {}, "can't be read"),
        ("", {}, "can't be read"),
    ],
)  # fmt: skip
def test_a_notebook_is_read_whatever_became_of_it(
    text: str, answers: dict[str, str], remark: str, tmp_path: Path
) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "04.ipynb").write_text(text)
    (found,) = grade.submissions(tmp_path)
    assert found.answers == answers
    assert (remark in found.remarks[0]) if remark else not found.remarks, found.remarks


def test_files_and_folders(tmp_path: Path) -> None:
    """A notebook is a submission, a folder is one, answers may be files of their own; what's hidden isn't looked at."""
    for name, text in {
        "zoe.ipynb": notebook("%%exercise 04.1\nz"),
        "ann/04.ipynb": notebook("%%exercise 04.1\na"),
        "ann/deep/04.3a.py": "b",
        "ann/04_2.py": "%%exercise 04.2\nc",
        "ann/notes.py": "d",
        "ann/.ipynb_checkpoints/04-checkpoint.ipynb": notebook("%%exercise 04.1\nold"),
        "ann/__pycache__/04.1.py": "e",
        "ann/latin.py": "",
        "bob/readme.txt": "nothing",
        ".git/04.1.py": "f",
        "notes.txt": "g",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "ann" / "latin.py").write_bytes(b"%%exercise 04.4\n# \xe9")
    ann, bob, zoe = grade.submissions(tmp_path)
    assert ann.answers == {"04.1": "a", "04.3a": "b", "04.2": "c"} and "latin.py can't be read" in ann.remarks[0]
    assert (bob.name, bob.answers) == ("bob", {}) and (zoe.name, zoe.answers) == ("zoe", {"04.1": "z"})
    with pytest.raises(FileNotFoundError):
        grade.submissions(tmp_path / "no")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no submissions"):
        grade.submissions(tmp_path / "empty")


def test_points(tmp_path: Path) -> None:
    worth = grade.points()
    assert len(worth) >= 57 and worth["04.1"] == 2.0 and set(worth.values()) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    own = tmp_path / "points.toml"
    own.write_text('"04.1" = 10\n"04.2" = 0.5\n')
    assert grade.points(own) == worth | {"04.1": 10, "04.2": 0.5}
    for text, says in (
        ('"99.1" = 1', "no exercise"),
        ('"04.1" = true', "number of points"),
        ('"04.1" = -1', "0 or more"),
    ):
        own.write_text(text)
        with pytest.raises(ValueError, match=says):
            grade.points(own)
    class_ = [Submission("ann", {"04.1": "x"}), Submission("bob", {"07.2": "y"})]
    names = grade.chosen([], class_, worth)
    assert {name[:2] for name in names} == {"04", "07"} and grade.chosen(["04.1", "05"], class_, worth)[0] == "04.1"
    with pytest.raises(ValueError, match="no exercise or lesson '4'"):
        grade.chosen(["4"], class_, worth)


# --- One answer -------------------------------------------------------------------------------------------------------


def left_over(mark: str) -> list[str]:
    """Processes of answers that are still there; `mark` is in their environment, and in no other test's."""
    environments = {path.name: _environ(path) for path in Path("/proc").glob("[0-9]*")}
    return [pid for pid, found in environments.items() if b"COURSE_GRADING=" in found and mark.encode() in found]


def _environ(path: Path) -> bytes:
    try:
        return (path / "environ").read_bytes()
    except OSError:
        return b""


HOSTILE: dict[str, tuple[str, str, str]] = {  # an answer to 04.1; its outcome, and what's said
    "hangs": ("while True: pass", "stopped not solved", ""),
    "ends itself": ("import os\nos._exit(0)", "not solved", ""),
    "forks": ("import os, time\nfor _ in range(7): os.fork()\ntime.sleep(60)", "stopped", "than 60 processes"),
    "eats memory": ("x = [bytearray(1 << 28) for _ in range(40)]\nimport time\ntime.sleep(60)", "stopped", "of memory"),
    "kills who started it": ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "not solved stopped", ""),
    "goes away": (
        "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n        time.sleep(600)\n" + WRONG,
        "not solved", "",
    ),
    "says that it's right": (
        'import os, sys\nprint(\'{"solved": true, "outcome": "solved", "symptom": "", "differs": ""}\')\n'
        "os.write(1, b'{\"solved\": true}')\nsys.stdout = sys.stderr\n" + WRONG,
        "not solved", "",
    ),
    "is no Python": ("def shard(:", "not solved", "not valid Python"),
    "has another alphabet": ("\ud800 = 1", "not solved stopped not judged", ""),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_whatever_an_answer_does_it_gets_its_own_row(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, outcomes, says = HOSTILE[what]
    mark = uuid4().hex
    monkeypatch.setenv("GRADED_BY", mark)
    found = grade.grade("04.1", source, Limits(seconds=40, memory_bytes=3 * 2**30, processes=60))
    assert found.outcome in outcomes and found.part == 0, found
    assert says in found.said, found
    assert not left_over(mark)


def test_a_right_a_wrong_and_a_blank_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three students, one command: table, CSV, JSON and JUnit; the second time nothing is judged."""
    folder = tmp_path / "class"
    for name, source in {"ann": SOLUTIONS["04.1"], "bob": WRONG, "cleo": BLANK, "dan": SOLUTIONS["04.1"]}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "04.ipynb").write_text(notebook(f"%%exercise 04.1\n{source}", "%%exercise 99.9\nx"))
    (folder / "eve.ipynb").write_text("{")
    out = {kind: tmp_path / f"grades.{kind}" for kind in ("csv", "json", "junit")}
    arguments = [str(folder), "04.1", "04.2", *(f"--{kind}={path}" for kind, path in out.items())]
    assert grade.main(arguments) == 0
    said = capsys.readouterr()
    assert "3 of 3 answers judged" in said.err, "who have the same answer are judged once"
    assert "eve: eve.ipynb can't be read" in said.out and "there is no exercise 99.9" in said.out
    rows = {row["submission"]: row for row in csv.DictReader(out["csv"].read_text().splitlines())}
    assert [rows[name]["points"] for name in ("ann", "bob", "cleo", "dan", "eve")] == ["2", "0", "0", "2", "0"]
    told = {row["submission"]: row["grades"]["04.1"] for row in json.loads(out["json"].read_text())}
    assert [told[name]["outcome"] for name in told] == ["solved", "not solved", "not done", "solved", "missing"]
    assert told["bob"]["symptom"] and told["bob"]["said"] and told["ann"]["worth"] == 2
    suites = ElementTree.parse(out["junit"]).getroot()
    assert [suite.get("failures") for suite in suites] == ["1", "2", "2", "1", "2"]
    assert grade.main(arguments) == 0
    again = capsys.readouterr()
    assert "judged" not in again.err and again.out == said.out


def test_words_that_no_xml_has_and_a_check_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submission = Submission("ann\x00", {}, [], {"04.1": Grade("stopped", said="a\x1bb<&>\ufffe")})
    grade.write_junit(tmp_path / "x.xml", [Submission("ann", {}, [], submission.grades)])
    assert "b<&>" in (ElementTree.parse(tmp_path / "x.xml").getroot()[0][0][0].text or "")
    monkeypatch.setattr(grade, "grade", lambda *_: Grade("not judged", said="no ranks here"))
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "ann.py").write_text("%%exercise 04.1\nx")
    assert grade.main([str(tmp_path / "class")]) == 1
    assert not (tmp_path / "class" / grade.KEPT).exists(), "what couldn't be judged is judged again"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "there's no folder nowhere"),
        (["."], "has no submissions"),
        ([".", "-j", "0"], "must be above 0"),
        ([".", "--seconds", "nan"], "must be above 0"),
        ([".", "--points", "none.toml"], "none.toml"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--points" in arguments:
        (tmp_path / "ann.py").write_text("%%exercise 04.1\nx")
    assert grade.main(arguments) == 2 and says in capsys.readouterr().err


@pytest.mark.skipif(not grade.network_can_be_cut(), reason="this system doesn't let us cut the network off")
def test_answers_have_no_network_but_ranks_meet() -> None:
    away = "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 3)\nexcept OSError as error:\n"
    source = f"{away}    assert error.errno == 101, error\n{SOLUTIONS['04.1']}"
    assert grade.grade("04.1", source, Limits(seconds=60)).outcome == "solved"


# --- What students get ------------------------------------------------------------------------------------------------


def test_a_release_has_no_solutions_and_judges(tmp_path: Path) -> None:
    release = load_tool("release")
    out = tmp_path / "course"
    assert release.release(out) > 300 and not (out / "tests").exists()
    assert [path.name for path in (out / "solutions").iterdir()] == ["README.md"]
    with pytest.raises(FileExistsError):
        release.release(out)
    answer = tmp_path / "answer.py"
    answer.write_text(SOLUTIONS["04.1"])
    env = {**os.environ, "PYTHONPATH": str(out), "COURSE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "course_utils.check", "04.1", str(answer)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "solved" in done.stdout, done.stdout + done.stderr


# --- For other graders ------------------------------------------------------------------------------------------------


def test_nbgrader_and_otter_get_a_grade_for_each_exercise(tmp_path: Path) -> None:
    """The form of what they get; both were tried on a class of ten."""
    graders = load_tool("for_graders")
    worth = grade.points()
    assert (
        graders.for_nbgrader(tmp_path / "nbgrader", worth) == graders.for_otter(tmp_path / "otter", worth) == len(worth)
    )
    (path,) = (tmp_path / "nbgrader").glob("source/04_*/*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    (i,) = (i for i, cell in enumerate(cells) if cell.source.startswith("%%exercise 04.2"))
    answer, test = cells[i].metadata["nbgrader"], cells[i + 1].metadata["nbgrader"]
    assert answer["solution"] and not answer["grade"] and test["grade"] and test["locked"]
    assert test["points"] == worth["04.2"] and 'solved("04.2")' in cells[i + 1].source
    names = [cell.metadata["nbgrader"]["grade_id"] for cell in cells if "nbgrader" in cell.metadata]
    assert len(set(names)) == len(names)
    scope: dict[str, Any] = {}
    (tests,) = (tmp_path / "otter").glob("04_*/tests")
    exec((tests / "q04_3a.py").read_text(), scope)
    assert scope["test"]["points"] == worth["04.3a"] and "solved('04.3a')" in str(scope["test"])
    assert graders.main.__module__ and compile(graders.CONFIG, "nbgrader_config.py", "exec")


def test_an_exercise_counts_as_solved_by_the_last_try_of_this_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from course_utils import check

    monkeypatch.setattr(check, "_here", {"04.1": "solved", "04.2": "not solved"})
    assert check.solved("04.1") and not check.solved("04.2") and not check.solved("04.3a")
    with pytest.raises(check.UnknownExercise):
        check.solved("04.9")
