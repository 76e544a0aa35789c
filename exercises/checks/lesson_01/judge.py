"""Lesson 01: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import math
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Exercise, apart, differ, require, some
from .cases import BATCH_SIZES, CLIP_SCALES, LIMIT, MOST_GRAPHS, WINNERS, Means, clip_inputs, means_cases, paid_cases


def _told(task: str, answer: Answer) -> dict[str, Any]:
    return answer.on_ranks(task, ranks=1)[0]


# --- 01.1 -------------------------------------------------------------------------------------------------------------


def judge_winners(answer: Answer) -> list[str]:
    """The right answers are fixed: one version is several times as fast, and the cause is counted. What was timed here
    is shown with it."""
    told = _told("winners", answer)
    for name, (winner, symptom) in WINNERS.items():
        said = told["said"][name]
        require(said == winner, symptom, [_seen(name, told["evidence"][name])], name=name, said=said)
    return [f"{name}: {winner}. {_seen(name, told['evidence'][name])}" for name, (winner, _) in WINNERS.items()]


def _seen(name: str, seen: dict[str, Any]) -> str:
    counted = (
        ""
        if name in "ce"
        else f" {seen['eager']} tensor operations in eager mode, {seen['graph']} in the optimised graph."
    )
    return f"measured here: scripted {seen['ratio']:.2f} times as fast.{counted}"


# --- 01.2 -------------------------------------------------------------------------------------------------------------


def judge_means(answer: Answer) -> list[str]:
    told = _told("means", answer)
    cases = means_cases(told["seed"])
    per_case = len(told["results"]) // len(cases)  # called by Python, scripted, or both
    for i, (how, got) in enumerate(told["results"]):
        _means(cases[i // per_case], how, got)
    return [
        f"{len(cases)} cases, called by Python and scripted: the values of the original function",
        f"all of the work is in the graph ({told['operations']} operations), which can be saved",
    ]


def _means(case: Means, how: str, got: dict[str, Any]) -> None:
    where = f"{case}, {how}"
    require(got["gradient"], "gradient", case=where)
    require(got["dtype"] == case.dtype, "dtype", found=got["dtype"], dtype=case.dtype, case=where)
    shape = [len(case.sizes)]
    require(got["shape"] == shape, "shape", found=got["shape"], shape=shape, case=where)
    short = sum(size > len(case.x) for size in case.sizes)
    require(got["short"] == short, "short", [f"{got['short']}"], short=short, case=where)
    plain = [math.fsum(case.x[-size:]) / len(case.x[-size:]) for size in case.sizes]
    wanted = [v * (1 if case.scale is None else case.scale) for v in plain]
    tolerance = 1e-5 if case.dtype == "float32" else 1e-12
    if not _alike(got["values"], wanted, tolerance):
        symptom = "zero" if case.scale == 0 and _alike(got["values"], plain, tolerance) else "wrong value"
        numbers, seen = _numbers(wanted, got["values"], tolerance)
        differ(symptom, [seen], numbers=numbers, case=where)


def _alike(got: list[float | None], wanted: list[float], tolerance: float) -> bool:
    return len(got) == len(wanted) and all(
        a is not None and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
        for a, b in zip(got, wanted, strict=True)
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _numbers(wanted: list[float], got: list[float | None], tolerance: float) -> tuple[str, str]:
    """The numbers from the first that differs, with enough digits: what was expected, and what we got."""
    first = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if not _alike([a], [b], tolerance))
    pairs = [apart(b, _number(a)) for a, b in zip(got[first:], wanted[first:], strict=True)][:5]
    before, after = "..., " if first else "", ", ..." if first + 5 < len(wanted) else ""
    expected, seen = (before + ", ".join(texts) + after for texts in zip(*pairs, strict=True))
    return expected, seen


# --- 01.3 -------------------------------------------------------------------------------------------------------------


def judge_breaks(answer: Answer) -> list[str]:
    told = _told("breaks", answer)
    inputs = clip_inputs(told["seed"])
    for (name, x), got in zip(inputs, told["called"], strict=True):
        _clipped(x, got, name)
    require(told["compilations"], "no graph", how="nothing")
    require(not told["hidden"], "no graph", how="hidden", hidden=told["hidden"])
    for (name, _), (y, _norm) in zip(inputs, told["double"], strict=False):
        require(y["dtype"] == "float64", "dtype", how="float64", found=y["dtype"], case=name)
    breaks = [f"line {line + 1} of the cell: {why}" if line else why for line, why in told["reasons"]]
    require(not breaks, "graph break", breaks, graphs=told["graphs"])
    for (name, x), got in zip(inputs, told["compiled"], strict=False):
        _clipped(x, got, f"{name}, compiled")
    require(told["compilations"] == 1, "compiled again", times=told["compilations"])
    return [
        f"one graph without a break, compiled once for {len(CLIP_SCALES)} inputs",
        f"eager and compiled: the values of the original function; eager also for {len(inputs) - len(CLIP_SCALES)}"
        " inputs of other lengths",
    ]


def _clipped(x: list[float], got: list[dict[str, Any]], case: str) -> None:
    for what, value, shape in zip(("Y", "The norm"), got, ([len(x)], []), strict=True):
        require(value["shape"] == shape, "shape", what=what, found=value["shape"], shape=shape, case=case)
        require(value["dtype"] == "float32", "dtype", how="float32", what=what, found=value["dtype"], case=case)
    y = [3 * math.sin(v) for v in x]
    norm = math.hypot(*y)
    factor = min(1.0, LIMIT / norm) if norm else 1.0
    y = [v * factor for v in y]
    wanted_norm, got_norm = apart(norm, _number(got[1]["values"][0]))
    require(_alike(got[1]["values"], [norm], 1e-5), "norm", [got_norm], norm=wanted_norm, case=case)
    if not _alike(got[0]["values"], y, 1e-5):
        wanted_norm, got_norm = apart(min(norm, LIMIT), math.hypot(*map(_number, got[0]["values"])))
        numbers, seen = _numbers(y, got[0]["values"], 1e-5)
        symptom = "small" if norm <= LIMIT else "wrong value"
        differ(symptom, [f"y of norm {got_norm}: {seen}"], norm=wanted_norm, numbers=numbers, case=case)


# --- 01.4 -------------------------------------------------------------------------------------------------------------


def first_paid(first_us: int, eager_us: int, compiled_us: int) -> int | None:
    """The right answer: the smallest number of calls that is enough, or None if none is."""
    if first_us <= eager_us:
        return 1
    if compiled_us >= eager_us:
        return None
    return 1 + -(-(first_us - eager_us) // (eager_us - compiled_us))


def judge_paid(answer: Answer) -> list[str]:
    told_by_rank = _told("paid", answer)
    cases = paid_cases(told_by_rank["seed"])
    for case, value in zip(cases, told_by_rank["got"], strict=True):
        first, eager, compiled = case
        wanted = first_paid(*case)
        if value == wanted:
            continue
        where = f"first call {first} µs, eager {eager} µs, compiled {compiled} µs"
        told = ["None" if value is None else f"{value} calls"]
        if wanted is None:
            differ("never", told, case=where)
        require(wanted != 1, "at once", told, case=where)
        if value is None:
            differ("wrong count", told, how="never", wanted=wanted, case=where)
        after = {n: (n * eager, first + (n - 1) * compiled) for n in (wanted - 1, wanted)}
        told += [f"after {n} calls: eager {e} µs, compiled {c} µs" for n, (e, c) in after.items()]
        symptom = "off by one" if abs(value - wanted) <= 1 else "wrong count"
        differ(symptom, told, how="count", wanted=wanted, case=where)
    return [f"{len(cases)} cases: the smallest number of calls, and None if there is none"]


# --- 01.5 -------------------------------------------------------------------------------------------------------------


def judge_training(answer: Answer) -> list[str]:
    told = _told("training.script", answer)
    steps, losses, graphs = len(BATCH_SIZES), told["losses"], told["graphs"]
    require(len(losses) == steps, "steps", [f"{len(losses)} losses"], how="first", wanted=steps)
    off = [
        i for i, (a, b) in enumerate(zip(losses, told["wanted"], strict=True)) if not math.isclose(a, b, rel_tol=1e-6)
    ]
    if off:
        wanted, got = apart(told["wanted"][off[0]], losses[off[0]])
        differ("other losses", [got], step=off[0] + 1, loss=wanted)
    require(graphs, "not compiled")
    ran = f"compiled code ran {counted(told['runs'], 'time')} in {counted(steps, 'step')}"
    require(told["runs"] <= steps, "graph break", [ran])
    require(max(graphs) >= 2, "only a part", [f"a graph with {counted(n, 'layer')}" for n in graphs[:3]])
    eager, often = told["runs"] < steps, len(graphs) > MOST_GRAPHS
    seen = [f"{ran}, and {len(graphs)} graphs were compiled"]
    require(not (eager and often), "compiled again", seen, how="gave up", times=len(graphs))
    require(not eager, "some steps", seen, how="eager")
    unlearned = steps - told["learned"]
    require(unlearned <= 0, "some steps", how="unlearned", unlearned=unlearned, steps=steps)
    require(not often, "compiled again", how="often", times=len(graphs), most=MOST_GRAPHS)
    again, wanted = told["again"], told["wanted_again"]
    require(len(again) == len(wanted), "steps", [f"{len(again)} losses"], how="again", wanted=len(wanted))
    same = all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(again, wanted, strict=True))
    require(same, "second call", [_losses(again)], losses=_losses(wanted))
    times = "once" if len(graphs) == 1 else f"{len(graphs)} times"
    return [
        f"{steps} steps with the losses of the original script",
        f"all of the model in one graph without a break; for two batch sizes it was compiled {times}",
    ]


def _losses(losses: list[float]) -> str:
    return some([f"{loss:.6f}" for loss in losses])


HANDED_OUT = {"2": "766f2a3e68f3", "3": "d432fb1e02db", "5": "ebfe8e212752"}

EXERCISES = {
    e.name: e
    for e in [
        Exercise("01.1", "predict the winners", judge_winners, how=""),
        Exercise("01.2", "make a function scriptable", judge_means, HANDED_OUT["2"], how=""),
        Exercise("01.3", "find the graph breaks", judge_breaks, HANDED_OUT["3"], how=""),
        Exercise("01.4", "when is it paid back?", judge_paid, how=""),
        Exercise("01.5", "compile a training script", judge_training, HANDED_OUT["5"], how=""),
    ]
}
