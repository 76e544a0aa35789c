"""Lesson 05: what its exercises ask for, and how to tell that an answer doesn't do it."""

from __future__ import annotations

import math
import random
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Exercise, by_rank, differ, require, some
from .cases import sum_cases
from .convert_judge import judge_convert
from .dumps_judge import judge_dumps
from .hook_judge import judge_hook

# --- 05.4: a sum in few messages --------------------------------------------------------------------------------------


def judge_few_messages(answer: Answer) -> list[str]:
    cases = sum_cases(random.Random())
    told = answer.on_ranks("few_messages", ranks=max(ranks for ranks, _, _ in cases), given=cases)
    for i, (ranks, shape, dtype) in enumerate(cases):
        seen = [told[rank]["cases"][i] for rank in range(ranks)]
        case = f"a tensor of shape {shape} and type {dtype} on {counted(ranks, 'rank')}"
        _no_library(seen, case)
        _sum_everywhere(seen, case, list(shape), dtype)
        require(all(s["beside"] for s in seen), "beside", case=case)
        _messages(seen, ranks, math.prod(shape), case)
    return [
        (
            f"{len(cases)} tensors of 1 to 20,000 numbers on 1, 2, 4 and 8 ranks: every rank holds the sum, in the"
            " tensor that it passed"
        ),
        "2 log2(n) messages from every rank, with 2 (n - 1) / n times the tensor in all, and no collective",
    ]


def _no_library(seen: list[dict[str, Any]], case: str) -> None:
    others = sorted({name for s in seen for name in s["others"]})
    require(not others, "library", others=some(others), case=case)


def _right(got: dict[str, Any], wanted: list[Any], shape: list[int], dtype: str, off: float) -> int:
    """How many numbers of a tensor are right; none of them where its shape or type isn't."""
    if got["shape"] != shape or got["dtype"] != dtype:
        return 0
    return sum(abs(_wrapped(v - w, dtype)) <= off for v, w in zip(got["values"], wanted, strict=True))


def _wrapped(difference: float, dtype: str) -> float:
    """Integers begin again at the smallest when they pass the largest."""
    if dtype.startswith("float"):
        return difference
    half = 2 ** (int(dtype.removeprefix("int")) - 1)
    return (difference + half) % (2 * half) - half


def _sum_everywhere(seen: list[dict[str, Any]], case: str, shape: list[int], dtype: str) -> None:
    n, off = len(seen), 1e-9 if dtype == "float64" else 0  # the others hold whole numbers
    total = [sum(values) for values in zip(*(s["before"]["values"] for s in seen), strict=True)]
    right = [_right(s["after"], total, shape, dtype, off) for s in seen]
    got = by_rank([f"{count} of {len(total)} numbers are the sum" for count in right])
    share = [count / len(total) for count in right]
    if all(part == 1 for part in share):
        again = [_right(s["again"], [n * v for v in total], shape, dtype, 10 * off) for s in seen]
        got = by_rank([f"{count} of {len(total)} numbers are the sum" for count in again])
        require(min(again) == len(total), "second time", got, case=case)
        return
    require(any(s["after"] != s["before"] for s in seen) or n == 1, "unchanged", got, case=case)
    nearly = {"int64": 2**40, "int32": 2**12}.get(dtype, 1e-2)
    first = all(_right(s["after"] | {"dtype": dtype}, total, shape, dtype, nearly) == len(total) for s in seen)
    require(not first, "another type", got, dtype=dtype, case=case)
    require(all(part < 1 for part in share), "not everywhere", got, case=case)
    half_way = all(0 < part < 1 for part in share) and abs(sum(share) - 1) < 0.35
    differ("half way" if half_way else "wrong sum", got, case=case)


def _messages(seen: list[dict[str, Any]], ranks: int, numbers: int, case: str) -> None:
    sent, wanted = [s["sent"] for s in seen], 2 * (ranks.bit_length() - 1)
    carried, most = [s["numbers"] for s in seen], 2 * (ranks - 1) * math.ceil(numbers / ranks)
    got = by_rank([f"{count} messages with {size} numbers" for count, size in zip(sent, carried, strict=True)])
    fits = max(carried) <= most
    require(fits, "too many numbers", got, carried=max(carried), numbers=numbers, most=most, case=case)
    ring = set(sent) == {2 * (ranks - 1)} and ranks > 2
    require(set(sent) == {wanted}, "a ring" if ring else "messages", got, sent=max(sent), wanted=wanted, case=case)


SCRIPT = "0a75bc521dec"  # the loop of 05.1 as the notebook hands it out; a test compares it

EXERCISES = {
    e.name: e
    for e in [
        Exercise("05.1", "accumulate, and skip together", judge_convert, handed_out=SCRIPT),
        Exercise("05.2", "half the bytes, and nothing lost", judge_hook),
        Exercise("05.3", "which rank, which line?", judge_dumps, how="on made-up records"),
        Exercise("05.4", "a sum in few messages", judge_few_messages),
    ]
}
