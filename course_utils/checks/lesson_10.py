"""Lesson 10: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

from . import hints_10
from .base import Difference, Exercise, by_rank, on_ranks, some
from .cases_10 import OPTIMIZER_RANKS, PLAN_CASES, RESHARD_CASES, SHAPES, SPLIT_RANKS, STEPS

ADAPTER = Path(__file__).resolve().parent / "ranks_10.py"
ROUNDING = 1e-9
ELEMENTS = sum(math.prod(shape) for shape in SHAPES)
KNOWN = {
    "sum": "The parameters are those of the *sum* of the ranks' gradients",
    "alone": "A rank's parameters are those of its own gradients, without the other ranks'",
    "owners": "Each slice is updated by the gradients of its owner, without the other ranks'",
    "forgets": "The parameters are those of an optimizer that has forgotten its averages in each step",
    "start": "The parameters do not change",
}


# --- 10.1 -------------------------------------------------------------------------------------------------------------------


def judge_optimizer(answer: Path) -> list[str]:
    said = {r"size|shape|divisible|numel|expand|length": "sizes", r"leaf|in-place|inplace": "in place", r"can't optimize": "not a leaf"}
    told = on_ranks(ADAPTER, "optimizer", answer, ranks=max(OPTIMIZER_RANKS), said=said)
    for i, ranks in enumerate(OPTIMIZER_RANKS):
        _optimizer([t["cases"][i] for t in told[:ranks]], ranks)
    return [
        f"{STEPS} steps of AdamW on " + " and on ".join(f"{n} ranks" for n in OPTIMIZER_RANKS) + ": the parameters of one process, on every rank",
        "a step calls one reduce-scatter and one all-gather, of one slice a rank, and nothing else",
        "each rank holds the optimizer's state of its own slice only",
    ]


def _optimizer(seen: list[dict[str, Any]], ranks: int) -> None:
    case = f"{ranks} ranks, {ELEMENTS} elements"
    part = -(-ELEMENTS // ranks)
    for step in range(STEPS):
        gaps = [s["gaps"]["right"][step] for s in seen]
        if max(gaps) < ROUNDING:
            continue
        got = by_rank([f"off by {gap:.2g}" for gap in gaps])
        where = f"after step {step + 1} ({case})"
        for symptom, sentence in KNOWN.items():
            if all(s["gaps"][symptom][step] < ROUNDING for s in seen):
                raise Difference(
                    "alone" if symptom == "owners" else symptom, f"{sentence}, {where}.", "the parameters of one process with the mean gradient", got
                )
        if all(s["gaps"]["sliced"][step] < ROUNDING for s in seen):
            raise Difference("not gathered", f"On each rank only its own slice is right, {where}.", "all parameters, on all ranks", got)
        raise Difference("parameters", f"The parameters are not those of one process, {where}.", "the parameters of one process with the mean gradient", got)
    if any(s["moved"] for s in seen):
        raise Difference("other memory", f"The parameters lie in other memory than before ({case}).", "new values in the same tensors: `p.copy_(...)`")
    if any(s["before"] for s in seen):
        raise Difference("collectives in init", f"`__init__` calls {some(seen[0]['before'])} ({case}).", "no collective: the parameters are the same already")
    kinds = [[_kind(name) for name, _ in s["calls"][-1]] for s in seen]
    if any(sorted(k) != ["all_gather", "reduce_scatter"] for k in kinds):
        raise Difference("collectives", f"A step calls other collectives ({case}).", "one reduce-scatter and one all-gather", by_rank([some(k) for k in kinds]))
    if any(s["state"] > 2 * part for s in seen):
        got = by_rank([f"averages of {s['state'] // 2} elements" for s in seen])
        raise Difference("whole state", f"A rank holds more state than that of its slice ({case}).", f"averages of {part} elements at most", got)
    sizes = [max(nbytes for _, nbytes in s["calls"][-1]) for s in seen]
    if max(sizes) > 8 * (part * ranks + part):
        raise Difference("sizes of collectives", f"A collective carries more than the parameters ({case}).", f"{part} elements a rank", by_rank(sizes))


def _kind(name: str) -> str:
    return "reduce_scatter" if "reduce_scatter" in name else "all_gather" if "allgather" in name or "all_gather" in name else name


# --- 10.2 -------------------------------------------------------------------------------------------------------------------


def _cut(rows: int, ranks: int) -> list[range]:
    """Which rows each rank has, as torch.chunk cuts."""
    each = -(-rows // ranks)
    return [range(min(r * each, rows), min((r + 1) * each, rows)) for r in range(ranks)]


def _right(rows: int, saved_on: int, loaded_on: int, rank: int) -> list[tuple[int, int, int]]:
    mine, files = _cut(rows, loaded_on)[rank], _cut(rows, saved_on)
    pieces = [(f, max(mine.start, file.start) - file.start, min(mine.stop, file.stop) - file.start) for f, file in enumerate(files)]
    return [piece for piece in pieces if piece[1] < piece[2]]


def judge_reshard(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "reshard", answer, ranks=1)[0]
    asked = [(*case, rank) for case in RESHARD_CASES for rank in range(case[2])]
    plans = [[tuple(piece) for piece in pieces] for case in told["plans"] for pieces in case]
    rights = [_right(*question) for question in asked]
    one_less = all(pieces == [(f, a, b - 1) for f, a, b in right] for pieces, right in zip(plans, rights, strict=True))
    for (rows, saved_on, loaded_on, rank), pieces, right in zip(asked, plans, rights, strict=True):
        case = f"rank {rank} of {loaded_on}, {rows} rows from {saved_on} file{'s' * (saved_on > 1)}"
        if one_less and pieces != right:
            raise Difference("last", f"The last row of each piece is missing ({case}).", some(right), [some(pieces)])
        _pieces(pieces, right, _cut(rows, saved_on), _cut(rows, loaded_on)[rank], case)
    return [
        f"{len(RESHARD_CASES)} tensors of 1 to 97 rows, from 1 to 16 ranks onto 1 to 16: every rank gets its rows, in order",
        "no piece is empty, none reads a row that the rank does not need",
    ]


def _pieces(pieces: list[tuple[int, ...]], right: list[tuple[int, int, int]], files: list[range], wanted: range, case: str) -> None:
    if pieces == right:
        return
    got, expected = [some(pieces)], some(right)
    if any(first >= last for _, first, last in pieces):
        raise Difference("empty", f"A piece has no rows ({case}).", expected, got)
    if [(f, first - files[f].start, last - files[f].start) for f, first, last in pieces if f < len(files)] == right:
        raise Difference("rows of the tensor", f"The rows are counted from the tensor's first row, not from the file's ({case}).", expected, got)
    if any(f not in range(len(files)) or first < 0 or last > len(files[f]) for f, first, last in pieces):
        raise Difference("beyond", f"A piece asks for rows that its file does not have ({case}).", expected, got)
    read = [files[f].start + row for f, first, last in pieces for row in range(first, last)]
    if sorted(read) == list(wanted):
        raise Difference("order", f"The right rows, but not as one piece a file in the order of the tensor ({case}).", expected, got)
    if set(read) > set(wanted):
        raise Difference("too much", f"{len(read) - len(wanted)} rows are read that the rank does not need ({case}).", expected, got)
    raise Difference("rows", f"These are not the rows of this rank ({case}).", f"rows {wanted.start} to {wanted.stop - 1} of the tensor: {expected}", got)


# --- 10.3 -------------------------------------------------------------------------------------------------------------------


def judge_split(answer: Path) -> list[str]:
    said = {
        r"super\(\).__init__|before Module.__init__": "no super",
        r"modified by an inplace|leaf Variable": "in place",
        r"shapes cannot be multiplied": "cut",
    }
    told = on_ranks(ADAPTER, "split", answer, ranks=max(SPLIT_RANKS), said=said)
    for i, ranks in enumerate(SPLIT_RANKS):
        _split([t["cases"][i] for t in told[:ranks]], ranks)
    return [
        "on " + " and on ".join(str(n) for n in SPLIT_RANKS) + " ranks: the output and all gradients of one device",
        "one all-reduce forward and one backward, and nothing else",
        "each rank holds its hidden units only",
    ]


def _split(seen: list[dict[str, Any]], ranks: int) -> None:
    case = f"{ranks} ranks"
    if any(s["slices"] > ROUNDING for s in seen):
        got = by_rank(["right" if s["slices"] <= ROUNDING else "other weights" for s in seen])
        raise Difference("slices", f"The weights are not this rank's part of the MLP ({case}).", "the rank-th part of the hidden units, copied", got)
    for name in seen[0]["found"]:
        values = [s["found"][name] for s in seen]
        if any(v is None for v in values):
            raise Difference(
                "no gradient",
                f"{name.capitalize()} is missing ({case}).",
                "a gradient, on every rank",
                by_rank(["none" if v is None else "there" for v in values]),
            )
        gaps = [v[0] for v in values]
        if max(gaps) < ROUNDING:
            continue
        got = by_rank([f"off by {gap:.2g}" for gap in gaps])
        if all(v[1] < ROUNDING for v in values):
            if name == "the output":
                raise Difference("bias", f"The bias is added {ranks} times ({case}).", "once", got)
            raise Difference("times the ranks", f"{name.capitalize()} is {ranks} times too large ({case}).", "that of one device", got)
        symptom = "output" if name == "the output" else "input gradient" if name == "the gradient of x" else "gradients"
        forgot = " No sum was taken there." if not (seen[0]["forward"] if symptom == "output" else seen[0]["backward"]) else ""
        raise Difference(symptom, f"{name.capitalize()} is not that of one device ({case}).{forgot}", "that of one device, on every rank", got)
    if any(s["given"] for s in seen):
        raise Difference("not copied", f"Backward leaves gradients in `up` or `down` as they were given ({case}).", "parameters of their own: copies")
    if seen[0]["shared"]:
        where = " and ".join(f"`{name}`" for name in seen[0]["shared"])
        raise Difference("not copied", f"{where} lies in the memory of what was given: training one changes the other ({case}).", "copies")
    if any(s["before"] for s in seen):
        raise Difference("collectives", f"`__init__` calls {some(seen[0]['before'])} ({case}).", "no collective: all ranks hold the same MLP")
    for way in ("forward", "backward"):
        kinds = [s[way] for s in seen]
        if any(len(k) != 1 or "reduce" not in k[0] or "scatter" in k[0] for k in kinds):
            raise Difference("collectives", f"{way.capitalize()} calls other collectives ({case}).", "one all-reduce", by_rank([some(k) for k in kinds]))


# --- 10.4 -------------------------------------------------------------------------------------------------------------------

WAYS = list(itertools.product(range(4), (False, True)))


def _held(params: float, n: int, stage: int, activations: float, recompute: bool, known: str = "") -> float:
    kept = activations * (0.1 if recompute and known != "activations kept" else 1) / (n if known == "activations divided" else 1)
    late = {"a stage late": 1}.get(known, 0)
    parts = [12.0, 2.0, 2.0] if known != "gradients first" else [2.0, 12.0, 2.0]
    if known == "8 bytes of state":
        parts[0] = 8.0
    return sum(size * params / (n if stage > i + late else 1) for i, size in enumerate(parts)) + kept


def _took(params: float, n: int, stage: int, compute: float, recompute: bool, bandwidth: float, known: str = "") -> float:
    rounds = 2 if known == "stage 3 as the others" or stage < 3 else 3
    share = {"every byte": 1.0, "all ranks": n - 1.0}.get(known, (n - 1) / n)
    size = {"parameters, not bytes": 1, "4 bytes": 4}.get(known, 2) * params
    again = {"no recomputing": 1.0, "a third": 1 / 3}.get(known, 4 / 3) if recompute else 1.0
    return compute * again + rounds * share * size / bandwidth


def judge_plan(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "plan", answer, ranks=1)[0]
    rows = [(case, *way) for case in PLAN_CASES for way in WAYS]
    memory = [(p, n, stage, act, again) for (p, n, act, _, _, _), stage, again in rows]
    times = [(p, n, stage, compute, again, rate) for (p, n, _, compute, rate, _), stage, again in rows]
    _numbers(told["held"], [_held(*m) for m in memory], {k: [_held(*m, k) for m in memory] for k in hints_10.MEMORY}, memory, "memory", "GB", 1e-9)
    _numbers(told["took"], [_took(*t) for t in times], {k: [_took(*t, k) for t in times] for k in hints_10.TIME}, times, "time", "ms", 1e3)
    for (p, n, act, compute, rate, device), got in zip(PLAN_CASES, told["plans"], strict=True):
        fit = [(_took(p, n, s, compute, again, rate), again, s) for s, again in WAYS if _held(p, n, s, act, again) <= device]
        right = None if not fit else min((round(t, 12), again, s) for t, again, s in fit)
        wanted = None if right is None else [right[2], right[1]]
        if got == wanted:
            continue
        case = (
            f"{p / 1e9:g} billion parameters on {n} rank{'s' * (n > 1)}, {act / 1e9:g} GB of activations, {rate / 1e9:g} GB/s, devices of {device / 1e9:g} GB"
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
                if _took(p, n, got[0], compute, got[1], rate) > fit[0][0] and round(_took(p, n, got[0], compute, got[1], rate), 12) > min(fit)[0]
                else "ties"
            )
        raise Difference(symptom, f"The plan is {_words(got)} ({case}).", _words(wanted), [_words(got)])
    return [
        f"{len(PLAN_CASES)} models and clusters, 4 stages, with and without recomputing: memory and step time",
        "the fastest that fits, the lowest stage of several, and None where none does",
    ]


def _words(plan: list[Any] | None) -> str:
    return "None" if plan is None else f"stage {plan[0]}{' with recomputing' if plan[1] else ''}"


def _numbers(got: list[float], right: list[float], known: dict[str, list[float]], inputs: list[Any], what: str, unit: str, factor: float) -> None:
    def same(a: list[float], b: list[float]) -> bool:
        return all(abs(x - y) <= 1e-6 * max(abs(y), 1e-12) for x, y in zip(a, b, strict=True))

    if same(got, right):
        return
    at = next(i for i, (x, y) in enumerate(zip(got, right, strict=True)) if abs(x - y) > 1e-6 * max(abs(y), 1e-12))
    symptom = next((name for name, values in known.items() if same(got, values)), what)
    params, ranks, stage = inputs[at][:3]
    case = f"stage {stage}, {params / 1e9:g} billion parameters on {ranks} rank{'s' * (ranks > 1)}, {'with' if inputs[at][4] else 'without'} recomputing"
    raise Difference(symptom, f"The {what} is another one ({case}).", f"{right[at] * factor:.4g} {unit}", [f"{got[at] * factor:.4g} {unit}"])


EXERCISES = {
    e.name: e
    for e in [
        Exercise("10.1", "shard an optimizer", judge_optimizer, hints_10.OPTIMIZER),
        Exercise("10.2", "reshard", judge_reshard, hints_10.RESHARD, how=""),
        Exercise("10.3", "split an MLP", judge_split, hints_10.SPLIT),
        Exercise("10.4", "which stage?", judge_plan, hints_10.PLAN, how=""),
    ]
}
