"""Lesson 06: what its exercises ask for, and how to tell that an answer doesn't do it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Exercise, by_rank, differ, gap, require, some
from .cases import GPIPE_CASES, ROWS, WIDTH, balance_cases
from .convert_judge import judge_convert
from .orders_judge import judge_orders

# --- 06.1 -------------------------------------------------------------------------------------------------------------


def slowest(layer_s: Sequence[float], counts: Sequence[int]) -> float:
    """Seconds of the slowest stage."""
    ends = list(accumulate(counts))
    return max(sum(layer_s[end - n : end]) for n, end in zip(counts, ends, strict=True))


def least(layer_s: Sequence[float], stages: int) -> float:
    """Seconds of the slowest stage in the best division; tries every place for the last cut."""
    n = len(layer_s)
    sums = [0.0, *accumulate(layer_s)]
    best = [0.0] + [float("inf")] * n  # of the first i layers, on one stage more each round
    for _ in range(stages):
        best = [float("inf")] + [
            min(max(best[cut], sums[end] - sums[cut]) for cut in range(end)) for end in range(1, n + 1)
        ]
    return best[n]


def judge_balance(answer: Answer) -> list[str]:
    told = answer.on_ranks("balance", ranks=1)[0]
    cases = balance_cases(told["seed"])
    for (layer_s, stages), counts in zip(cases, told["counts"], strict=True):
        case = f"{len(layer_s)} layers of {some([f'{s:.6g}' for s in layer_s], 9)} s on {counted(stages, 'stage')}"
        got = [f"layers of each stage: {some(counts, 16)}"]
        require(len(counts) == stages, "stages", got, found=len(counts), stages=stages, case=case)
        require(sum(counts) == len(layer_s), "layers", got, found=sum(counts), layers=len(layer_s), case=case)
        require(min(counts) >= 1, "empty", got, case=case)
        found, best = slowest(layer_s, counts), least(layer_s, stages)
        even = all(max(c) - min(c) <= 1 for c in told["counts"] if c)
        symptom = "equal counts" if even else "not the best"
        digits = 6 if f"{found:.6g}" != f"{best:.6g}" else 12
        require(found <= best * (1 + 1e-9), symptom, got, found=found, best=best, digits=digits, case=case)
    return [
        (
            f"{len(cases)} models of 2 to 120 layers on 1 to 16 stages: every layer on one stage, in order, no"
            " stage empty"
        ),
        "the slowest stage is as fast as in the best of all divisions",
    ]


# --- 06.3 -------------------------------------------------------------------------------------------------------------

ROUNDING = 1e-12  # in double precision


def judge_gpipe(answer: Answer) -> list[str]:
    said = {
        "modified by an inplace operation": "one buffer",
        "does not require grad": "no gradient",
        "second time": "second backward",
    }
    told = answer.on_ranks("gpipe", ranks=max(ranks for ranks, _ in GPIPE_CASES), said=said)
    found = [[t["cases"][i] for t in told[:ranks]] for i, (ranks, _) in enumerate(GPIPE_CASES)]
    given = [([s["seed"] for s in seen], m) for seen, (_, m) in zip(found, GPIPE_CASES, strict=True)]
    twins = answer.on_ranks("twins.gpipe", ranks=1, given=given)[0]["cases"]
    for seen, twin, (ranks, m) in zip(found, twins, GPIPE_CASES, strict=True):
        _gpipe(seen, twin, ranks, m)
    return [
        ", ".join(f"{m} micro-batch{'es' * (m > 1)} on {ranks} ranks" for ranks, m in GPIPE_CASES)
        + ": the gradients of one device with the whole batch",
        "one message for each micro-batch and direction, no other communication",
        "all forwards before the first backward, and a stage begins while the one before it still works",
    ]


def _gpipe(seen: list[dict[str, Any]], twin: dict[str, Any], ranks: int, m: int) -> None:
    case = f"{m} micro-batches on {ranks} ranks"
    orders = by_rank([" ".join(s["events"]) for s in seen])
    forwards = [[e for e in s["events"] if e[0] == "F"] for s in seen]
    backwards = [[e for e in s["events"] if e[0] == "B"] for s in seen]
    got = by_rank([f"{len(f)} forwards" for f in forwards])
    require(all(len(f) == m for f in forwards), "forwards", got, m=m, case=case)
    without = [rank for rank, s in enumerate(seen) if None in s["gradients"]]
    without += [rank for rank, b in enumerate(backwards) if not b]
    if without:
        differ("no gradient", orders, rank=without[0], case=case)
    _gradients(seen, twin, m, case)
    _messages(seen, ranks, m, case)
    for rank, s in enumerate(seen):
        computed = [e for e in s["events"] if e[0] in "FB"]
        require("B" not in [e[0] for e in computed[:m]], "not GPipe", orders, rank=rank, m=m, case=case)
    require(all(s["overlapped"] for s in seen), "no overlap", orders, case=case)
    values = [s["value"] for s in seen]
    off = gap(values[-1], twin["loss"])
    how, digits = ("close", 12) if off < 1e-6 else ("far", 6)
    got = [(f"rank {ranks - 1}", "nothing" if values[-1] is None else f"{values[-1]:.{digits}f}")]
    require(off <= 1e-9, "loss", got, how=how, loss=twin["loss"], case=case)
    for rank, value in enumerate(values[:-1]):
        require(value is None, "loss elsewhere", by_rank(values), rank=rank, case=case)


def _gradients(seen: list[dict[str, Any]], twin: dict[str, Any], m: int, case: str) -> None:
    after = [s["gradients"] for s in seen]
    gaps = list(map(gap, after, twin["whole"]))
    if max(gaps) <= ROUNDING:
        return
    tensors = by_rank([counted(s["buffers"], "tensor") for s in seen])
    require(all(s["buffers"] >= m for s in seen), "one buffer", tensors, m=m, case=case)
    known = {"sum": "sum", "last": "last only", "last of m": "last only"}
    symptom = next((symptom for key, symptom in known.items() if gap(after, twin[key]) < ROUNDING), "gradients")
    differ(symptom, by_rank([f"off by {off:.2g}" for off in gaps]), m=m, case=case)


def _messages(seen: list[dict[str, Any]], ranks: int, m: int, case: str) -> None:
    for rank, s in enumerate(seen):
        require(not s["others"], "collectives", rank=rank, names=some(s["others"]), case=case)
    wanted = [m * ((rank < ranks - 1) + (rank > 0)) for rank in range(ranks)]
    sent, received = [len(s["sent"]) for s in seen], [s["received"] for s in seen]
    got = by_rank([f"{a} sent, {b} received" for a, b in zip(sent, received, strict=True)])
    require(sent == received == wanted, "messages", got, wanted=some(wanted), last=ranks - 1, case=case)
    nbytes = ROWS * WIDTH * 8
    got = by_rank([f"{some(sorted(set(s['sent'])))} bytes" for s in seen])
    require(all(n == nbytes for s in seen for n in s["sent"]), "size", got, nbytes=nbytes, case=case)


SCRIPT = "d65ac8d95b8b"  # the script of 06.2 as the notebook hands it out; a test compares it

EXERCISES = {
    e.name: e
    for e in [
        Exercise("06.1", "balance the stages", judge_balance, how=""),
        Exercise("06.2", "from a script to stages", judge_convert, handed_out=SCRIPT),
        Exercise("06.3", "write a GPipe step", judge_gpipe),
        Exercise("06.4", "put the boxes in order", judge_orders, how="by simulation"),
    ]
}
