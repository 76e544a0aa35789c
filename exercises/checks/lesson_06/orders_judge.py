"""Lesson 06, exercise 4: whether lists of boxes can be worked through, within the memory, and in how short a time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..judging import Answer, Got, require, some
from .cases import bubble_cases, order_cases
from .orders import FULL, SPLIT, Orders, Step, in_flight, run, shortest, shortest_split, told

SHOWN = 24  # boxes of a stage; longer lists are cut


def judge_orders(answer: Answer) -> list[str]:
    draw = random.Random()
    given: dict[str, Any] = {"orders": order_cases(draw), "zero_bubble": bubble_cases(draw)}
    found = answer.on_ranks("orders", ranks=1, given=given)[0]
    limited = [(_case(*asked), *asked, lists) for asked, lists in zip(given["orders"], found["orders"], strict=True)]
    split = [
        (f"with W boxes: {_case(stages, m, stages)}", stages, m, lists)
        for (stages, m), lists in zip(given["zero_bubble"], found["zero_bubble"], strict=True)
    ]
    for case, stages, m, most, orders in limited:
        _valid(orders, stages, m, FULL, case)
        _memory(orders, most, "B", case)
    for case, _, m, most, orders in limited:
        _length(orders, m, most, case)
    require(any(found["zero_bubble"]), "half done")
    for case, stages, m, orders in split:
        _valid(orders, stages, m, SPLIT, case)
        _memory(orders, stages, "W", case)
    at_once = all(_at_once(boxes, m) for _, _, m, orders in split for boxes in orders)
    for case, _, m, orders in split:
        _length_split(orders, m, at_once, case)
    return [
        (
            f"{len(given['orders'])} steps of 1 to 12 stages: nobody waits for ever, no stage holds more than it has"
            " room for"
        ),
        "each is as short as any order can make it",
        f"{len(given['zero_bubble'])} steps with W boxes, in the memory of 1F1B: as short as can be, too",
    ]


def _case(stages: int, m: int, most: int) -> str:
    return f"{_many(stages, 'stage')}, {_many(m, 'micro-batch')}, room for {most}"


def _many(n: int, what: str) -> str:
    return f"{n} {what}{('es' if what.endswith('ch') else 's') * (n > 1)}"


def _by_stage(lines: list[str]) -> list[Got]:
    return [(f"stage {stage}", line) for stage, line in enumerate(lines)]


def _cut(words: list[str]) -> str:
    return " ".join(words[:SHOWN]) + " ..." * (len(words) > SHOWN)


def _valid(orders: Orders, stages: int, m: int, takes: dict[str, int], case: str) -> None:
    """Every stage has each box once, in an order that can be worked through."""
    got = _by_stage([_cut(list(boxes)) for boxes in orders])
    require(len(orders) == stages, "stages", found=len(orders), stages=stages, case=case)
    wanted = {f"{kind}{i}" for kind in takes for i in range(m)}
    in_words = ", ".join(f"{kind}0 to {kind}{m - 1}" for kind in takes)
    for stage, boxes in enumerate(orders):
        counted = Counter(boxes)
        wrong = {
            "others": counted.keys() - wanted,
            "twice": {box for box, n in counted.items() if n > 1},
            "lacking": wanted - counted.keys(),
        }
        for how, these in wrong.items():
            named = some(sorted(these))
            require(not these, "boxes", got, how=how, stage=stage, boxes=named, wanted=in_words, case=case)
        place = {box: at for at, box in enumerate(boxes)}
        for before, after in pairwise(takes):
            for a, b in ((f"{before}{i}", f"{after}{i}") for i in range(m)):
                require(place[a] < place[b], "too early", got, stage=stage, before=a, after=b, case=case)
    stuck = run(orders, takes).stuck
    at = ", ".join(f"stage {stage} {'is stuck ' * (i == 0)}at {box}" for i, (stage, box) in enumerate(stuck[:3]))
    require(not stuck, "deadlock", got, at=at, case=case)


def _memory(orders: Orders, most: int, last: str, case: str) -> None:
    held = [in_flight(boxes, last) for boxes in orders]
    by_b = last == "W" and all(in_flight(boxes, "I") <= most for boxes in orders)
    symptom = "memory until W" if by_b else "memory"
    got = _by_stage([f"up to {n}: {_cut(list(boxes))}" for n, boxes in zip(held, orders, strict=True)])
    for stage, n in enumerate(held):
        require(n <= most, symptom, got, stage=stage, held=n, most=most, last=last, case=case)


def _length(orders: Orders, m: int, most: int, case: str) -> None:
    stages, step = len(orders), run(orders, FULL)
    best = shortest(stages, m, most)
    held = max(in_flight(boxes, "B") for boxes in orders)
    first = [box[0] for box in orders[0]]
    room = min(most, m)
    groups = "F" * room + "B" * room
    symptom = "too long"
    if held == 1:
        symptom = "one at a time"
    elif "".join(first).startswith(groups + "F") and room > 1:
        symptom = "in groups"
    elif most < stages:
        symptom = "little room"
    require(step.length == best, symptom, _waits(step, FULL), length=step.length, best=best, case=case)


def _at_once(boxes: Sequence[str], m: int) -> bool:
    """Whether each W comes right after its I."""
    pairs = set(zip(boxes, boxes[1:], strict=False))
    return all((f"I{i}", f"W{i}") in pairs for i in range(m))


def _length_split(orders: Orders, m: int, at_once: bool, case: str) -> None:
    stages, step = len(orders), run(orders, SPLIT)
    best = shortest_split(stages, m)
    symptom = "W at once" if at_once else "W elsewhere"
    require(step.length == best, symptom, _waits(step, SPLIT), length=step.length, best=best, case=case)


def _waits(step: Step, takes: dict[str, int]) -> list[Got]:
    lines = _by_stage([_cut(line.split()) for line in told(step, takes)])
    return [*lines, "[3] means that the stage waits 3 units"]
