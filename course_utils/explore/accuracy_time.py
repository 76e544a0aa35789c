"""Batch size against learning rate: steps and images until an accuracy, recorded, and what that takes on n GPUs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import cache
from typing import Any

from .. import predict
from ..figures.canvas import BLUE, INK, ORANGE, VERMILION
from ..launching.launcher import launch
from ..results.recorded import sweeps
from ..show.units import counted, number, readable
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values, opening
from .recorded_grid import grid, source

# Steps and images until an accuracy, as recorded, and what a step costs on n GPUs, as predicted: what
# `explore.time_to_accuracy()` draws.

BATCHES, RATES, LIMIT = (8, 32, 128, 512), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), 10_000
PERCENTS = (30, 45, 60)
# A step on an A100 with a model like ResNet-50: 2,500 images/s (NVIDIA DeepLearningExamples, ResNet-50 v1.5 with mixed
# precision), some time to start it, and its gradients in fp32 over NVLink (as in `explore.buckets`).
IMAGE_S, START_S, NBYTES, LINK = 0.4e-3, 3e-3, 102e6, predict.Link(3.1e-6, 235e9)


@cache
def reached() -> tuple[Mapping[tuple[int, float, int], float], int, str]:
    """Images until an accuracy for each (batch, rate, percent) that most seeds reached; how many seeds; where."""
    sweep = sweeps("04_time_to_accuracy")[0]
    found: dict[tuple[int, float, int], list[float]] = {}
    for point, (run,) in zip(sweep.points, sweep.runs, strict=True):
        for percent in PERCENTS:
            records = [(r["images"], r["accuracy"]) for r in run.ranks[0].records if "accuracy" in r]
            found.setdefault((point["batch_size"], point["lr"], percent), []).append(crossing(records, percent / 100))
    seeds = len({point["seed"] for point in sweep.points})
    middle = {key: statistics.median_high(images) for key, images in found.items()}
    return {k: n for k, n in middle.items() if n <= LIMIT + 512}, seeds, source(sweep.runs[0][0].provenance)


def crossing(records: list[tuple[int, float]], wanted: float) -> float:
    """The images after which the accuracy was first reached, on a straight line between two tests; infinity if
    never."""
    before = (0.0, 0.0)
    for images, accuracy in records:
        if accuracy >= wanted:
            return before[0] + (images - before[0]) * (wanted - before[1]) / (accuracy - before[1])
        before = (images, accuracy)
    return float("inf")


def best(batch: int, percent: int) -> tuple[float, float] | None:
    """The fewest images that this batch needed, and the learning rate that did it."""
    images = reached()[0]
    return min(((images[batch, r, percent], r) for r in RATES if (batch, r, percent) in images), default=None)


def step_parts(batch: int, gpus: int) -> tuple[float, float]:
    """Predicted seconds of a step: computing, with the batch shared out, and the all-reduce."""
    return START_S + IMAGE_S * -(-batch // gpus), predict.ring_all_reduce(gpus, NBYTES, LINK) if gpus > 1 else 0.0


CONTROLS = (
    Control("batch", "batch", 32, "images of a step, over all GPUs", choices={str(b): b for b in BATCHES}),
    Control("lr", "learning rate", 3e-3, "of AdamW", choices={f"{r:g}": r for r in RATES}),
    Control("gpus", "GPUs", 1, "that share each batch, for the predicted time", 1, 64, base=2),
    Control("percent", "accuracy", 60, "test images that the model gets right", choices={f"{p}%": p for p in PERCENTS},
            more=True),
)  # fmt: skip
LEAVES_OUT = (
    "warm-up, schedules, momentum and other ways to make large batches learn; other models and data, where the useful"
    " batch is another, usually a larger one. Steps are recorded with a small model, lesson 04's classifier at half its"
    f" width, on 20 classes of 100 images. Seconds are predicted for a step that costs what ResNet-50's does on A100s:"
    f" {1e3 * START_S:g} ms to start, {1e3 * IMAGE_S:g} ms an image, and a ring all-reduce of {NBYTES / 1e6:.0f} MB"
    " over NVLink, none of it hidden."
)
HERE = "the same small model, trained on this machine's ranks until it gets there"


def render(values: Values, found: Found, answered: bool = True) -> View:
    """Images for every batch and rate, as recorded; below, the predicted time of each batch at its best rate."""
    images, seeds, where = reached()
    batch, lr, percent, gpus = values["batch"], values["lr"], values["percent"], values["gpus"]
    here = found.get("measured")
    drawing = Drawing(378 + 24 * bool(here) if answered else 226)
    needed = images.get((batch, lr, percent))

    def cell(row: int, column: float) -> tuple[str, float | None]:
        n = images.get((row, column, percent))
        if not answered and row != BATCHES[0]:
            return "?", 0.0
        return ("not reached", None) if n is None else (f"{n:,.0f}", n / LIMIT)

    title = f"Batch {batch}, rate {lr:g}: "
    title += f"{percent}% after {needed / batch:,.0f} steps" if needed else f"{percent}% not within {LIMIT:,} images"
    drawing.text(12, 24, title if answered else "How many images does each batch need?", 15, bold=True)
    drawing.text(12, 50, f"images until {percent}% are right, by learning rate", 12)
    low = grid(drawing, 90, 58, WIDTH - 110, BATCHES, RATES, cell, (batch, lr), lambda b: f"batch {b}")
    drawing.text(WIDTH - 20, low + 18, f"{where}; {counted(seeds, 'seed')}", 11, "end")
    if not answered:
        return View.of(
            drawing, "The images that batch 8 needed, for each learning rate. Larger batches show after your guess."
        )
    times = _times(drawing, low + 34, percent, gpus)
    fast = min(times, key=lambda b: times[b][0])
    if here:
        drawing.text(12, 392, _said(here), 12, bold=True)
    small, large = min(times), max(times)
    needs = {b: f"{times[b][1]:,.0f} steps and {times[b][1] * b:,.0f} images" for b in (small, large)}
    said = (
        f"At their best rates, batch {small} needed {needs[small]}, batch {large} {needs[large]}. On {gpus}"
        f" GPU{'s' * (gpus > 1)} batch {fast} is predicted to be there first, after {readable('s', times[fast][0])}."
    )
    return View.of(drawing, f"{title}. {said}" + (f" {_said(here)}." if here else ""))


def _times(drawing: Drawing, y: float, percent: int, gpus: int) -> dict[int, tuple[float, float]]:
    """A bar for each batch at its best rate; returns seconds and steps."""
    fastest = {b: found for b in BATCHES if (found := best(b, percent))}
    times = {b: (found[0] / b * sum(step_parts(b, gpus)), found[0] / b) for b, found in fastest.items()}
    most = max(seconds for seconds, _ in times.values())
    drawing.text(12, y + 14, f"predicted time on {counted(gpus, 'GPU')}, each batch at its best rate", 12)
    drawing.bar(410, y + 3, 14, 12, BLUE)
    drawing.text(429, y + 14, "compute", 12)
    drawing.bar(500, y + 3, 14, 12, VERMILION, "///")
    drawing.text(519, y + 14, "all-reduce", 12)
    first = min(times, key=lambda b: times[b][0])
    for i, b in enumerate(BATCHES):
        up = y + 24 + 26 * i
        drawing.text(82, up + 15, f"batch {b}", 12, "end", bold=b == first)
        if b not in times:
            drawing.text(90, up + 15, f"not within {LIMIT:,} images at any rate", 12)
            continue
        compute, talk = (280 * part * times[b][1] / most for part in step_parts(b, gpus))
        drawing.bar(90, up + 2, compute, 20, BLUE, edge=ORANGE, dashes="5 3")
        drawing.bar(90 + compute, up + 2, talk, 20, VERMILION, "///" if talk > 4 else "", edge_width=0)
        shown = f"{readable('s', times[b][0])}: {times[b][1]:,.0f} steps, rate {fastest[b][1]:g}" + ", the first" * (
            b == first
        )
        drawing.text(98 + compute + talk, up + 16, shown, 12, bold=b == first, color=INK)
    return times


def _said(here: Mapping[str, Any]) -> str:
    got = (
        f"after {here['steps']:,} steps, {here['images']:,} images" if here["there"] else f"not within {LIMIT:,} images"
    )
    return f"Measured here, on {here['where']}: {got} (one run)"


def _run_here(values: Values) -> dict[str, Any]:
    args = ["--batch-size", values["batch"], "--lr", values["lr"], "--accuracy", values["percent"] / 100, "--seed", 7]
    program = PROGRAMS / "train_to_accuracy.py"
    run = launch(program, "auto", args=args, quiet=True, timeout=300, threads=1)
    last = run.ranks[0].records[-1]
    there = last["accuracy"] >= values["percent"] / 100
    return {"steps": last["steps"], "images": last["images"], "there": there, "where": run.placement.partition(",")[0]}


def _seconds(values: Values) -> float:
    """An estimate for a core that computes 600 images a second."""
    return 6 + reached()[0].get((values["batch"], values["lr"], values["percent"]), LIMIT) / 600


def time_to_accuracy(**settings: Any) -> Explorer:
    """Steps and images until an accuracy. `settings` are batch, lr, gpus and percent."""
    choices = (
        "as many images, in 64 times fewer steps",
        "about twice as many images",
        "about five times as many images",
    )

    def judge(guess: str | None) -> str:
        (few, _), (many, rate) = best(8, 60) or (1.0, 0.0), best(512, 60) or (float("inf"), 0.0)
        right = choices[min(range(3), key=lambda i: abs((1, 2, 5)[i] - many / few))]
        first = opening(guess, right)
        return (
            f"{first}{number(many / few)} times as many: {few:,.0f} with batch 8, {many:,.0f} with 512 (rate {rate:g})."
            f" It took {few / 8 / (many / 512):.0f} times fewer steps, not 64. Now move the GPUs: which batch is the"
            " fastest on 1, which on 64?"
        )

    text = (
        "With its best learning rate, how many images does batch 512 need, compared with batch 8, until 60% are right?"
    )
    question = Question(text, choices, judge)
    actions = [Action("Run here", "measured", _run_here, _seconds, HERE)]
    return Explorer(
        "time_to_accuracy", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=actions
    )
