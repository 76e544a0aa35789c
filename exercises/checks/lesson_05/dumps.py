"""Lesson 05, exercise 3: made-up records of the last collectives of some ranks, and what is wrong with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Entry = dict[str, Any]
Dumps = list[list[Entry]]
Fault = tuple[int, int, int]  # rank, number, line

LINES = {"all_reduce": 41, "all_gather": 57, "broadcast": 23, "barrier": 88, "reduce_scatter": 64}
OTHER_LINES = {"all_reduce": 112, "barrier": 131}


def entry(number: int, op: str, size: int, line: int | None = None, group: str = "all") -> Entry:
    return {
        "group": group,
        "number": number,
        "op": op,
        "sizes": [] if op == "barrier" else [[size]],
        "file": "train.py",
        "line": LINES[op] if line is None else line,
    }


def epoch(draw: random.Random, length: int, group: str = "all") -> list[Entry]:
    """What every rank should call: mostly all-reduces of a few sizes."""
    found = [entry(1, "broadcast", 4096, group=group)]
    for number in range(2, length + 1):
        op = draw.choices(["all_reduce", "all_gather", "reduce_scatter"], [6, 1, 1])[0]
        found.append(entry(number, op, draw.choice([512, 1024, 2048]), group=group))
    return found


def _renumbered(calls: list[Entry]) -> list[Entry]:
    return [{**call, "number": number} for number, call in enumerate(calls, 1)]


def nothing(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    """All agree. One rank takes another branch to the same call, which is no fault."""
    dumps = [[dict(call) for call in calls] for _ in range(ranks)]
    at = next(k for k, call in enumerate(calls) if call["op"] == "all_reduce")
    dumps[draw.randrange(ranks)][at] |= {"line": OTHER_LINES["all_reduce"], "file": "evaluate.py"}
    return dumps, None


def other_size(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    rank, at = draw.randrange(ranks), draw.randrange(3, len(calls))
    dumps = [[dict(call) for call in calls[: at + 1]] for _ in range(ranks)]
    dumps[rank][at] = entry(at + 1, calls[at]["op"], 777, line=OTHER_LINES["all_reduce"])
    return dumps, (rank, at + 1, OTHER_LINES["all_reduce"])


def other_shape(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    """As many numbers in another shape, or only the second of two tensors differs; the rank stops there, and the others
    went on."""
    rank, at = draw.randrange(ranks), draw.randrange(3, len(calls) - 2)
    usual, odd = draw.choice([([[1024]], [[2, 512]]), ([[64], [8]], [[64], [9]]), ([[4], [8]], [[8], [4]])])
    dumps = [[dict(call) for call in calls[: at + 3]] for _ in range(ranks)]
    for own in dumps:
        own[at] = {**entry(at + 1, "all_gather", 0), "sizes": usual}
    dumps[rank] = [*dumps[rank][:at], {**entry(at + 1, "all_gather", 0, line=OTHER_LINES["all_reduce"]), "sizes": odd}]
    return dumps, (rank, at + 1, OTHER_LINES["all_reduce"])


def in_a_part(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    """The group with the fault has only the last ranks, and the others are idle, or in a group that agrees."""
    outside = draw.randrange(1, 3)
    dumps, fault = draw.choice([other_size, ended, alone])(draw, calls, max(3, ranks - outside))
    assert fault is not None
    idle = [[entry(k, "barrier", 0, group="all") for k in range(1, 3)] for _ in range(outside)]
    own = [[{**call, "group": "last"} for call in dump] for dump in dumps]
    return [*idle, *own], (fault[0] + outside, *fault[1:])


def ended(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    """A rank calls nothing more."""
    rank, at = draw.randrange(ranks), draw.randrange(3, len(calls))
    dumps = [[dict(call) for call in calls[: at + 1]] for _ in range(ranks)]
    del dumps[rank][at]
    return dumps, (rank, at + 1, 0)


def alone(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    """Only one rank calls a metric's all-reduce, and from there on it's one ahead: everything after it differs, too."""
    rank, at = draw.randrange(ranks), draw.randrange(3, len(calls) - 2)
    extra = [*calls[:at], entry(0, "all_reduce", 1, line=OTHER_LINES["all_reduce"]), *calls[at:]]
    dumps = [[dict(call) for call in (_renumbered(extra) if r == rank else calls)] for r in range(ranks)]
    return dumps, (rank, at + 1, OTHER_LINES["all_reduce"])


def skipped(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    """All calls look alike, a rank leaves out one of them, and meets the others' next with its barrier."""
    rank, many = draw.randrange(ranks), draw.randrange(6, 14)
    alike = [entry(k, "all_reduce", 1024) for k in range(1, many + 1)]
    short = _renumbered([*alike[:-1], entry(0, "barrier", 0)])
    dumps = [[dict(call) for call in (short if r == rank else alike)] for r in range(ranks)]
    return dumps, (rank, many, LINES["barrier"])


def two_groups(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    """Some ranks have a group of their own, whose collectives have numbers of their own; the fault is in one of the
    groups."""
    dumps, fault = draw.choice([other_size, ended, nothing])(draw, calls, ranks)
    members = sorted(draw.sample(range(ranks), max(2, ranks - 1)))
    own = epoch(draw, draw.randrange(4, 9), group="pair")
    for rank in members:
        mixed = [(draw.random(), k, 0) for k in range(len(dumps[rank]))]
        order = sorted(x for x, _, _ in mixed)
        merged = [(x, dumps[rank][k]) for k, x in enumerate(order)]
        times = sorted(draw.random() for _ in own)
        merged += [(x, dict(call)) for x, call in zip(times, own, strict=True)]
        dumps[rank] = [call for _, call in sorted(merged, key=lambda pair: pair[0])]
    return dumps, fault


def forgotten(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    """The recorder keeps only the last calls, on each rank another number of them."""
    dumps, fault = draw.choice([other_size, ended, alone, nothing])(draw, calls, ranks)
    until = fault[1] - 2 if fault else len(calls) // 2
    return [dump[draw.randrange(max(1, until)) :] for dump in dumps], fault


def one_group_begins_late(draw: random.Random, calls: list[Entry], ranks: int) -> tuple[Dumps, Fault | None]:
    """All agree. One rank's oldest call that it remembers is number 1 of one group, and of the other group it remembers
    only later numbers."""
    pair = epoch(draw, draw.randrange(3, 6), group="pair")
    at = draw.randrange(4, len(calls) - 2)
    dumps = [[dict(call) for call in (*calls[:at], *pair, *calls[at:])] for _ in range(ranks)]
    rank = draw.randrange(ranks)
    dumps[rank] = dumps[rank][at:]
    return dumps, None


KINDS: dict[str, Callable[[random.Random, list[Entry], int], tuple[Dumps, Fault | None]]] = {
    "a tensor of another size": other_size,
    "a tensor of another shape": other_shape,
    "a rank that calls nothing more": ended,
    "a group of the last ranks": in_a_part,
    "a call on one rank only": alone,
    "a call left out": skipped,
    "no fault": nothing,
    "two groups": two_groups,
    "records that begin at different numbers": forgotten,
    "two groups, and a rank that remembers more of one": one_group_begins_late,
}


def cases(draw: random.Random) -> list[tuple[str, Dumps, Fault | None]]:
    """Of each kind some, on 3 to 6 ranks."""
    found = []
    for kind, make in KINDS.items():
        for _ in range(5):
            calls = epoch(draw, draw.randrange(9, 16))
            found.append((kind, *make(draw, calls, draw.randrange(3, 7))))
    return found
