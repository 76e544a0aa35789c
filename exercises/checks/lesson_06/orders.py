"""Lesson 06, exercise 4: what becomes of lists of boxes when each stage works through its own, and how short a step
can be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

FULL = {"F": 1, "B": 2}  # units of time that a box takes
SPLIT = {"F": 1, "I": 1, "W": 1}  # a backward in two boxes: the input's gradient, and the weights'

Orders = Sequence[Sequence[str]]
_BOX = re.compile(r"([A-Z])(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class Step:
    """A step as it runs: of each stage the boxes with their starts, and how long the step takes. `stuck` are the first
    boxes that wait for ever, one of each stage that has some."""

    starts: list[list[tuple[str, int]]]
    length: int
    stuck: list[tuple[int, str]]


def parsed(box: str) -> tuple[str, int] | None:
    """("F", 3) for "F3"; None for anything that isn't a box."""
    found = _BOX.fullmatch(box)
    return (found[1], int(found[2])) if found else None


def in_flight(boxes: Sequence[str], last: str) -> int:
    """The most micro-batches that a stage holds at once, each from its F to the end of its `last` box, a B or a W."""
    most = now = 0
    for box in boxes:
        now += (box[0] == "F") - (box[0] == last)
        most = max(most, now)
    return most


def run(orders: Orders, takes: dict[str, int]) -> Step:
    """Let every stage take its boxes in order, each as soon as what it needs is there."""
    stages = len(orders)
    done: dict[tuple[str, int, int], int] = {}
    free, starts = [0] * stages, [[] for _ in range(stages)]  # type: ignore[var-annotated]
    moved = True
    while moved:
        moved = False
        for stage, boxes in enumerate(orders):
            while len(starts[stage]) < len(boxes):
                kind, i = _kind(boxes[len(starts[stage])])
                needs = _needs(kind, stage, i, stages, "I" if "I" in takes else "B")
                if not all(need in done for need in needs):
                    break
                start = max([free[stage], *(done[need] for need in needs)])
                starts[stage].append((f"{kind}{i}", start))
                free[stage] = done[kind, stage, i] = start + takes[kind]
                moved = True
    stuck = [(s, boxes[len(starts[s])]) for s, boxes in enumerate(orders) if len(starts[s]) < len(boxes)]
    return Step(starts, max(free), stuck)


def _kind(box: str) -> tuple[str, int]:
    found = parsed(box)
    assert found, box
    return found


def _needs(kind: str, stage: int, i: int, stages: int, back: str) -> list[tuple[str, int, int]]:
    """What has to be done before a box, (kind, stage, micro-batch) each. `back` is the box that the stage before waits
    for."""
    if kind == "F":
        return [("F", stage - 1, i)] if stage else []
    if kind == "W":
        return [(back, stage, i)]
    return [("F", stage, i)] + ([(back, stage + 1, i)] if stage < stages - 1 else [])


def shortest(stages: int, m: int, most: int) -> int:
    """Units of time of the best step with room for `most` micro-batches on each stage, B in one piece.

    Let C(j) be when stage 0 is done with the j-th B. Some micro-batch of the first j was begun j-th or later, so after
    C(j - most), and from its F on stage 0 to the end of its B there it's 3 for each stage: C(j) >= C(j - most) + 3
    stages. And C(j) >= 3 (stages + j - 1), since the last stage begins after stages - 1, takes 3 for each, and a B has
    2 (stages - 1) to go from there. Together that is what comes out here, and the solution reaches it.
    """
    room = min(most, stages)
    return 3 * (stages * -(-m // room) + (m - 1) % room)


def shortest_split(stages: int, m: int) -> int:
    """The same with I and W, and room for as many micro-batches as there are stages.

    The last stage begins after stages - 1, and has 3 m to do. And its last I ends at stages - 1 + 2 m or later, from
    where it's stages - 1 to stage 0, and a W.
    """
    return max(3 * m + stages - 1, 2 * m + 2 * stages - 1)


def told(step: Step, takes: dict[str, int]) -> list[str]:
    """A line for each stage: its boxes, with [3] where it waits 3 units."""
    lines = []
    for boxes in step.starts:
        now, words = 0, []
        for box, start in boxes:
            words += [f"[{start - now}]"] * (start > now) + [box]
            now = start + takes[box[0]]
        lines.append(" ".join(words))
    return lines
