"""Lesson 09 on the ranks: each task runs the student's functions and reports what it saw."""

from __future__ import annotations

import numbers
from types import ModuleType
from typing import Any

from .. import rank_side

# --- 09.3 to 09.5: no ranks needed ------------------------------------------------------------------------------------


def choose(answer: ModuleType, given: list[Any]) -> None:
    function = rank_side.function(answer, "choose", "kept_bytes", "input_bytes", "forward_s", "limit_bytes")
    chosen: list[list[int] | None] = []
    for kept, inputs, seconds, limit in given:
        value = function(kept, inputs, seconds, limit, doing=f"choosing among {len(kept)} blocks")
        if isinstance(value, (set, frozenset)):
            value = sorted(value)
        if value is not None and (
            not isinstance(value, (list, tuple))
            or not all(isinstance(i, numbers.Integral) and not isinstance(i, bool) for i in value)
        ):
            rank_side.problem(
                f"`choose` returned {rank_side.shown(value)}; it must return a list of indices, or None.", "type"
            )
        chosen.append(None if value is None else [int(i) for i in value])
    rank_side.tell(chosen=chosen)


def often(answer: ModuleType, given: dict[str, Any]) -> None:
    again = rank_side.function(answer, "done_again", "step", "every")
    every = rank_side.function(answer, "save_every", "step_s", "save_s", "failure_s")
    repeated = [
        rank_side.whole(again(*case, doing=f"asking what a kill at step {case[0]} costs"), "`done_again`")
        for case in given["again"]
    ]
    numbers_ = [
        rank_side.whole(every(*case, doing="asking how often to save"), "`save_every`") for case in given["every"]
    ]
    rank_side.tell(repeated=repeated, numbers=numbers_)


def program(answer: ModuleType, given: list[list[float]]) -> None:
    """Asks for the program that made each curve."""
    function = rank_side.function(answer, "program", "curve")
    found: list[str] = []
    for curve in given:
        value = function(curve, doing=f"looking at a curve of {len(curve)} numbers")
        rank_side.must_return(isinstance(value, str), "program", value, "one of the four names, a str")
        found.append(str(value))
    rank_side.tell(programs=found)
