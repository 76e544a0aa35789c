"""Lesson 10, what needs no ranks: which rows to read (10.2), and which stage to choose (10.4)."""

from __future__ import annotations

import itertools
import random
from typing import Any

from ..judging import Answer, Difference, apart_all, some
from .cases import PLAN_CASES, RESHARD_CASES, random_plans, random_reshards

# --- 10.2 -------------------------------------------------------------------------------------------------------------


def _cut(rows: int, ranks: int) -> list[range]:
    """Which rows each rank has, as torch.chunk cuts."""
    each = -(-rows // ranks)
    return [range(min(r * each, rows), min((r + 1) * each, rows)) for r in range(ranks)]


def _right(rows: int, saved_on: int, loaded_on: int, rank: int) -> list[tuple[int, int, int]]:
    mine, files = _cut(rows, loaded_on)[rank], _cut(rows, saved_on)
    pieces = [
        (f, max(mine.start, file.start) - file.start, min(mine.stop, file.stop) - file.start)
        for f, file in enumerate(files)
    ]
    return [piece for piece in pieces if piece[1] < piece[2]]


def judge_reshard(answer: Answer) -> list[str]:
    cases = [*RESHARD_CASES, *random_reshards(random.Random())]
    told = answer.on_ranks("reshard", ranks=1, given=cases)[0]
    asked = [(*case, rank) for case in cases for rank in range(case[2])]
    plans = [[tuple(piece) for piece in pieces] for case in told["plans"] for pieces in case]
    rights = [_right(*question) for question in asked]
    one_less = all(pieces == [(f, a, b - 1) for f, a, b in right] for pieces, right in zip(plans, rights, strict=True))
    for (rows, saved_on, loaded_on, rank), pieces, right in zip(asked, plans, rights, strict=True):
        case = f"rank {rank} of {loaded_on}, {rows} rows from {saved_on} file{'s' * (saved_on > 1)}"
        if one_less and pieces != right:
            raise Difference("last", f"The last row of each piece is missing ({case}).", some(right), [some(pieces)])
        _pieces(pieces, right, _cut(rows, saved_on), _cut(rows, loaded_on)[rank], case)
    return [
        (
            f"{len(cases)} tensors of 1 to {max(case[0] for case in cases)} rows, from 1 to 16 ranks onto 1 to 16:"
            " every rank gets its rows, in order"
        ),
        "no piece is empty, and none reads a row that the rank does not need",
    ]


def _pieces(
    pieces: list[tuple[int, ...]], right: list[tuple[int, int, int]], files: list[range], wanted: range, case: str
) -> None:
    if pieces == right:
        return
    got, expected = [some(pieces)], some(right)
    if any(first >= last for _, first, last in pieces):
        raise Difference("empty", f"A piece has no rows ({case}).", expected, got)
    if [(f, first - files[f].start, last - files[f].start) for f, first, last in pieces if f < len(files)] == right:
        raise Difference(
            "rows of the tensor",
            f"The rows are counted from the tensor's first row, not from the file's ({case}).",
            expected,
            got,
        )
    if any(f not in range(len(files)) or first < 0 or last > len(files[f]) for f, first, last in pieces):
        raise Difference("beyond", f"A piece asks for rows that its file does not have ({case}).", expected, got)
    read = [files[f].start + row for f, first, last in pieces for row in range(first, last)]
    if sorted(read) == list(wanted):
        raise Difference(
            "order",
            f"These are the right rows, but not one piece per file, in the order of the tensor ({case}).",
            expected,
            got,
        )
    if set(read) > set(wanted):
        raise Difference(
            "too much", f"You read {len(read) - len(wanted)} rows that the rank does not need ({case}).", expected, got
        )
    raise Difference(
        "rows",
        f"These are not the rows of this rank ({case}).",
        f"rows {wanted.start} to {wanted.stop - 1} of the tensor: {expected}",
        got,
    )


# --- 10.4 -------------------------------------------------------------------------------------------------------------

WAYS = list(itertools.product(range(4), (False, True)))
# Known mistakes: we work out what each would give, so that we can name it.
MEMORY_MISTAKES = ("activations divided", "activations kept", "a stage late", "gradients first", "8 bytes of state")
TIME_MISTAKES = (
    "stage 3 as the others",
    "every byte",
    "all ranks",
    "parameters, not bytes",
    "4 bytes",
    "no recomputing",
    "a third",
)


def _held(params: float, n: int, stage: int, activations: float, recompute: bool, known: str = "") -> float:
    kept = (
        activations
        * (0.1 if recompute and known != "activations kept" else 1)
        / (n if known == "activations divided" else 1)
    )
    late = {"a stage late": 1}.get(known, 0)
    parts = [12.0, 2.0, 2.0] if known != "gradients first" else [2.0, 12.0, 2.0]
    if known == "8 bytes of state":
        parts[0] = 8.0
    return sum(size * params / (n if stage > i + late else 1) for i, size in enumerate(parts)) + kept


def _took(
    params: float, n: int, stage: int, compute: float, recompute: bool, bandwidth: float, known: str = ""
) -> float:
    rounds = 2 if known == "stage 3 as the others" or stage < 3 else 3
    share = {"every byte": 1.0, "all ranks": n - 1.0}.get(known, (n - 1) / n)
    size = {"parameters, not bytes": 1, "4 bytes": 4}.get(known, 2) * params
    again = {"no recomputing": 1.0, "a third": 1 / 3}.get(known, 4 / 3) if recompute else 1.0
    return compute * again + rounds * share * size / bandwidth


def judge_plan(answer: Answer) -> list[str]:
    cases = [*PLAN_CASES, *random_plans(random.Random())]
    told = answer.on_ranks("plan", ranks=1, given=cases)[0]
    rows = [(case, *way) for case in cases for way in WAYS]
    memory = [(p, n, stage, act, again) for (p, n, act, _, _, _), stage, again in rows]
    times = [(p, n, stage, compute, again, rate) for (p, n, _, compute, rate, _), stage, again in rows]
    _numbers(
        told["held"],
        [_held(*m) for m in memory],
        {k: [_held(*m, k) for m in memory] for k in MEMORY_MISTAKES},
        memory,
        "memory",
        "GB",
        1e-9,
    )
    _numbers(
        told["took"],
        [_took(*t) for t in times],
        {k: [_took(*t, k) for t in times] for k in TIME_MISTAKES},
        times,
        "time",
        "ms",
        1e3,
    )
    for (p, n, act, compute, rate, device), got in zip(cases, told["plans"], strict=True):
        fit = [
            (_took(p, n, s, compute, again, rate), again, s)
            for s, again in WAYS
            if _held(p, n, s, act, again) <= device
        ]
        right = None if not fit else min((round(t, 12), again, s) for t, again, s in fit)
        wanted = None if right is None else [right[2], right[1]]
        if got == wanted:
            continue
        case = (
            f"{p / 1e9:g} billion parameters on {n} rank{'s' * (n > 1)}, {act / 1e9:g} GB of activations,"
            f" {rate / 1e9:g} GB/s, devices of {device / 1e9:g} GB"
        )
        if got is not None and _held(p, n, got[0], act, got[1]) > device:
            symptom = "does not fit"
        elif got is None or wanted is None:
            symptom = "none"
        elif _held(p, n, wanted[0], act, bool(wanted[1])) == device:
            symptom = "exactly"
        else:
            symptom = (
                "slower"
                if _took(p, n, got[0], compute, got[1], rate) > fit[0][0]
                and round(_took(p, n, got[0], compute, got[1], rate), 12) > min(fit)[0]
                else "ties"
            )
        raise Difference(symptom, f"The plan is {_words(got)} ({case}).", _words(wanted), [_words(got)])
    return [
        f"{len(cases)} models and clusters, 4 stages, with and without recomputing: memory and step time",
        "the fastest plan that fits, the lowest stage of several that are equally fast, and None if none fits",
    ]


def _words(plan: list[Any] | None) -> str:
    return "None" if plan is None else f"stage {plan[0]}{' with recomputing' if plan[1] else ''}"


def _numbers(
    got: list[float],
    right: list[float],
    known: dict[str, list[float]],
    inputs: list[Any],
    what: str,
    unit: str,
    factor: float,
) -> None:
    def same(a: list[float], b: list[float]) -> bool:
        return all(abs(x - y) <= 1e-6 * max(abs(y), 1e-12) for x, y in zip(a, b, strict=True))

    if same(got, right):
        return
    at = next(i for i, (x, y) in enumerate(zip(got, right, strict=True)) if abs(x - y) > 1e-6 * max(abs(y), 1e-12))
    symptom = next((name for name, values in known.items() if same(got, values)), what)
    params, ranks, stage = inputs[at][:3]
    case = (
        f"stage {stage}, {params / 1e9:g} billion parameters on {ranks} rank{'s' * (ranks > 1)},"
        f" {'with' if inputs[at][4] else 'without'} recomputing"
    )
    [expected], [found] = apart_all([right[at] * factor], [got[at] * factor])
    raise Difference(symptom, f"The {what} is wrong ({case}).", f"{expected} {unit}", [f"{found} {unit}"])
