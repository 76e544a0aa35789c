"""The skeleton that `tools/new_lesson.py` writes: in the form of the others, and it runs."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT, load_tool

new_lesson, navigation = load_tool("new_lesson"), load_tool("navigation")


@pytest.fixture
def course(tmp_path: Path) -> Path:
    for folder in ("notebooks", "solutions", "exercises"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "notebooks" / "glossary.md", tmp_path / "notebooks")
    return tmp_path


def write(course: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["new_lesson.py", *words])
    new_lesson.main(course)


def test_a_new_lesson_has_the_form_of_the_others(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(course, monkeypatch, "13", "Sequence & context parallelism", "What if one sequence doesn't fit?")
    path = course / "notebooks" / "13_sequence_context_parallelism.ipynb"
    (lesson,) = navigation.lessons(course)
    assert (lesson.number, lesson.title, lesson.minutes) == ("13", "Sequence & context parallelism", 45)
    assert lesson.question == "What if one sequence doesn't fit?" and f"notebooks/{path.name}" == lesson.path
    assert len(lesson.core) == 4 and lesson.solutions_path
    cells = nbformat.read(path, as_version=4).cells
    minutes = [int(m) for cell in cells for m in re.findall(r"(?m)^## .+\n+\*(\d+) minutes", cell.source)]
    assert sum(minutes) == lesson.minutes
    assert (course / "notebooks" / "lesson_13" / "__init__.py").exists()
    program = next(cell.source for cell in cells if cell.source.startswith("%%ranks"))
    compile(program.partition("\n")[2], "cell", "exec")
    assert navigation.generate(course) and not navigation.generate(course, check=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("4", "T", "Q?"), "two digits"),
        (("13", "T", "No question"), "question mark"),
        (("12", "Again", "Why?"), "there is a lesson 12 already"),
    ],
)
def test_what_cannot_be_is_refused(
    course: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    (course / "notebooks" / "12_there.ipynb").write_text("{}")
    with pytest.raises(SystemExit):
        write(course, monkeypatch, *words)
    assert said in capsys.readouterr().err
    assert [path.name for path in (course / "notebooks").glob("*.ipynb")] == ["12_there.ipynb"]
