"""Lesson 01: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import math
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Difference, Exercise, apart, some
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
        if said != winner:
            raise Difference(
                symptom,
                f"Function {name}: you predict {said!r}, and that's not what happens.",
                "",
                [_seen(name, told["evidence"][name])],
            )
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
    where = f"({case}, {how})"
    if not got["gradient"]:
        raise Difference("gradient", f"The means have no gradient {where}.", "one, if x has one: a mean can be trained")
    if got["dtype"] != case.dtype:
        raise Difference("dtype", f"The means are of {got['dtype']} {where}.", f"{case.dtype}, as x is")
    if got["shape"] != [len(case.sizes)]:
        raise Difference("shape", f"The means have shape {got['shape']} {where}.", f"[{len(case.sizes)}]")
    short = sum(size > len(case.x) for size in case.sizes)
    if got["short"] != short:
        raise Difference(
            "short",
            f"The number of short windows differs from that of the original function {where}.",
            f"{short}",
            [f"{got['short']}"],
        )
    plain = [math.fsum(case.x[-size:]) / len(case.x[-size:]) for size in case.sizes]
    wanted = [v * (1 if case.scale is None else case.scale) for v in plain]
    tolerance = 1e-5 if case.dtype == "float32" else 1e-12
    if not _alike(got["values"], wanted, tolerance):
        raise Difference(
            "zero" if case.scale == 0 and _alike(got["values"], plain, tolerance) else "wrong value",
            f"The means differ from those of the original function {where}.",
            *_numbers(wanted, got["values"], tolerance),
        )


def _alike(got: list[float | None], wanted: list[float], tolerance: float) -> bool:
    return len(got) == len(wanted) and all(
        a is not None and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
        for a, b in zip(got, wanted, strict=True)
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _numbers(wanted: list[float], got: list[float | None], tolerance: float) -> tuple[str, list[str]]:
    """The numbers from the first that differs, with enough digits: what was expected, and what we got."""
    first = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if not _alike([a], [b], tolerance))
    pairs = [apart(b, _number(a)) for a, b in zip(got[first:], wanted[first:], strict=True)][:5]
    before, after = "..., " if first else "", ", ..." if first + 5 < len(wanted) else ""
    texts = [before + ", ".join(pair[side] for pair in pairs) + after for side in (0, 1)]
    return texts[0], texts[1:]


# --- 01.3 -------------------------------------------------------------------------------------------------------------


def judge_breaks(answer: Answer) -> list[str]:
    told = _told("breaks", answer)
    inputs = clip_inputs(told["seed"])
    for (name, x), got in zip(inputs, told["called"], strict=True):
        _clipped(x, got, f"({name})")
    if told["compilations"] == 0:
        raise Difference(
            "no graph", "Nothing was compiled: the function is left to Python.", "one graph that holds all of it"
        )
    if told["hidden"]:
        raise Difference(
            "no graph",
            f"The graph calls `{told['hidden']}`, and the compiler doesn't see what that does.",
            "one graph that holds all of it",
        )
    for (name, _), (y, _norm) in zip(inputs, told["double"], strict=False):
        if y["dtype"] != "float64":
            raise Difference("dtype", f"For x of float64, y is of {y['dtype']} ({name}).", "float64, as x is")
    if told["reasons"]:
        got = [f"line {line + 1} of the cell: {why}" if line else why for line, why in told["reasons"]]
        raise Difference("graph break", f"It becomes {told['graphs']} graphs.", "one graph, no break", got)
    for (name, x), got in zip(inputs, told["compiled"], strict=False):
        _clipped(x, got, f"({name}, compiled)")
    if told["compilations"] != 1:
        raise Difference(
            "compiled again",
            f"For inputs of one shape it was compiled {told['compilations']} times.",
            "once: nothing in the graph depends on the values",
        )
    return [
        f"one graph without a break, compiled once for {len(CLIP_SCALES)} inputs",
        f"eager and compiled: the values of the original function; eager also for {len(inputs) - len(CLIP_SCALES)}"
        " inputs of other lengths",
    ]


def _clipped(x: list[float], got: list[dict[str, Any]], where: str) -> None:
    for what, value, shape in zip(("y", "the norm"), got, ([len(x)], []), strict=True):
        if value["shape"] != shape:
            raise Difference("shape", f"{what[0].upper()}{what[1:]} has shape {value['shape']} {where}.", f"{shape}")
        if value["dtype"] != "float32":
            raise Difference(
                "dtype", f"{what[0].upper()}{what[1:]} is of {value['dtype']} {where}.", "float32, as x is"
            )
    y = [3 * math.sin(v) for v in x]
    norm = math.hypot(*y)
    factor = min(1.0, LIMIT / norm) if norm else 1.0
    y = [v * factor for v in y]
    if not _alike(got[1]["values"], [norm], 1e-5):
        wanted_norm, got_norm = apart(norm, _number(got[1]["values"][0]))
        raise Difference(
            "norm",
            f"The norm that you return isn't that of y before clipping {where}.",
            f"{wanted_norm}, the norm before clipping",
            [got_norm],
        )
    if not _alike(got[0]["values"], y, 1e-5):
        small = norm <= LIMIT
        wanted_norm, got_norm = apart(min(norm, LIMIT), math.hypot(*map(_number, got[0]["values"])))
        wanted, numbers = _numbers(y, got[0]["values"], 1e-5)
        raise Difference(
            "small" if small else "wrong value",
            f"A y whose norm is at most LIMIT is changed {where}."
            if small
            else f"y differs from that of the original function {where}.",
            f"y of norm {wanted_norm}: {wanted}",
            [f"y of norm {got_norm}: {numbers[0]}"],
        )


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
        expected = "never: None" if wanted is None else f"{counted(wanted, 'call')}"
        told = ["None" if value is None else f"{value} calls"]
        if wanted is None:
            raise Difference("never", f"It is never paid back ({where}).", expected, told)
        if wanted == 1:
            raise Difference("at once", f"Even the first call is no slower ({where}).", expected, told)
        if value is None:
            raise Difference("wrong count", f"It is paid back at some point ({where}).", expected, told)
        after = {n: (n * eager, first + (n - 1) * compiled) for n in (wanted - 1, wanted)}
        told += [f"after {n} calls: eager {e} µs, compiled {c} µs" for n, (e, c) in after.items()]
        symptom = "off by one" if abs(value - wanted) <= 1 else "wrong count"
        raise Difference(symptom, f"This isn't the smallest number of calls that is enough ({where}).", expected, told)
    return [f"{len(cases)} cases: the smallest number of calls, and None if there is none"]


# --- 01.5 -------------------------------------------------------------------------------------------------------------


def judge_training(answer: Answer) -> list[str]:
    told = _told("training.script", answer)
    steps, losses, graphs = len(BATCH_SIZES), told["losses"], told["graphs"]
    if len(losses) != steps:
        raise Difference("steps", "Not every batch was trained on once.", f"{steps} losses", [f"{len(losses)} losses"])
    off = [
        i for i, (a, b) in enumerate(zip(losses, told["wanted"], strict=True)) if not math.isclose(a, b, rel_tol=1e-6)
    ]
    if off:
        wanted, got = apart(told["wanted"][off[0]], losses[off[0]])
        raise Difference("other losses", f"From step {off[0] + 1} on it's another training.", f"loss {wanted}", [got])
    if not graphs:
        raise Difference("not compiled", "No graph was captured: everything ran in eager mode.", "a compiled model")
    if told["runs"] > steps:
        seen = [f"compiled code ran {told['runs']} times in {steps} steps"]
        raise Difference(
            "graph break", "Python has to step in, between two graphs.", "one graph for all of forward", seen
        )
    if max(graphs) < 2:
        raise Difference("only a part", "The graph holds only a part of the model.", "both layers", _layers(graphs))
    if told["runs"] < steps:
        seen = [f"compiled code ran {told['runs']} times in {steps} steps, and {len(graphs)} graphs were compiled"]
        if len(graphs) > MOST_GRAPHS:
            gave_up = f"It was compiled {len(graphs)} times. Then torch gave up, and ran the other steps in eager mode."
            raise Difference("compiled again", gave_up, "compiled code in each step", seen)
        raise Difference("some steps", "Some steps ran in eager mode.", "compiled code in each step", seen)
    if told["learned"] < steps:
        raise Difference(
            "some steps",
            f"Compiled code ran in each step, but in {steps - told['learned']} of {steps} no gradient came back"
            " through it.",
            "the loss of each step from what compiled code returned",
        )
    if len(graphs) > MOST_GRAPHS:
        raise Difference(
            "compiled again",
            f"It was compiled {len(graphs)} times.",
            f"{MOST_GRAPHS} times at most: at first, and when a size or a number turns out to change",
        )
    again, wanted = told["again"], told["wanted_again"]
    if len(again) != len(wanted):
        raise Difference(
            "steps",
            f"Called a second time, with {len(wanted)} batches, `train` doesn't train on all.",
            f"{len(wanted)} losses",
            [f"{len(again)} losses"],
        )
    if not all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(again, wanted, strict=True)):
        raise Difference(
            "second call",
            "Called a second time, with the same seed, `train` doesn't train a new `Net`.",
            f"losses {some([f'{loss:.6f}' for loss in wanted])}, as in the first call",
            [some([f"{loss:.6f}" for loss in again])],
        )
    times = "once" if len(graphs) == 1 else f"{len(graphs)} times"
    return [
        f"{steps} steps with the losses of the original script",
        f"all of the model in one graph without a break; for two batch sizes it was compiled {times}",
    ]


def _layers(graphs: list[int]) -> list[str]:
    return [f"a graph with {counted(n, 'layer')}" for n in graphs[:3]]


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
