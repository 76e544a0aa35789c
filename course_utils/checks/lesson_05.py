"""Lesson 05: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..predict import Layer, SizeSweep, buckets, ddp_step
from . import hints_05
from .base import Difference, Exercise, by_rank, on_ranks, some
from .cases_05 import BUCKET_BYTES, BUCKET_CASES, DDP_STEPS, RING_CASES, SLACK, WINDOWS

HERE = Path(__file__).resolve().parent
ADAPTER = HERE / "ranks_05.py"
ROUNDING = 1e-9  # in double precision right answers differ by 1e-16, and every mistake here by more than 1e-5


# --- 05.1 -------------------------------------------------------------------------------------------------------------------


def judge_ring(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "ring", answer, ranks=4)
    for i, (ranks, shape, _) in enumerate(RING_CASES):
        seen = [told[rank]["cases"][i] for rank in range(ranks)]
        case = f"a tensor of shape {tuple(shape)} on {ranks} rank{'s' * (ranks > 1)}"
        _no_library(seen, case)
        _sum_everywhere(seen, case)
        _messages(seen, ranks, math.prod(shape), case)
    return [
        f"{len(RING_CASES)} tensors of 3 to 1000 numbers on 1 to 4 ranks: every rank holds the sum, in the tensor that it gave",
        "2 (n - 1) messages from every rank, none longer than an n-th of the tensor (rounded up), and no collective",
    ]


def _no_library(seen: list[dict[str, Any]], case: str) -> None:
    others = sorted({name for s in seen for name in s["others"]})
    if others:
        raise Difference(
            "library", f"The answer calls {some(others)} ({case}).", "messages between neighbours only: isend, irecv, send, recv, batch_isend_irecv"
        )


def _sum_everywhere(seen: list[dict[str, Any]], case: str) -> None:
    got = by_rank([f"{s['right']} of {s['of']} numbers are the sum" for s in seen])
    right = [s["right"] / s["of"] for s in seen]
    if all(share == 1 for share in right):
        return
    expected = "the sum over all ranks, on every rank, in the tensor itself"
    if all(s["unchanged"] for s in seen) and len(seen) > 1:
        raise Difference("unchanged", f"After the call the tensor is what it was before ({case}).", expected, got)
    if any(share == 1 for share in right):
        raise Difference("not everywhere", f"Only some ranks hold the whole sum ({case}).", expected, got)
    if all(0 < share < 1 for share in right) and abs(sum(right) - 1) < 0.35:
        raise Difference("half way", f"Each rank holds a part of the sum, and the rest is not complete ({case}).", expected, got)
    raise Difference("wrong sum", f"The tensor does not hold the sum ({case}).", expected, got)


def _messages(seen: list[dict[str, Any]], ranks: int, numbers: int, case: str) -> None:
    sent, wanted, longest = [s["sent"] for s in seen], 2 * (ranks - 1), math.ceil(numbers / ranks)
    largest = [s["largest"] for s in seen]
    if max(largest) > longest:
        got = by_rank([f"{count} messages, the longest of {size} numbers" for count, size in zip(sent, largest, strict=True)])
        expected = f"chunks: no message longer than {longest} of the {numbers} numbers"
        raise Difference("long messages", f"A message carries {max(largest)} of {numbers} numbers ({case}).", expected, got)
    if set(sent) != {wanted}:
        raise Difference("messages", f"A rank sends {max(sent)} messages ({case}).", f"2 (n - 1) = {wanted} from every rank",
                         by_rank([f"{count} messages sent" for count in sent]))  # fmt: skip


# --- 05.2 -------------------------------------------------------------------------------------------------------------------


def judge_ddp(answer: Path) -> list[str]:
    said = {r"cannot register a hook on a tensor that doesn't require gradient": "frozen"}
    told = on_ranks(ADAPTER, "ddp", answer, ranks=2, said=said)[0]
    expected = "after `finish` every gradient is the mean over the ranks, so that both hold the weights of one process with the samples of both"
    wanted = len(buckets(told["nbytes"], BUCKET_BYTES, BUCKET_BYTES))
    if told["start_gap"]:
        names = some([f"{name} (by {gap:.2g})" for name, gap in told["start_gap"].items()], 3)
        raise Difference("different start", f"After wrapping, the ranks hold different {names}.", "the parameters and buffers of rank 0 on every rank")
    reduces = told["reduces"]
    for step in range(DDP_STEPS):
        both = [rank[step] for rank in reduces]
        if max(both) == 0:
            symptom, when = ("no exchange", "in step 1") if step == 0 else ("once only", f"in step {step + 1}, though there was in step 1")
            raise Difference(symptom, f"Not one gradient is exchanged {when}.", expected)
        if told["twin_gap"][step] and max(told["twin_gap"][step]) > ROUNDING:
            _wrong_gradient(told, step, expected)
    most = max(max(rank) for rank in reduces)
    if {count for rank in reduces for count in rank} != {wanted}:
        raise Difference(
            "number of collectives", f"A step has {most} all-reduces.", f"{wanted}: one a bucket (which is closed when it holds bucket_bytes or more)",
            by_rank([f"all-reduces in each step: {some(rank)}" for rank in reduces]),
        )  # fmt: skip
    early = [count or 0 for rank in told["early"] for count in rank]
    if min(early) == 0:
        raise Difference(
            "no overlap", "No all-reduce has begun when the gradient of the first layer, the last one to come, is ready.",
            f"all buckets but the last are under way: {wanted - 1}", by_rank([f"begun by then, in each step: {some(rank)}" for rank in told["early"]]),
        )  # fmt: skip
    if max(told["waits"]):
        raise Difference(
            "waits in backward", f"backward waits for a collective {max(told['waits'])} times, so nothing is hidden behind it.", "waiting in `finish` only",
            by_rank([f"{count} waits in {DDP_STEPS} backward passes" for count in told["waits"]]),
        )  # fmt: skip
    worst = max(max(gaps) for gaps in told["twin_gap"])
    return [
        f"{DDP_STEPS} steps on 2 ranks that started from different weights: both hold those of one process (largest gap {worst:.0e})",
        f"{wanted} all-reduces a step, one for each bucket; {min(early)} of them begin before the last gradient is there",
        "no wait in backward; a frozen layer, a shared weight and a buffer are treated as they should",
    ]


def _wrong_gradient(told: dict[str, Any], step: int, expected: str) -> None:
    apart, off = told["rank_gap"][step], max(told["twin_gap"][step])
    if apart > ROUNDING:
        raise Difference("drift", f"After step {step + 1} the two ranks hold different weights: they differ by {apart:.2g}.", expected)
    if told["sum_gap"][step] < ROUNDING:
        raise Difference("sum", f"After step {step + 1} both ranks agree, and have taken a step twice as long.", expected)
    raise Difference("wrong gradient", f"After step {step + 1} both ranks agree, and are off by {off:.2g} from one process.", expected)


# --- 05.3 -------------------------------------------------------------------------------------------------------------------


def best_step(layers: list[Layer], all_reduce_s: SizeSweep) -> tuple[float, list[float]]:
    """The shortest step over all bucket sizes, and the sizes that come within the slack of it. Only sums of neighbouring layers make a difference."""
    sizes = [layer.nbytes for layer in layers]
    candidates = sorted({sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)})
    if len(candidates) > 400:
        candidates = candidates[:: len(candidates) // 400] + candidates[-1:]
    times = {size: step_s(layers, all_reduce_s, size) for size in candidates}
    shortest = min(times.values())
    return shortest, [size for size, seconds in times.items() if seconds <= SLACK * shortest]


def step_s(layers: list[Layer], all_reduce_s: SizeSweep, bucket_bytes: float) -> float:
    return ddp_step(layers, all_reduce_s, bucket_bytes=bucket_bytes, first_bytes=bucket_bytes).total_s


def judge_bucket(answer: Path) -> list[str]:
    chosen = on_ranks(ADAPTER, "bucket", answer, ranks=1)[0]["chosen"]
    worst = 0.0
    for name, (layers, all_reduce_s) in BUCKET_CASES.items():
        size, total = chosen[name], sum(layer.nbytes for layer in layers)
        if not (math.isfinite(size) and size > 0):
            raise Difference("not a size", f"For {name} the answer is {size:g}.", "a number of bytes above 0")
        shortest, good = best_step(layers, all_reduce_s)
        took = step_s(layers, all_reduce_s, size)
        worst = max(worst, took / shortest - 1)
        if took <= SLACK * shortest:
            continue
        got = [f"{_mb(size)}: a step of {took * 1e3:.1f} ms in {len(buckets([layer.nbytes for layer in layers], size, size))} buckets"]
        expected = f"a step within {SLACK - 1:.0%} of the shortest, {shortest * 1e3:.1f} ms; for example with {_mb(good[len(good) // 2])}"
        if len(set(chosen.values())) == 1:
            raise Difference("same everywhere", f"The answer is {_mb(size)} for every table, and for {name} that is too slow.", expected, got)
        if max(chosen.values()) < 4096:
            raise Difference("unit", f"For {name} the answer is {size:g}.", "bytes (these look like megabytes)", got)
        symptom, why = (
            ("too small", "pays too many latencies") if size < min(good) else ("too large", "hides too little") if size > max(good) else ("off", "fills badly")
        )
        whole = ", which is all in one," if size >= total else ""
        raise Difference(symptom, f"For {name} a bucket of {_mb(size)}{whole} {why}.", expected, got)
    return [
        f"{len(BUCKET_CASES)} tables of 21 to 100 layers, over links of 1 to 120 GB/s: every step within {SLACK - 1:.0%} of the shortest",
        f"the furthest from it: {worst:.1%}",
    ]


def _mb(nbytes: float) -> str:
    return f"{nbytes / 2**20:.3g} MB" if nbytes >= 1e4 else f"{nbytes:.4g} bytes"


# --- 05.4 -------------------------------------------------------------------------------------------------------------------


def judge_accumulation(answer: Path) -> list[str]:
    cases = on_ranks(ADAPTER, "accumulate", answer, ranks=2)[0]["cases"]
    for (micro, window), seen in zip(WINDOWS, cases, strict=True):
        _windows(seen, micro, window, f"{micro} micro-batches in windows of {window}")
    worst = max(gap for seen in cases for gap in seen["twin_gap"])
    return [
        f"{len(WINDOWS)} trainings on 2 ranks, with whole and partial windows: after every step the weights of one process (largest gap {worst:.0e})",
        "one all-reduce a window, also in the last one",
        "both ranks hold the same weights after every step",
    ]


def _windows(seen: dict[str, Any], micro: int, window: int, case: str) -> None:
    wanted, steps, reduces = math.ceil(micro / window), seen["steps"], seen["reduces"]
    expected = "after each window the weights of one process that has all samples of the window, of both ranks"
    got_steps = by_rank([f"{count} optimizer steps" for count in steps])
    if set(steps) != {wanted}:
        if set(steps) == {micro // window} and micro % window:
            raise Difference("last window lost", f"The last {micro % window} micro-batches never lead to a step ({case}).", f"{wanted} steps", got_steps)
        raise Difference("steps", f"The training has {max(steps)} optimizer steps ({case}).", f"{wanted}: one for each window", got_steps)
    got = by_rank([f"{count} all-reduces for {wanted} windows" for count in reduces])
    if max(reduces) == 0:
        raise Difference("no exchange", f"Not one gradient is exchanged ({case}).", f"{wanted} all-reduces, one a window", got)
    for step, apart in enumerate(seen["rank_gap"], 1):
        if apart > ROUNDING:
            last = step == wanted and micro % window != 0 and step > 1
            symptom = "last window not exchanged" if last and min(reduces) < wanted else "drift"
            raise Difference(symptom, f"After step {step} the two ranks hold different weights: they differ by {apart:.2g} ({case}).", expected, got)
    for step, off in enumerate(seen["twin_gap"], 1):
        if off > ROUNDING:
            for how, gap in seen["mistakes"].items():
                if gap < ROUNDING:
                    _known_mistake(how, step, window, case, expected)
            raise Difference("not the mean", f"After step {step} both ranks agree, and are off by {off:.2g} ({case}).", expected)
    if max(reduces) > wanted:
        raise Difference("too many", f"{max(reduces)} all-reduces for {wanted} windows ({case}): the result is right, and nothing is saved.",
                         f"{wanted}, one a window", got)  # fmt: skip


def _known_mistake(how: str, step: int, window: int, case: str, expected: str) -> None:
    told = {
        "sum": ("sum", f"The gradients of a window are added up, and their mean is not taken ({case})."),
        "last window": ("last window divided", f"After step {step}, the last, the weights are off: the partial window was divided by {window} ({case})."),
        "old gradients": ("old gradients", f"From step {step} on the gradients of earlier windows take part again ({case})."),
    }
    symptom, differs = told[how]
    raise Difference(symptom, differs, expected)


EXERCISES = {
    e.name: e
    for e in [
        Exercise("05.1", "a ring all-reduce", judge_ring, hints_05.RING),
        Exercise("05.2", "a DDP with hooks and buckets", judge_ddp, hints_05.DDP),
        Exercise("05.3", "choose a bucket size", judge_bucket, hints_05.BUCKET, how="by the cost model"),
        Exercise("05.4", "accumulate without drift", judge_accumulation, hints_05.ACCUMULATION),
    ]
}
