"""Lesson 05, exercise 3: asks the student's function about made-up records. It never sees what is wrong with them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import rank_side
from .dumps import Dumps


def find(answer: ModuleType, given: list[Dumps]) -> None:
    function = rank_side.function(answer, "find_fault", "dumps")
    found: list[Any] = []
    for dumps in given:
        value = function(dumps, doing=f"reading the records of {len(dumps)} ranks")
        if value is None:
            found.append(None)
            continue
        rank_side.must_return(
            isinstance(value, (tuple, list)) and len(value) == 3, "find_fault", value, "(rank, number, line), or None"
        )
        found.append([rank_side.whole(part, "`find_fault`, in its tuple,") for part in value])
    rank_side.tell(found=found)
