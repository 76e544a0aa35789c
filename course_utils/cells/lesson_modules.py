"""Lets a notebook import the module of its lesson: `import lesson_04` finds `notebooks/lesson_04.py`, also from a copy
of the notebook in another folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from ..folders import COURSE

FOLDER = COURSE / "notebooks"


class LessonFinder(MetaPathFinder):
    """Finds `lesson_NN` as if the course's `notebooks/` came last in `sys.path`: a learner's own `lesson_04.py` next to
    the notebook wins.

    It isn't really in `sys.path`, which would offer whatever else learners save next to the lessons, and could not say
    why a module isn't there.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises ModuleNotFoundError, in a sentence, for a lesson that has no module."""
        if not re.fullmatch(r"lesson_\d\d", fullname):
            return None
        spec = PathFinder.find_spec(fullname, [*sys.path, str(FOLDER)], target)
        if spec is None or spec.origin is None:  # a mere folder of that name, where a learner keeps things
            raise ModuleNotFoundError(_why_not(fullname), name=fullname)
        return spec


def add() -> None:
    """What `%load_ext course_utils` does; a second time changes nothing."""
    remove()
    sys.meta_path.insert(0, LessonFinder())  # Python's own would take a learner's folder of that name for the module


def remove() -> None:
    """What `%unload_ext course_utils` does. A module that was imported stays with those who have it."""
    # By name, for the package may have been imported anew since.
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != LessonFinder.__name__]


def _why_not(name: str) -> str:
    number = name.removeprefix("lesson_")
    if not FOLDER.is_dir():
        return (
            f"{name} comes with the notebook of lesson {number}, and the notebooks aren't in {FOLDER}; use the package"
            " from a checkout of the course"
        )
    known = sorted({file.stem for file in FOLDER.glob("lesson_[0-9][0-9]*")})
    return (
        f"there is no {name} in {FOLDER}, which has {', '.join(known) or 'none'}; does this notebook come from another"
        " version of the course?"
    )
