"""Lesson 05, exercise 3: whether the rank, the number and the line are those of the fault."""

from __future__ import annotations

import random

from ..judging import Answer, Difference
from .dumps import KINDS, Dumps, Fault, cases

EXPECTED = "(rank, number, line) of the first collective in which one rank differs from the others"


def judge_dumps(answer: Answer) -> list[str]:
    asked = cases(random.Random())
    told = answer.on_ranks("dumps_ranks.find", ranks=1, given=[dumps for _, dumps, _ in asked])[0]["found"]
    for (kind, dumps, fault), got in zip(asked, told, strict=True):
        if (tuple(got) if got else None) != fault:
            _differs(kind, dumps, fault, tuple(got) if got else None)
    return [
        f"{len(asked)} records of 3 to 6 ranks, of {len(KINDS)} kinds: the right rank, number and line in each",
        f"{sum(fault is None for _, _, fault in asked)} of them without a fault, and none was found there",
    ]


def _differs(kind: str, dumps: Dumps, fault: Fault | None, got: tuple[int, ...] | None) -> None:
    case = f"{kind}, {len(dumps)} ranks"
    said = [f"the answer: {got}", f"right: {fault}"]
    if got is None:
        raise Difference("missed", f"The answer finds no fault, and there is one ({case}).", EXPECTED, said)
    rank, number, line = got
    if fault is None:
        symptom = "sees a fault"
        if kind.startswith("two groups"):
            symptom = "groups"
        elif any(dump and dump[0]["number"] > 1 for dump in dumps):
            symptom = "forgotten"
        raise Difference(symptom, f"The answer finds a fault, and all ranks agree ({case}).", "None", said)
    if (rank, number) != fault[:2]:
        if kind.startswith("two groups") or kind == "a group of the last ranks":
            symptom = "groups"
        elif any(dump and dump[0]["number"] > number for dump in dumps) or kind.startswith("records"):
            symptom = "forgotten"
        elif number > fault[1]:
            symptom = "a consequence"
        elif number != fault[1]:
            symptom = "number"
        else:
            symptom = "rank"
        raise Difference(symptom, f"The answer blames rank {rank} at number {number} ({case}).", EXPECTED, said)
    raise Difference("line", f"The rank and the number are right, and line {line} isn't ({case}).", EXPECTED, said)
