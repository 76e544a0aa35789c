"""Lesson 06: what its exercises ask for, and how to tell that an answer doesn't do it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ..judging import Answer, Difference, Exercise, by_rank, gap, some
from .cases import GPIPE_CASES, ROWS, WIDTH, balance_cases, enough_cases, plan_cases, span_cases

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
        case = (
            f"{len(layer_s)} layers of {some([f'{s:.6g}' for s in layer_s], 9)} s on {stages} stage{'s' * (stages > 1)}"
        )
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


# --- 06.2 -------------------------------------------------------------------------------------------------------------


def _spans_facts(spans: Sequence[tuple[int, float, float]]) -> dict[str, float]:
    """The bubble, and what known mistakes make of it."""
    stages = sorted({s for s, _, _ in spans})
    busy = {s: sum(end - start for stage, start, end in spans if stage == s) for s in stages}
    first, last = min(start for _, start, _ in spans), max(end for _, _, end in spans)
    inside = {s: max(e for g, _, e in spans if g == s) - min(b for g, b, _ in spans if g == s) for s in stages}
    work = sum(busy.values())
    return {
        "bubble": 1 - work / (len(stages) * (last - first)),
        "gaps only": 1 - work / sum(inside.values()),
        "clock": 1 - work / (len(stages) * last),
        "first stage's clock": 1 - work / (len(stages) * (last - min(b for s, b, _ in spans if s == stages[0]))),
        "busy": work / (len(stages) * (last - first)),
        "seconds": len(stages) * (last - first) - work,
        "not shared": len(stages) - work / (last - first),
        "one stage": 1 - busy[stages[0]] / (last - first),
        "overhead": len(stages) * (last - first) / work - 1,
    }


def judge_bubble(answer: Answer) -> list[str]:
    told = answer.on_ranks("bubble", ranks=1)[0]
    asked = span_cases(told["seed"])
    facts = [_spans_facts(spans) for spans in asked]
    said = {
        "gaps only": "Each stage's time is counted only from its own first box to its own last one.",
        "clock": "The step is counted from time 0, but its first box begins later.",
        "first stage's clock": "The step is counted from the first stage's first box; another stage begins earlier.",
        "busy": "This is the share of the time in which stages compute.",
        "seconds": "These are seconds, not a share.",
        "not shared": "The idle time of all stages is divided by the length of one step.",
        "one stage": "This is one stage's idle time.",
        "overhead": "The idle time is divided by the time in which stages compute.",
    }
    for i, (value, fact) in enumerate(zip(told["shares"], facts, strict=True)):
        if abs(value - fact["bubble"]) > 1e-9:
            # A mistake has to explain all answers: several may explain a single one.
            known = [
                name
                for name in said
                if all(abs(v - f[name]) < 1e-9 for v, f in zip(told["shares"], facts, strict=True))
            ]
            case = f"the {len(asked[i])} boxes {some(asked[i], 4)}"
            expected = f"{fact['bubble']:.4f}: this share of all stages' time is idle"
            raise Difference(
                known[0] if known else "wrong share",
                said[known[0]] if known else f"The bubble isn't right ({case}).",
                expected,
                [f"{value:.4f}" if f"{value:.4f}" != f"{fact['bubble']:.4f}" else f"{value:.12f}"],
            )
    limits = enough_cases(told["seed"])
    _enough(told["counts"], limits)
    return [
        f"{len(asked)} measured steps of 1 to 4 stages, on clocks that start anywhere: the share of idle time",
        f"{len(limits)} times the least number of micro-batches for a bubble of less than 1% to 90%",
    ]


def _least(stages: int, most: float, over: int) -> int:
    """The least m with (stages - 1) / (m + over) at most `most`."""
    return next(m for m in range(1, 100_000) if (stages - 1) / (m + over) <= most + 1e-12)


def _enough(counts: list[int], limits: list[tuple[int, float]]) -> None:
    """Every count is the least number of micro-batches with a bubble that is small enough."""
    ideal = [_least(stages, most, 0) for stages, most in limits]
    for (stages, most), m in zip(limits, counts, strict=True):
        right = _least(stages, most, stages - 1)
        if m == right:
            continue
        case = f"{stages} stage{'s' * (stages > 1)}, a bubble of at most {most:.6g}"
        less = f", and {right - 1} would leave {(stages - 1) / (right + stages - 2):.1%}" if right > 1 else ""
        expected = f"{right}: {(stages - 1) / (right + stages - 1):.1%}{less}"
        if m < 1:
            raise Difference("none", f"{m} micro-batches are no batch at all ({case}).", expected, [str(m)])
        symptom = "ideal time" if counts == ideal else "too few" if m < right else "too many"
        raise Difference(
            symptom,
            f"With {m} micro-batches the bubble is {(stages - 1) / (m + stages - 1):.1%} ({case}).",
            expected,
            [str(m)],
        )


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
            got = by_rank([f"{s['buffers']} tensor{'s' * (s['buffers'] > 1)}" for s in seen])
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


# --- 06.4 -------------------------------------------------------------------------------------------------------------


def _plan_facts(
    compute_s: float, n: int, gradient: float, activation: float, m: int, rate: float
) -> dict[str, tuple[float, float]]:
    """Both times, and what known mistakes make of them: (data parallel, pipeline)."""
    shared, ring = compute_s / n, 2 * (n - 1) / n * gradient / rate
    box, message = compute_s / (n * m), activation / rate
    right = (shared + ring, (m + n - 1) * (box + 2 * message))
    return {
        "": right,
        "whole gradients once": (shared + gradient / rate, right[1]),
        "whole gradients twice": (shared + 2 * gradient / rate, right[1]),
        "half a ring": (shared + ring / 2, right[1]),
        "no sum": (shared, right[1]),
        "not divided": (compute_s + ring, right[1]),
        "no bubble": (right[0], m * (box + 2 * message)),
        "one box too many": (right[0], (m + n) * (box + 2 * message)),
        "one message": (right[0], (m + n - 1) * (box + message)),
        "no messages": (right[0], (m + n - 1) * box),
        "messages outside the bubble": (right[0], (m + n - 1) * box + 2 * m * message),
        "whole stages": (right[0], (m + n - 1) * (compute_s / n + 2 * message)),
        "whole micro-batches": (right[0], (m + n - 1) * (compute_s / m + 2 * message)),
    }


def judge_plan(answer: Answer) -> list[str]:
    told = answer.on_ranks("plan", ranks=1)[0]
    cases = plan_cases(told["seed"])
    facts = [_plan_facts(*inputs) for inputs, _ in cases]
    for i, what in enumerate(("data parallel", "the pipeline")):
        values = [pair[i] for pair in told["times"]]
        wanted = [fact[""][i] for fact in facts]
        for value, want, (inputs, _) in zip(values, wanted, cases, strict=True):
            if abs(value - want) > 1e-6 * want:
                known = [
                    k
                    for k in facts[0]
                    if k and all(abs(v - f[k][i]) <= 1e-6 * f[k][i] for v, f in zip(values, facts, strict=True))
                ]
                case = (
                    f"{inputs[1]} devices, m = {inputs[4]}, {inputs[2] / 1e9:g} GB of gradients, {inputs[3] / 1e6:g} MB"
                    f" an activation, {inputs[5] / 1e9:g} GB/s"
                )
                symptom = known[0] if known else f"time of {what}"
                raise Difference(
                    symptom,
                    f"The time of a step of {what} is wrong ({case}).",
                    f"{want * 1e3:.2f} ms",
                    [f"{value * 1e3:.2f} ms" if abs(value - want) > 1e-5 else f"{value * 1e3:.9g} ms"],
                )
    for name, fact, (inputs, (state, memory)) in zip(told["names"], facts, cases, strict=True):
        quick = "data parallel" if fact[""][0] <= fact[""][1] else "pipeline"
        right = "neither" if state / inputs[1] > memory else "pipeline" if state > memory else quick
        if name != right:
            took = " and ".join(f"{seconds * 1e3:.0f} ms" for seconds in fact[""])
            case = (
                f"{state / 1e9:g} GB of state, {inputs[1]} devices of {memory / 1e9:g} GB; data parallel and pipeline"
                f" take {took}"
            )
            symptom = (
                "does not fit"
                if state > memory
                else "slower"
                if name in ("data parallel", "pipeline", "neither")
                else "name"
            )
            raise Difference(symptom, f"The answer is {name!r} ({case}).", repr(right), [repr(name)])
    return [
        f"{len(cases)} models and clusters: both step times",
        "the faster one of those that fit, or neither if none fits",
    ]


EXERCISES = {
    e.name: e
    for e in [
        Exercise("06.1", "balance the stages", judge_balance, how=""),
        Exercise("06.2", "compute a bubble", judge_bubble, how=""),
        Exercise("06.3", "write a GPipe step", judge_gpipe),
        Exercise("06.4", "pipeline or data parallel?", judge_plan, how=""),
    ]
}
