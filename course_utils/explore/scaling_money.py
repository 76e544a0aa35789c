"""When a job of many GPUs is done, queue and run together, and what it costs: `explore.scaling(money=True)`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import predict
from ..figures.canvas import GREY, INK, ORANGE, RUST
from .controls import Control
from .drawing import Drawing, View
from .explorer import Explorer, Found, Question, Values
from .log_plot import LogPlot
from .scaling_laws import COUNTS, GPUS, LATENCY, LEAVES_OUT, MOST, SERIAL, TALK, _legend, strong

NODE = 8  # GPUs that a job gets without waiting
CONTROLS = (
    GPUS,
    Control("queue", "queue", 0.5, "hours in the queue: this, times the square of the doublings beyond 8 GPUs",
            0, 10, "h", whole=False),
    Control("deadline", "deadline", 48, "when you need the result", 1, 1000, "h", base=10, whole=False),
    Control("price", "price", 2.5, "of one GPU for an hour, in your currency", 0, 20, "a GPU hour", whole=False,
            more=True),
    Control("hours", "the job", 1000, "hours on one GPU", 10, 100_000, "GPU hours", base=10, whole=False, more=True),
    replace(SERIAL, default=0.2, more=True),
    replace(TALK, default=0.5, more=True),
    replace(LATENCY, default=0.001),
)  # fmt: skip


def queue_h(values: Values, n: int) -> float:
    """Hours in the queue: a made-up rule."""
    return float(values["queue"] * math.log2(max(1.0, n / NODE)) ** 2)


def run_h(values: Values, n: int) -> float:
    return float(values["hours"] / strong(values, n))


def done_h(values: Values, n: int) -> float:
    return queue_h(values, n) + run_h(values, n)


def price(values: Values, n: int) -> float:
    """Of the run: a queue costs nothing but time."""
    return float(n * run_h(values, n) * values["price"])


def fewest(values: Values) -> predict.Budget | None:
    """The fewest GPUs, of powers of two, that meet the deadline."""
    return predict.gpus_for_deadline(
        values["hours"], values["deadline"], lambda n: strong(values, n) / n,
        queue_hours=lambda n: queue_h(values, n), price_per_gpu_hour=values["price"], most=MOST,
    )  # fmt: skip


def render(values: Values, found: Found, answered: bool = True) -> View:
    """Hours until the result over GPUs, the run alone and with the queue; the deadline as a line."""
    n, deadline = values["gpus"], values["deadline"]
    runs, done = ([(float(k), of(values, k)) for k in COUNTS] for of in (run_h, done_h))
    now, soonest = done_h(values, n), min(COUNTS, key=lambda k: done_h(values, k))
    low, high = (10.0 ** edge(math.log10(of(h for _, h in [*runs, *done, (0, deadline)])))
                 for edge, of in ((math.floor, min), (math.ceil, max)))  # fmt: skip
    drawing = Drawing(312)
    waits, costs = hours(queue_h(values, n)), _sum(price(values, n))
    title = f"{_gpus(n)}: done after {hours(now)}, {waits} of it in the queue; costs {costs}"
    drawing.text(12, 24, title if answered else "How many GPUs have the result first?", 15, bold=True)
    plot = LogPlot(drawing, 66, 205, (1, MOST), (low, max(high, 10 * low)), "GPUs", " h")
    plot.line([(1, deadline), (MOST, deadline)], RUST, 1.6)
    x, y = plot.at((1, deadline))
    drawing.text(x + 8, y - 6 if y > 90 else y + 16, f"deadline: {hours(deadline)}", 12, color=RUST)
    legend = [(ORANGE, "2 4", 2.4, "run alone")]
    plot.line(runs, ORANGE, 2.4, "2 4")
    if answered:
        plot.line(done, ORANGE, 2.4, "7 4")
        legend.append((ORANGE, "7 4", 2.4, "queue and run (○ the first to be done)"))
        plot.mark((n, now), RUST if now > deadline else INK)
        plot.mark((soonest, done_h(values, soonest)), GREY, hollow=True)
    _legend(drawing, legend)
    if not answered:
        return View.of(drawing, "The hours of the run alone over GPUs. The queue is added after your guess.")
    met = fewest(values)
    enough = "no number of GPUs meets the deadline"
    if met is not None:
        enough = f"the deadline takes {_gpus(met.gpus)} ({hours(met.hours)}, {_sum(met.price)})"
    first = f"{_gpus(soonest)} {'has' if soonest == 1 else 'have'} the result first"
    late = "" if now <= deadline else f" {_gpus(n)} miss{'es' * (n == 1)} it by {hours(now - deadline)}."
    then = f"after {hours(done_h(values, soonest))}, at a price of {_sum(price(values, soonest))}"
    return View.of(drawing, f"{first}, {then}; {enough}.{late}")


def hours(value: float) -> str:
    """Hours in words, of a length that people plan with."""
    return f"{value:.1f} h" if value < 100 else f"{value:,.0f} h"


def _gpus(n: int) -> str:
    return f"{n} GPU{'s' * (n > 1)}"


def _sum(money: float) -> str:
    return f"{money:,.0f}"


def explorer(settings: Mapping[str, Any]) -> Explorer:
    start = {control.name: control.default for control in CONTROLS}
    choices = {_gpus(k): k for k in (8, 32, 128, 1024)}
    right = min(choices.values(), key=lambda k: done_h(start, k))

    def judge(guess: str | None) -> str:
        first = "" if guess is None else "Yes. " if choices[guess] == right else "Not this time. "
        told = ", ".join(
            f"{hours(done_h(start, k))} with {_gpus(k)} ({_sum(price(start, k))})" for k in choices.values()
        )
        return f"{first}Done after {told}. Now change the queue, and look for the cheapest that meets your deadline."

    text = (
        f"A job needs {start['hours']:,} hours on one GPU. {NODE} GPUs are free; twice as many take half an hour in the"
        " queue, four times as many 2 hours, eight times as many 4.5. Which of these has the result first?"
    )
    leaves = (
        LEAVES_OUT + " The queue's rule is made up; at your centre, look at `squeue --start`. Prices in your currency."
    )
    question = None if settings else Question(text, tuple(choices), judge)
    return Explorer(CONTROLS, render, given=settings, leaves_out=leaves, question=question)
