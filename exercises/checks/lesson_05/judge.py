"""Lesson 05: what its exercises ask for, and how to tell that an answer doesn't do it."""

from __future__ import annotations

import math
import random
from typing import Any

from course_utils.predict import Layer, SizeSweep, buckets, ddp_step

from ..judging import Answer, Difference, Exercise, by_rank, some
from .cases import SLACK, bucket_cases, ring_cases
from .trainings import judge_accumulation, judge_ddp

# --- 05.1 -------------------------------------------------------------------------------------------------------------


def judge_ring(answer: Answer) -> list[str]:
    cases = ring_cases(random.Random())
    told = answer.on_ranks("ring", ranks=4, given=cases)
    for i, (ranks, shape, dtype) in enumerate(cases):
        seen = [told[rank]["cases"][i] for rank in range(ranks)]
        case = f"a tensor of shape {shape} and type {dtype} on {ranks} rank{'s' * (ranks > 1)}"
        _no_library(seen, case)
        _sum_everywhere(seen, case, list(shape), dtype)
        _messages(seen, ranks, math.prod(shape), case)
    return [
        (
            f"{len(cases)} tensors of 1 to 1000 numbers on 1 to 4 ranks: every rank holds the sum, in the tensor"
            " that it passed"
        ),
        "2 (n - 1) messages from every rank, none longer than an n-th of the tensor (rounded up), and no collective",
    ]


def _no_library(seen: list[dict[str, Any]], case: str) -> None:
    others = sorted({name for s in seen for name in s["others"]})
    if others:
        raise Difference(
            "library",
            f"The answer calls {some(others)} ({case}).",
            "only messages between neighbours: isend, irecv, send, recv, batch_isend_irecv",
        )


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
        if min(again) < len(total):
            raise Difference(
                "second time",
                f"The first call gives the sum; a second call, on its result, doesn't ({case}).",
                "the sum, however often it is called",
                by_rank([f"{count} of {len(total)} numbers are the sum" for count in again]),
            )
        return
    expected = "the sum over all ranks, on every rank, in the tensor itself"
    if all(s["after"] == s["before"] for s in seen) and n > 1:
        raise Difference("unchanged", f"After the call the tensor is what it was before ({case}).", expected, got)
    nearly = {"int64": 2**40, "int32": 2**12}.get(dtype, 1e-2)
    if all(_right(s["after"] | {"dtype": dtype}, total, shape, dtype, nearly) == len(total) for s in seen):
        raise Difference(
            "another type",
            f"The sum is right in its first digits only: on the way the numbers weren't {dtype} ({case}).",
            expected,
            got,
        )
    if any(part == 1 for part in share):
        raise Difference("not everywhere", f"Only some ranks hold the whole sum ({case}).", expected, got)
    if all(0 < part < 1 for part in share) and abs(sum(share) - 1) < 0.35:
        raise Difference("half way", f"Each rank holds a part of the sum, and misses the rest ({case}).", expected, got)
    raise Difference("wrong sum", f"The tensor does not hold the sum ({case}).", expected, got)


def _messages(seen: list[dict[str, Any]], ranks: int, numbers: int, case: str) -> None:
    sent, wanted, longest = [s["sent"] for s in seen], 2 * (ranks - 1), math.ceil(numbers / ranks)
    largest = [s["largest"] for s in seen]
    if max(largest) > longest:
        got = by_rank(
            [f"{count} messages, the longest of {size} numbers" for count, size in zip(sent, largest, strict=True)]
        )
        expected = f"chunks: no message longer than {longest} of the {numbers} numbers"
        raise Difference(
            "long messages", f"A message carries {max(largest)} of {numbers} numbers ({case}).", expected, got
        )
    if set(sent) != {wanted}:
        raise Difference(
            "messages",
            f"A rank sends {max(sent)} messages ({case}).",
            f"2 (n - 1) = {wanted} from every rank",
            by_rank([f"{count} messages sent" for count in sent]),
        )


# --- 05.3 -------------------------------------------------------------------------------------------------------------


def best_step(layers: list[Layer], all_reduce_s: SizeSweep) -> tuple[float, list[float]]:
    """The shortest step over all bucket sizes, and the sizes that come within `SLACK` of it. Only sums of neighbouring
    layers are tried: any size between two of them makes the same buckets."""
    sizes = [layer.nbytes for layer in layers]
    candidates = sorted({sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)})
    if len(candidates) > 400:
        candidates = candidates[:: len(candidates) // 400] + candidates[-1:]
    times = {size: step_s(layers, all_reduce_s, size) for size in candidates}
    shortest = min(times.values())
    return shortest, [size for size, seconds in times.items() if seconds <= SLACK * shortest]


def step_s(layers: list[Layer], all_reduce_s: SizeSweep, bucket_bytes: float) -> float:
    return ddp_step(layers, all_reduce_s, bucket_bytes=bucket_bytes, first_bytes=bucket_bytes).total_s


def judge_bucket(answer: Answer) -> list[str]:
    told = answer.on_ranks("bucket", ranks=1)[0]
    chosen, cases = told["chosen"], bucket_cases(told["seed"])
    worst = 0.0
    for name, (layers, all_reduce_s) in cases.items():
        size, total = chosen[name], sum(layer.nbytes for layer in layers)
        if not (math.isfinite(size) and size > 0):
            raise Difference("not a size", f"For {name} the answer is {size:g}.", "a number of bytes above 0")
        shortest, good = best_step(layers, all_reduce_s)
        took = step_s(layers, all_reduce_s, size)
        worst = max(worst, took / shortest - 1)
        if took <= SLACK * shortest:
            continue
        got = [
            f"{_mb(size)}: a step of {took * 1e3:.1f} ms in"
            f" {len(buckets([layer.nbytes for layer in layers], size, size))} buckets"
        ]
        expected = (
            f"a step within {SLACK - 1:.0%} of the shortest, {shortest * 1e3:.1f} ms; for example with"
            f" {_mb(good[len(good) // 2])}"
        )
        if len(set(chosen.values())) == 1:
            raise Difference(
                "same everywhere",
                f"The answer is {_mb(size)} for every table, and for {name} that is too slow.",
                expected,
                got,
            )
        if max(chosen.values()) < 4096:
            raise Difference("unit", f"For {name} the answer is {size:g}.", "bytes (these look like megabytes)", got)
        symptom, why = (
            ("too small", "pays too many latencies")
            if size < min(good)
            else ("too large", "hides too little")
            if size > max(good)
            else ("off", "fills badly")
        )
        whole = ", which holds everything," if size >= total else ""
        raise Difference(symptom, f"For {name} a bucket of {_mb(size)}{whole} {why}.", expected, got)
    return [
        (
            f"{len(cases)} tables of 21 to 100 layers, over links of 1 to 120 GB/s: every step within"
            f" {SLACK - 1:.0%} of the shortest"
        ),
        f"the furthest from it: {worst:.1%}",
    ]


def _mb(nbytes: float) -> str:
    return f"{nbytes / 2**20:.3g} MB" if nbytes >= 1e4 else f"{nbytes:.4g} bytes"


EXERCISES = {
    e.name: e
    for e in [
        Exercise("05.1", "a ring all-reduce", judge_ring),
        Exercise("05.2", "a DDP with hooks and buckets", judge_ddp),
        Exercise("05.3", "choose a bucket size", judge_bucket, how="by the cost model"),
        Exercise("05.4", "accumulate without drift", judge_accumulation),
    ]
}
