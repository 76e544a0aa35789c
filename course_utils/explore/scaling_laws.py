"""What more GPUs bring: speed-up by the two laws with the cost of talking, and when a job in a queue is done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import predict
from ..figures.canvas import GREY, INK, ORANGE, RUST
from ..show.units import counted, number
from .controls import Control
from .drawing import Drawing, View
from .explorer import Explorer, Found, Question, Values, opening
from .parts import LogPlot

MOST = 1024
COUNTS = [2**power for power in range(11)]
SERIAL = Control("serial", "serial share", 5, "of the time on one GPU: what can't be split", 0, 50, "%", whole=False)
TALK = Control("talk", "talking", 0, "what summing the gradients takes on 2 GPUs, of the time of a step on one",
               0, 100, "%", whole=False)  # fmt: skip
GPUS = Control("gpus", "GPUs", 64, "how many share the work", 1, MOST, base=2)
LATENCY = Control("latency", "latency", 0.01, "of one message, of the time of a step on one GPU", 0, 1, "%",
                  whole=False, more=True)  # fmt: skip
CONTROLS = (SERIAL, TALK, GPUS, LATENCY)
LEAVES_OUT = (
    "overlap of computing and talking (lesson 05), which hides some of it; GPUs that come late; what a GPU loses on a"
    " small batch; and that a larger batch may need more images to learn the same. All talk is a ring all-reduce, and"
    " between machines a link is slower than within one."
)


def talk_share(values: Values, n: int) -> float:
    """A ring all-reduce on `n` GPUs, as a share of a step on one GPU: `predict.ring_all_reduce` with a link that sums
    on two GPUs in `talk` percent of the step, and `latency` percent for each of 2 (n-1) messages on top."""
    step, nbytes = values["talk"] / 100, 1.0
    latency = values["latency"] / 100 if step else 0.0
    return predict.ring_all_reduce(n, nbytes, predict.Link(latency, nbytes / max(step, 1e-12)))


def strong(values: Values, n: int) -> float:
    """Speed-up of the same job on `n` GPUs: Amdahl's law, with the talk on top."""
    return 1 / (1 / predict.amdahl(n, values["serial"] / 100) + talk_share(values, n))


def weak(values: Values, n: int) -> float:
    """How much more is done at a time when each GPU brings its own share of work: Gustafson's law, with the talk on
    top. The serial share is that of one GPU."""
    return predict.gustafson(n, values["serial"] / 100) / (1 + talk_share(values, n))


def times(value: float) -> str:
    """A speed-up with three digits."""
    return f"{value:.{max(0, 2 - max(0, math.floor(math.log10(value))))}f}"


def _percent(part: float) -> str:
    return f"{part:.0%}" if part >= 0.1 else f"{100 * part:.2g}%"


def render(values: Values, found: Found, answered: bool = True) -> View:
    """Speed-up over GPUs: ideal, the same job, and a job that grows; a mark at the GPUs that were chosen."""
    n = values["gpus"]
    same, grown = strong(values, n), weak(values, n)
    best = max(COUNTS, key=lambda k: strong(values, k))
    title = f"{counted(n, 'GPU')}: the same job {times(same)} times as fast, an efficiency of {_percent(same / n)}"
    drawing = Drawing(312)
    drawing.text(12, 24, title if answered else f"How much faster are {n} GPUs?", 15, bold=True)
    plot = LogPlot(drawing, 66, 205, (1, MOST), (0.5, MOST), "GPUs", "x")
    plot.line([(1, 1), (MOST, MOST)], GREY, 1)
    legend = [(GREY, "", 1.0, "ideal")]
    if answered:
        grid = [2 ** (power / 4) for power in range(41)]  # the laws hold between whole numbers too
        for law, dashes, words in ((weak, "2 4", "a job that grows (weak)"), (strong, "7 4", "the same job (strong)")):
            points = [(float(round(k)), law(values, round(k))) for k in grid]
            plot.line(points, ORANGE, 2.4, dashes)
            legend.append((ORANGE, dashes, 2.4, words))
        plot.mark((n, grown), RUST, hollow=True)
        plot.mark((n, same), RUST)
    _legend(drawing, legend)
    if not answered:
        return View.of(drawing, "Speed-up over GPUs. Only the ideal line is drawn before your guess.")
    ceiling = ""
    if best < MOST:
        ceiling = f" Beyond about {best} GPUs each further one makes it slower, because all have to talk."
    elif values["serial"]:
        ceiling = (
            f" However many there are, the serial share allows no more than {times(100 / values['serial'])} times."
        )
    job = (
        f"the same job is done {times(same)} times as fast, and one that grows with the GPUs does {times(grown)} times"
    )
    return View.of(drawing, f"On {counted(n, 'GPU')} {job} as much at a time.{ceiling}")


def _legend(drawing: Drawing, rows: list[tuple[str, str, float, str]]) -> None:
    x = 84.0
    for color, dashes, width, words in rows:
        drawing.line([(x, 46), (x + 30, 46)], color, width, dashes)
        drawing.text(x + 36, 50, words, 12)
        x += 66 + 6.6 * len(words)


# When a job of many GPUs is done, queue and run together, and what it costs: `explore.scaling(money=True)`.

NODE = 8  # GPUs that a job gets without waiting
MONEY_CONTROLS = (
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


def render_money(values: Values, found: Found, answered: bool = True) -> View:
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
    return f"{counted(n, 'GPU')}"


def _sum(money: float) -> str:
    return f"{money:,.0f}"


def _with_money(settings: Mapping[str, Any]) -> Explorer:
    start = {control.name: control.default for control in MONEY_CONTROLS}
    choices = {_gpus(k): k for k in (8, 32, 128, 1024)}
    right = min(choices.values(), key=lambda k: done_h(start, k))

    def judge(guess: str | None) -> str:
        first = opening(guess, _gpus(right))
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
    question = Question(text, tuple(choices), judge)
    return Explorer(
        "scaling",
        MONEY_CONTROLS,
        render_money,
        given=settings,
        leaves_out=leaves,
        question=question,
        also={"money": True},
    )


def scaling(money: bool = False, **settings: Any) -> Explorer:
    """What more GPUs bring. `settings` are serial, talk and latency (all in percent of a step on one GPU), and gpus.
    With `money=True` also when a job is done that waits in a queue, and its price: queue, deadline, price, hours."""
    if not isinstance(money, bool):
        raise ValueError(f"money is True or False; got {money!r}")
    if money:
        return _with_money(settings)
    start = {control.name: control.default for control in CONTROLS}
    n, right = GPUS.default, strong(start, GPUS.default)
    choices = [f"about {number(round(guess))} times" for guess in (0.95 * n, n / 2, right)]

    def judge(guess: str | None) -> str:
        first = opening(guess, choices[-1])
        parts = f"the part that is split shrinks to {95 / n:.1f}% of the time, but the {SERIAL.default}% stay"
        return f"{first}It's {times(right)} times: {parts}. Now let the GPUs talk, for 3% of a step, say."

    text = (
        f"{SERIAL.default}% of a job can't be split, and talking costs nothing yet. How much faster is it on {n} GPUs?"
    )
    question = Question(text, choices, judge)
    return Explorer("scaling", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question)
