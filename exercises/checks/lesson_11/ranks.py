"""Lesson 11 in a process of its own: each task runs the student's function and reports what it returned."""

from __future__ import annotations

import numbers
from types import ModuleType
from typing import Any

from .. import rank_side
from .cases import hours


def _whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def job(answer: ModuleType, given: list[list[Any]]) -> None:
    function = rank_side.function(
        answer, "batch_file", "nodes", "gpus_per_node", "cpus_per_gpu", "minutes", "warn_s", "command"
    )
    texts = []
    for *numbers_, command in given:
        value = function(*numbers_, list(command), doing=f"writing the file for {numbers_[0]} nodes")
        rank_side.must_return(isinstance(value, str), "batch_file", value, "the text of the file, a str")
        texts.append(value)
    rank_side.tell(texts=texts)


def hang(answer: ModuleType, given: list[list[tuple[int, list[str] | None]]]) -> None:
    function = rank_side.function(answer, "read_hang", "entered")
    found = []
    for pairs in given:
        entered = dict(pairs)
        value = function(entered, doing=f"reading the records of {len(entered)} ranks")
        rank_side.must_return(
            isinstance(value, (tuple, list))
            and len(value) == 2
            and isinstance(value[0], str)
            and isinstance(value[1], (list, tuple, set)),
            "read_hang",
            value,
            "a word and a list of ranks",
        )
        if not all(map(_whole, value[1])):
            rank_side.problem(f"`read_hang` returned the ranks {rank_side.shown(value[1])}; a rank is an int.", "type")
        found.append([value[0], [int(rank) for rank in value[1]]])
    rank_side.tell(found=found)


def nodes(answer: ModuleType, given: list[Any]) -> None:
    function = rank_side.function(answer, "choose_nodes", "step_s", "steps", "deadline_h", "budget_node_h", "queue_h")
    chosen = []
    for step_s, steps, deadline_h, budget, queue in given:
        waits = dict(queue) if isinstance(queue[0], list) else tuple(queue)
        value = function(
            dict(step_s),
            steps,
            deadline_h,
            budget,
            lambda n, waits=waits: hours(waits, n),
            doing=f"choosing from {[nodes for nodes, _ in step_s]} nodes",
        )
        rank_side.must_return(
            value is None or _whole(value), "choose_nodes", value, "a number of nodes, an int, or None"
        )
        chosen.append(None if value is None else int(value))
    rank_side.tell(chosen=chosen)


def table(answer: ModuleType, given: list[Any]) -> None:
    rows_of = rank_side.function(answer, "scaling_table", "step_s", "kind")
    largest = rank_side.function(answer, "largest_worth", "rows", "least")
    tables, counts = [], []
    for step_s, kind, least, rows in given:
        value = rows_of(dict(step_s), kind, doing=f"making a table of {kind} scaling")
        ok = isinstance(value, (list, tuple)) and all(
            isinstance(row, (list, tuple)) and len(row) == 3 and all(map(_real, row)) for row in value
        )
        rank_side.must_return(
            ok, "scaling_table", value, "a list of (nodes, speed-up, efficiency), three numbers a row"
        )
        tables.append([[float(x) for x in row] for row in value])
        count = largest(
            [tuple(row) for row in rows], least, doing=f"looking for the largest run with an efficiency of {least}"
        )
        rank_side.must_return(_whole(count), "largest_worth", count, "a number of nodes, an int")
        counts.append(int(count))
    rank_side.tell(tables=tables, counts=counts)
