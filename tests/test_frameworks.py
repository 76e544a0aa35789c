"""Lesson 12 with and without Lightning and TensorFlow: it says what is missing, and nothing fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Descendants, skip_or_fail
from test_notebooks import check, run_notebook, show

from course_utils.cells.magic import ranks
from course_utils.check import check_exercise, lesson_exercises
from course_utils.machine.optional_packages import EXTRAS, missing

NOTEBOOKS = [path for folder in ("notebooks", "exercises", "solutions") for path in (ROOT / folder).glob("12_*.ipynb")]
LESSON, SOLUTION = (next(p for p in NOTEBOOKS if p.parent.name == folder) for folder in ("notebooks", "solutions"))
# Python imports this file by itself when its folder is on the path.
BLOCKER = """from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec

def without(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {names!r} else find_spec(name, path, target)

PathFinder.find_spec = classmethod(without)
"""


def without(folder: Path, *names: str) -> dict[str, str]:
    """An environment where Python doesn't find these packages."""
    parts = {"lightning": ["pytorch_lightning"], "tensorflow": ["keras"], "accelerate": []}  # which go with them
    hidden = tuple(part for name in names for part in (name, *parts[name]))
    (folder / "sitecustomize.py").write_text(BLOCKER.format(names=hidden))
    return {"PYTHONPATH": str(folder)}


def test_a_package_that_is_missing_is_named_with_its_cure(tmp_path: Path) -> None:
    code = "from course_utils.machine.optional_packages import missing\n"
    code += "for name in ('tensorflow', 'lightning'): print(missing(name))"
    env = without(tmp_path, *EXTRAS) | {"PATH": "/usr/bin:/bin"}
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    tensorflow, lightning = answer.stdout.splitlines()
    assert tensorflow.startswith("needs TensorFlow") and "pip install tensorflow-cpu" in tensorflow
    assert lightning.startswith("needs Lightning") and "make lab FRAMEWORKS=yes" in lightning


def test_a_cell_that_needs_what_is_missing_is_kept_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setattr("course_utils.cells.magic.missing", lambda name: f"needs {name}")
    namespace: dict[str, object] = {}
    assert ranks("2 --needs lightning --file lit.py -o run", "import lightning\n", namespace) is None
    assert namespace == {"run": None} and "not run: it needs lightning" in capsys.readouterr().out
    assert list(tmp_path.rglob("lit.py"))


@pytest.mark.parametrize("name", [name for name, e in lesson_exercises("12").items() if e.needs])
def test_an_exercise_says_what_it_needs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setattr("course_utils.check.missing", lambda package: f"needs {package}, which is not installed")
    check_exercise(name, "x = 1\n")
    assert (
        capsys.readouterr()
        .out.strip()
        .endswith(f"not checked here, it needs {lesson_exercises('12')[name].needs}, which is not installed.")
    )


@pytest.mark.slow
@pytest.mark.notebooks
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if p != LESSON], ids=lambda path: path.parent.name)
def test_exercises_run_with_the_frameworks(
    path: Path, tmp_path: Path, descendants: Descendants, request: pytest.FixtureRequest
) -> None:
    """The lesson itself runs with them in the browser."""
    if lacking := [why for name in EXTRAS if (why := missing(name))]:
        skip_or_fail("; ".join(lacking))
    outcome = run_notebook(path, tmp_path, descendants)
    show(request, path, outcome)
    check(path, outcome)


@pytest.mark.slow
@pytest.mark.notebooks
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "path, absent",
    [(LESSON, ("tensorflow",)), (LESSON, tuple(EXTRAS)), (SOLUTION, tuple(EXTRAS))],
    ids=["notebooks-tensorflow", "notebooks-both", "solutions-both"],
)
def test_lesson_runs_without(
    path: Path, absent: tuple[str, ...], tmp_path: Path, descendants: Descendants, request: pytest.FixtureRequest
) -> None:
    outcome = run_notebook(path, tmp_path, descendants, without(tmp_path, *absent))
    show(request, path, outcome)
    check(path, outcome)
    if path == LESSON:
        skipped = [c for c in outcome.claims if c["status"] == "skipped"]
        named = [EXTRAS[name][0] for name in absent]
        assert skipped and all(any(name in c["detail"] for name in named) for c in skipped), skipped
