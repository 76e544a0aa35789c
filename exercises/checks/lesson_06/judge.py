"""Lesson 06: what its exercises ask for, and how to tell that an answer doesn't do it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Difference, Exercise, by_rank, gap, some
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
        if len(counts) != stages:
            raise Difference(
                "stages", f"The answer has {len(counts)} stages ({case}).", f"{stages} numbers, one for each stage", got
            )
        if sum(counts) != len(layer_s):
            raise Difference(
                "layers",
                f"The stages hold {sum(counts)} layers together ({case}).",
                f"{len(layer_s)}: every layer is on one stage",
                got,
            )
        if min(counts) < 1:
            raise Difference("empty", f"A stage has no layer ({case}).", "at least 1 on each stage", got)
        found, best = slowest(layer_s, counts), least(layer_s, stages)
        if found > best * (1 + 1e-9):
            even = all(max(c) - min(c) <= 1 for c in told["counts"] if c)
            digits = 6 if f"{found:.6g}" != f"{best:.6g}" else 12
            symptom = "equal counts" if even else "not the best"
            raise Difference(
                symptom,
                f"The slowest stage takes {found:.{digits}g} s ({case}).",
                f"{best:.{digits}g} s, which another division reaches",
                got,
            )
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
    if any(len(f) != m for f in forwards):
        got = by_rank([f"{len(f)} forwards" for f in forwards])
        raise Difference(
            "forwards",
            f"The stage is not called once for each micro-batch ({case}).",
            f"{m} forwards on every rank",
            got,
        )
    missing = next((rank for rank, s in enumerate(seen) if None in s["gradients"]), None)
    if missing is not None or any(not b for b in backwards):
        rank = missing if missing is not None else next(r for r, b in enumerate(backwards) if not b)
        raise Difference(
            "no gradient",
            f"Rank {rank} has no gradient after the step ({case}).",
            "a gradient for every parameter of every stage",
            orders,
        )
    after = [s["gradients"] for s in seen]
    gaps = list(map(gap, after, twin["whole"]))
    if max(gaps) > ROUNDING:
        got = by_rank([f"off by {off:.2g}" for off in gaps])
        if any(s["buffers"] < m for s in seen):
            got = by_rank([f"{counted(s['buffers'], 'tensor')}" for s in seen])
            raise Difference(
                "one buffer",
                f"Several micro-batches came in one tensor ({case}).",
                f"{m} tensors: backward needs them all again",
                got,
            )
        for key, symptom, sentence in (
            ("sum", "sum", f"The gradients are {m} times as large as those of the whole batch"),
            ("last", "last only", "The gradients are those of the last micro-batch alone"),
            ("last of m", "last only", "The gradients are those of the last micro-batch alone"),
        ):
            if gap(after, twin[key]) < ROUNDING:
                raise Difference(
                    symptom, f"{sentence} ({case}).", "the gradient of the mean loss over the whole batch", got
                )
        raise Difference(
            "gradients",
            f"The gradients are not those of one device ({case}).",
            "the gradient of the mean loss over the whole batch",
            got,
        )
    _messages(seen, ranks, m, case)
    for rank, s in enumerate(seen):
        computed = [e for e in s["events"] if e[0] in "FB"]
        if any(e[0] == "B" for e in computed[:m]):
            raise Difference(
                "not GPipe",
                f"Rank {rank} turns back before all its forwards are done ({case}).",
                f"{m} forwards, then {m} backwards",
                orders,
            )
    if not all(s["overlapped"] for s in seen):
        raise Difference(
            "no overlap",
            f"Rank 1 begins only when rank 0 is done with all its forwards ({case}): nothing is done at the same time.",
            "rank 1 works on micro-batch 0 while rank 0 works on the next ones",
            orders,
        )
    values = [s["value"] for s in seen]
    if (off := gap(values[-1], twin["loss"])) > 1e-9:
        alike = off < 1e-6
        digits = 12 if alike else 6
        told = "nothing" if values[-1] is None else f"{values[-1]:.{digits}f}"
        raise Difference(
            "loss",
            f"The last rank does not return the mean loss ({case}).",
            f"{twin['loss']:.{digits}f} on the last rank" + " (in float64, as the stages compute)" * alike,
            [(f"rank {ranks - 1}", told)],
        )
    others = [rank for rank, value in enumerate(values[:-1]) if value is not None]
    if others:
        raise Difference(
            "loss elsewhere",
            f"Rank {others[0]} returns a number ({case}), but it has no loss.",
            "None on all ranks but the last",
            by_rank([s["value"] for s in seen]),
        )


def _messages(seen: list[dict[str, Any]], ranks: int, m: int, case: str) -> None:
    if any(s["others"] for s in seen):
        rank, names = next((r, s["others"]) for r, s in enumerate(seen) if s["others"])
        raise Difference(
            "collectives", f"Rank {rank} calls {some(names)} ({case}).", "only messages between neighbours"
        )
    wanted = [m * ((rank < ranks - 1) + (rank > 0)) for rank in range(ranks)]
    counts = [len(s["sent"]) for s in seen]
    if counts != wanted or [s["received"] for s in seen] != wanted:
        got = by_rank([f"{len(s['sent'])} sent, {s['received']} received" for s in seen])
        expected = f"{some(wanted)} messages sent by ranks 0 to {ranks - 1}, and as many received"
        raise Difference("messages", f"There are too many or too few messages ({case}).", expected, got)
    nbytes = ROWS * WIDTH * 8
    if any(n != nbytes for s in seen for n in s["sent"]):
        got = by_rank([f"{some(sorted(set(s['sent'])))} bytes" for s in seen])
        raise Difference(
            "size", f"A message isn't as large as a micro-batch's activation ({case}).", f"{nbytes} bytes each", got
        )


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
