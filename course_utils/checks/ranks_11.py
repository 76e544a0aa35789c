"""Lesson 11 in a process of its own: one adapter a task runs the student's function and tells what it returned."""

from __future__ import annotations

import copy
import numbers
import sys
from types import ModuleType
from typing import Any

from course_utils.checks import inside
from course_utils.checks.cases_11 import HANG_CASES, JOB_CASES, NODES_CASES, TABLE_CASES


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60} (a {type(value).__name__})"


def _whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def job(answer: ModuleType) -> None:
    function = inside.function(answer, "batch_file", "nodes", "gpus_per_node", "cpus_per_gpu", "minutes", "warn_s", "command")
    texts = []
    for *numbers_, command in JOB_CASES:
        value = function(*numbers_, list(command), doing=f"writing the file for {numbers_[0]} nodes")
        if not isinstance(value, str):
            inside.problem(f"`batch_file` returned {_shown(value)}; it must return the text of the file, a str.", "type")
        texts.append(value)
    inside.tell(texts=texts)


def hang(answer: ModuleType) -> None:
    function = inside.function(answer, "read_hang", "entered")
    found = []
    for entered, _ in HANG_CASES:
        value = function(copy.deepcopy(entered), doing=f"reading the records of {len(entered)} ranks")
        if not (isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], (list, tuple, set))):
            inside.problem(f"`read_hang` returned {_shown(value)}; it must return a word and a list of ranks.", "type")
        if not all(map(_whole, value[1])):
            inside.problem(f"`read_hang` returned the ranks {_shown(value[1])}; a rank is an int.", "type")
        found.append([value[0], [int(rank) for rank in value[1]]])
    inside.tell(found=found)


def nodes(answer: ModuleType) -> None:
    function = inside.function(answer, "choose_nodes", "step_s", "steps", "deadline_h", "budget_node_h", "queue_h")
    chosen = []
    for step_s, steps, deadline_h, budget, (fixed, each) in NODES_CASES:
        value = function(
            dict(step_s), steps, deadline_h, budget, lambda n, fixed=fixed, each=each: fixed + each * n, doing=f"choosing from {list(step_s)} nodes"
        )
        if value is not None and not _whole(value):
            inside.problem(f"`choose_nodes` returned {_shown(value)}; it must return a number of nodes, an int, or None.", "type")
        chosen.append(None if value is None else int(value))
    inside.tell(chosen=chosen)


def table(answer: ModuleType) -> None:
    rows_of = inside.function(answer, "scaling_table", "step_s", "kind")
    largest = inside.function(answer, "largest_worth", "rows", "least")
    tables, counts = [], []
    for step_s, kind, least in TABLE_CASES:
        value = rows_of(copy.deepcopy(step_s), kind, doing=f"making a table of {kind} scaling")
        ok = isinstance(value, (list, tuple)) and all(isinstance(row, (list, tuple)) and len(row) == 3 and all(map(_real, row)) for row in value)
        if not ok:
            inside.problem(f"`scaling_table` returned {_shown(value)}; it must return a list of (nodes, speed-up, efficiency), three numbers a row.", "type")
        tables.append([[float(x) for x in row] for row in value])
        right = [(int(n), float(s), float(e)) for n, s, e in value]
        count = largest(right, least, doing=f"looking for the largest run with an efficiency of {least}")
        if not _whole(count):
            inside.problem(f"`largest_worth` returned {_shown(count)}; it must return a number of nodes, an int.", "type")
        counts.append(int(count))
    inside.tell(tables=tables, counts=counts)


if __name__ == "__main__":
    {"job": job, "hang": hang, "nodes": nodes, "table": table}[sys.argv[1]](inside.load(sys.argv[2]))
