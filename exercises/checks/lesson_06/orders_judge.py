"""Lesson 06, exercise 4: whether lists of boxes can be worked through, within the memory, and in how short a time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..judging import Answer, Difference, Got, some
from .cases import bubble_cases, order_cases
from .orders import FULL, SPLIT, Orders, in_flight, parsed, run, shortest, shortest_split, told

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
    if not any(found["zero_bubble"]):
        raise Difference(
            "half done",
            "`orders` is solved: each step is as short as any order can make it. `zero_bubble` returns no lists yet.",
            "a list for each stage, with F, I and W boxes",
        )
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
    if len(orders) != stages:
        raise Difference(
            "stages", f"The answer has {_many(len(orders), 'list')} ({case}).", f"{stages}: one for each stage"
        )
    wanted = {f"{kind}{i}" for kind in takes for i in range(m)}
    for stage, boxes in enumerate(orders):
        counted = Counter(boxes)
        lacking, others = sorted(wanted - counted.keys()), sorted(counted.keys() - wanted)
        twice = sorted(box for box, n in counted.items() if n > 1)
        if lacking or others or twice:
            what = (
                f"lists {some(others)}, and this step has no such box"
                if others
                else f"has {some(twice)} more than once"
                if twice
                else f"lacks {some(lacking)}"
            )
            expected = f"{', '.join(f'{kind}0 to {kind}{m - 1}' for kind in takes)}, each once"
            raise Difference("boxes", f"Stage {stage} {what} ({case}).", expected, got)
        place = {parsed(box): at for at, box in enumerate(boxes)}
        kinds = list(takes)
        for before, after in zip(kinds, kinds[1:], strict=False):
            if wrong := [i for i in range(m) if place[after, i] < place[before, i]]:
                raise Difference(
                    "too early",
                    f"Stage {stage} has {after}{wrong[0]} before {before}{wrong[0]} ({case}).",
                    f"{before}{wrong[0]} comes first: it makes what {after}{wrong[0]} needs",
                    got,
                )
    if stuck := run(orders, takes).stuck:
        at = ", ".join(f"stage {stage} {'is stuck ' * (i == 0)}at {box}" for i, (stage, box) in enumerate(stuck[:3]))
        raise Difference(
            "deadlock",
            f"From some point on nobody works: {at} ({case}).",
            "lists in which there's always a stage that can go on",
            got,
        )


def _memory(orders: Orders, most: int, last: str, case: str) -> None:
    held = [in_flight(boxes, last) for boxes in orders]
    if max(held) <= most:
        return
    stage = next(s for s, n in enumerate(held) if n > most)
    by_b = last == "W" and all(in_flight(boxes, "I") <= most for boxes in orders)
    raise Difference(
        "memory until W" if by_b else "memory",
        f"Stage {stage} holds {held[stage]} micro-batches at once ({case}).",
        f"at most {most} between F and the end of {last}",
        _by_stage([f"up to {n}: {_cut(list(boxes))}" for n, boxes in zip(held, orders, strict=True)]),
    )


def _length(orders: Orders, m: int, most: int, case: str) -> None:
    stages, step = len(orders), run(orders, FULL)
    best = shortest(stages, m, most)
    if step.length == best:
        return
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
    raise Difference(
        symptom,
        f"The step takes {step.length} units ({case}).",
        f"{best} units, which another order reaches",
        _by_stage([_cut(line.split()) for line in told(step, FULL)]) + ["[3] means that the stage waits 3 units"],
    )


def _at_once(boxes: Sequence[str], m: int) -> bool:
    """Whether each W comes right after its I."""
    pairs = set(zip(boxes, boxes[1:], strict=False))
    return all((f"I{i}", f"W{i}") in pairs for i in range(m))


def _length_split(orders: Orders, m: int, at_once: bool, case: str) -> None:
    stages, step = len(orders), run(orders, SPLIT)
    best = shortest_split(stages, m)
    if step.length == best:
        return
    raise Difference(
        "W at once" if at_once else "W elsewhere",
        f"The step takes {step.length} units ({case}).",
        f"{best} units, which another order reaches",
        _by_stage([_cut(line.split()) for line in told(step, SPLIT)]) + ["[3] means that the stage waits 3 units"],
    )
