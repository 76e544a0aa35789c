"""Lesson 01: what its exercise notebook shows is what its checks judge."""

from __future__ import annotations

import inspect
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT

from course_utils.check import check_exercise, digest
from course_utils.checks.cases_01 import PAID_CASES
from course_utils.checks.lesson_01 import HANDED_OUT, first_paid

NAME = "01_torchscript_and_compile.ipynb"


def cells(kind: str) -> list[str]:
    return [cell.source for cell in nbformat.read(ROOT / "exercises" / NAME, as_version=4).cells if cell.cell_type == kind]


def handed_out() -> dict[str, str]:
    sources = [source.partition("\n") for source in cells("code") if source.startswith("%%exercise 01.")]
    return {head[-1]: body + "\n" for head, _, body in sources if head[-1] in HANDED_OUT}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_NOTEBOOK", NAME)


def test_the_five_functions_are_shown_as_they_are_judged() -> None:
    from course_utils.checks import functions_01

    shown = next(text for text in cells("markdown") if text.startswith("## 01.1"))
    without_remarks = "\n".join(line.partition("  #")[0].rstrip() for line in shown.splitlines())
    for name in "abcde":
        source = inspect.getsource(getattr(functions_01, name)).replace("  # noqa: F841", "")
        assert source in without_remarks + "\n", name


def test_the_functions_to_mend_are_known_as_they_are_handed_out() -> None:
    assert {number: digest(source) for number, source in handed_out().items()} == HANDED_OUT


@pytest.mark.parametrize(("number", "says"), [("2", "torch.jit.script does not take it"), ("3", "line 14 of the cell")])
def test_what_was_handed_out_shows_its_fault_and_is_not_done_yet(number: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_exercise(f"01.{number}", handed_out()[number], {})
    shown = " ".join(capsys.readouterr().out.split())
    assert "not done yet. This is the program as it was handed out" in shown and says in shown


@pytest.mark.parametrize("case", PAID_CASES)
def test_the_smallest_number_of_calls_is_what_counting_gives(case: tuple[int, int, int]) -> None:
    first, eager, compiled = case
    n = first_paid(*case)
    if n is None:
        assert compiled >= eager and first > eager
        return
    assert first + (n - 1) * compiled <= n * eager
    assert n == 1 or first + (n - 2) * compiled > (n - 1) * eager
