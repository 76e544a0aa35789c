"""Lesson 05, exercise 3: whether the rank, the number and the line are those of the fault."""

from __future__ import annotations

import random

from ..judging import Answer, differ
from .dumps import KINDS, Dumps, Fault, cases


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
        differ("missed", said, case=case)
    rank, number, line = got
    if fault is None:
        symptom = "sees a fault"
        if kind.startswith("two groups"):
            symptom = "groups"
        elif any(dump and dump[0]["number"] > 1 for dump in dumps):
            symptom = "forgotten"
        differ(symptom, said, how="none", case=case)
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
        differ(symptom, said, how="other", rank=rank, number=number, case=case)
    differ("line", said, line=line, case=case)
