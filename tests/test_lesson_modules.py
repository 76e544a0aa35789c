"""`import lesson_04` in a notebook: from wherever the notebook lies, and what is said where there is no such module."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT
from kernels import Kernel, own_kernel  # noqa: F401

from course_utils.cells import lesson_modules


def finders() -> int:
    return sum(isinstance(finder, lesson_modules.LessonFinder) for finder in sys.meta_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In place of the course's notebooks/, and a working folder next to it; lessons have numbers that are free."""
    monkeypatch.setattr(lesson_modules, "FOLDER", tmp_path / "notebooks")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    lesson_modules.add()
    yield tmp_path / "notebooks"
    lesson_modules.remove()
    for name in [name for name in sys.modules if name.startswith(("lesson_97", "lesson_98"))]:
        del sys.modules[name]


def test_a_notebook_in_another_folder_imports_the_module_of_its_lesson(own_kernel: Kernel) -> None:  # noqa: F811
    """As a copy in a learner's home: the kernel works there, and what it launches is kept there."""
    first = own_kernel.run("import lesson_08")
    assert first.error == ("ModuleNotFoundError", "No module named 'lesson_08'"), "before the extension is loaded"
    for line in ("%load_ext course_utils", "%load_ext course_utils", "%reload_ext course_utils"):
        cell = own_kernel.run(f"{line}\nfrom course_utils import predict\nimport lesson_08")
        assert cell.error is None, cell.error
    assert Path(own_kernel.ask("lesson_08.__file__")) == ROOT / "notebooks" / "lesson_08" / "__init__.py"
    shown = own_kernel.run("lesson_08.loss_scale([1.0, 2.0], [False, False])")
    assert shown.value is not None and shown.value.startswith("The loss scale goes from 1 to 2"), shown.error

    (own_kernel.work / "lesson_05.py").write_text("answer = 42\n")
    (own_kernel.work / "lesson_06").mkdir()
    assert own_kernel.run("import lesson_05, lesson_06").error is None
    assert own_kernel.ask("lesson_05.answer") == 42, "a learner's own file wins"
    assert own_kernel.ask("hasattr(lesson_06, 'schedule')"), "and a mere folder of that name hides nothing"

    assert own_kernel.run("%unload_ext course_utils\nlesson_08.loss_scale").error is None
    last = own_kernel.run("import lesson_09")
    assert last.error == ("ModuleNotFoundError", "No module named 'lesson_09'")


def test_a_lesson_may_have_a_folder_in_place_of_a_file(folder: Path) -> None:
    (folder / "lesson_98").mkdir()
    (folder / "lesson_98" / "__init__.py").write_text("from .ring import draw\n")
    (folder / "lesson_98" / "ring.py").write_text("def draw():\n    return 'drawn'\n")
    assert importlib.import_module("lesson_98").draw() == "drawn"
    assert importlib.import_module("lesson_98.ring").draw() == "drawn"


def test_a_copy_of_the_notebooks_needs_nothing_from_the_course_around_it(tmp_path: Path) -> None:
    """As in a learner's folder, and in JupyterLab's: each lesson's module there finds all its files."""
    copy = tmp_path / "notebooks"
    shutil.copytree(ROOT / "notebooks", copy, ignore=shutil.ignore_patterns("__pycache__"))
    names = sorted(path.stem for path in copy.glob("lesson_*"))
    assert len(names) >= 9
    lines = [f"import {name}; print({name}.__file__)" for name in names]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [str(copy) in line for line in done.stdout.splitlines()] == [True] * len(names), done.stdout


def test_only_modules_of_lessons_are_found(folder: Path) -> None:
    for name in ("lesson_98", "train_of_mine", "lesson_980", "my_lesson_98"):
        (folder / f"{name}.py").write_text("")
    assert find_spec("lesson_98") is not None
    assert [find_spec(name) for name in ("train_of_mine", "lesson_980", "my_lesson_98")] == [None] * 3


def test_it_comes_once_and_goes_again(folder: Path) -> None:
    lesson_modules.add()
    lesson_modules.add()
    assert finders() == 1
    lesson_modules.remove()
    lesson_modules.remove()
    assert finders() == 0 and find_spec("lesson_98") is None


def test_a_module_that_is_not_there_is_named_with_those_that_are(folder: Path) -> None:
    (folder / "lesson_98.py").write_text("")
    with pytest.raises(ModuleNotFoundError, match=r"no lesson_97 in .*notebooks, which has lesson_98; does") as error:
        importlib.import_module("lesson_97")
    assert error.value.name == "lesson_97"


def test_a_course_without_its_notebooks_says_so(folder: Path) -> None:
    """As where the package was installed from a wheel."""
    folder.rmdir()
    with pytest.raises(ModuleNotFoundError, match="the notebooks aren't in .*; use the package from a checkout of the"):
        importlib.import_module("lesson_98")
    assert finders() == 1, "everything else of the extension works"


def test_an_error_inside_a_module_is_shown_as_it_is(folder: Path) -> None:
    (folder / "lesson_98.py").write_text("import not_there_at_all\n")
    with pytest.raises(ModuleNotFoundError, match="^No module named 'not_there_at_all'$"):
        importlib.import_module("lesson_98")
