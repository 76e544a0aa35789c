"""Trainers that don't wait for each other, against the learning rate: what old gradients did, as recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..figures.canvas import BLUE, GREEN, GREY, INK, VERMILION
from ..launching.launcher import launch
from ..results.recorded import sweeps
from ..show.units import counted
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values, opening
from .parts import LEFT, WIDE
from .recorded_grid import grid, source

# What trainers that don't wait for each other learned at several learning rates, as recorded: what
# `explore.staleness()` draws.


@dataclass(frozen=True)
class AsyncTraining:
    """A training: loss by updates (None from where it was no number), test accuracy at the end, mean staleness."""

    losses: Sequence[tuple[float, float | None]]
    accuracy: float
    stale: float

    @property
    def diverged(self) -> bool:
        return any(loss is None or loss > 20 for _, loss in self.losses)

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]]) -> AsyncTraining:
        losses = [(r["updates"], r["loss"]) for r in records if "updates" in r]
        return cls(losses, records[-1]["accuracy"], records[-1]["stale"])


@cache
def trainings() -> tuple[Mapping[tuple[int, float], list[AsyncTraining]], str]:
    """The trainings of each (trainers, rate), a seed each, and where they were recorded."""
    sweep = sweeps("07_staleness")[0]
    found: dict[tuple[int, float], list[AsyncTraining]] = {}
    for point, (run,) in zip(sweep.points, sweep.runs, strict=True):
        found.setdefault((point["trainers"], point["lr"]), []).append(AsyncTraining.of(run.ranks[0].records))
    return found, source(sweep.runs[0][0].provenance)


def middle(trainers: int, lr: float) -> AsyncTraining:
    """The training in the middle of the seeds, by its accuracy; of two the worse."""
    seeds = sorted(trainings()[0][trainers, lr], key=lambda t: (not t.diverged, t.accuracy))
    return seeds[(len(seeds) - 1) // 2]


TRAINERS, RATES, UPDATES, CHANCE = (1, 2, 4, 8), (0.01, 0.02, 0.05, 0.1), 2000, 0.01
CONTROLS = (
    Control("trainers", "trainers", 4, "processes that share one model", choices={str(n): n for n in TRAINERS}),
    Control("lr", "learning rate", 0.02, "of each update", choices={f"{r:g}": r for r in RATES}),
)
LEAVES_OUT = (
    "any model: nothing here is predicted, and between the settings that ran there is nothing. Other networks, data and"
    " machines move the border: how old gradients get depends on who runs when. Ages are counted just before the"
    " weights are written, so they're about a quarter too low. Time: more trainers make the same"
    f" {UPDATES:,} updates faster where there are cores for them. The network is that of lesson 07's Hogwild (two"
    " linear layers, 100 classes of pictures, batches of 32, SGD), the same number in all."
)
ASKED, GOAL = 0.05, 3.0  # the question's learning rate and training loss
HERE = "the same trainers at this learning rate, on this machine's cores"
_DASHES = ("", "8 4", "2 3", "9 3 2 3")
_LOOKS = dict(zip(TRAINERS, zip((INK, BLUE, GREEN, VERMILION), _DASHES, strict=True), strict=True))


def render(values: Values, found: Found, answered: bool = True) -> View:
    """Test accuracy for all trainers and rates; below, the loss of all trainers at the chosen rate."""
    every, where = trainings()
    trainers, lr, here = values["trainers"], values["lr"], found.get("measured")
    drawing = Drawing(400 + 24 * bool(here) if answered else 226)
    now = middle(trainers, lr)

    def cell(row: int, column: float) -> tuple[str, float | None]:
        if not answered and row != TRAINERS[0]:
            return "?", 0.0
        at = middle(row, column)
        return ("diverged", None) if at.diverged else (f"{at.accuracy:.1%}", min(1.0, at.accuracy / 0.3))

    ages = {n: middle(n, lr).stale for n in TRAINERS}
    end = "the loss diverged" if now.diverged else f"{now.accuracy:.1%} right in the end"
    title = f"{_many(trainers)}, learning rate {lr:g}: {end}"
    drawing.text(12, 24, title if answered else "Which trainings still learn?", 15, bold=True)
    drawing.text(12, 50, f"test accuracy after {UPDATES:,} updates, by learning rate", 12)
    name = {n: f"{_many(n)}, " + (f"{ages[n]:.1f} old" if ages[n] else "fresh") for n in TRAINERS}
    low = grid(drawing, 150, 58, WIDTH - 170, TRAINERS, RATES, cell, (trainers, lr), lambda n: name[n])
    drawing.text(WIDTH - 20, low + 18, f"{where}; {len(every[1, RATES[0]])} seeds. Old: updates by others", 11, "end")
    if not answered:
        return View.of(drawing, "What one trainer reaches at each learning rate. More trainers show after your guess.")
    _losses(drawing, low + 34, lr, trainers)
    worst = {n: max((r for r in RATES if not middle(n, r).diverged), default=None) for n in TRAINERS}
    told = ", ".join(f"{n}: {rate:g}" if rate else f"{n}: none" for n, rate in worst.items())
    said = f"{title}. Its gradients were {now.stale:.1f} updates old."
    said += f" The largest rate that didn't diverge, by trainers: {told}."
    if here:
        drawing.text(12, 414, _said(here), 12, bold=True)
        said += f" {_said(here)}."
    return View.of(drawing, said)


def _losses(drawing: Drawing, y: float, lr: float, chosen: int) -> None:
    """Training loss by updates, for every number of trainers at this rate. What leaves the top is drawn to its edge."""
    low, tall, most = y + 122, 88.0, 6.0
    drawing.text(12, y + 14, f"training loss at rate {lr:g}", 12)
    x = 240.0
    for n in TRAINERS:
        color, dashes = _LOOKS[n]
        drawing.line([(x, y + 10), (x + 26, y + 10)], color, 3.5 if n == chosen else 1.8, dashes)
        drawing.text(x + 31, y + 14, _many(n), 12, bold=n == chosen)
        x += 105
    drawing.line([(LEFT, low - tall), (LEFT, low), (LEFT + WIDE, low)], "#888888", 1)
    for mark in (0, 2, 4, 6):
        drawing.text(LEFT - 8, low - tall * mark / most + 4, f"{mark}", 11, "end")
    for mark in range(0, UPDATES + 1, 500):
        drawing.text(LEFT + WIDE * mark / UPDATES, low + 17, f"{mark:,}", 11, "middle")
    guess = low - tall * math.log(100) / most
    drawing.line([(LEFT, guess), (LEFT + WIDE, guess)], GREY, 1, "2 3")
    drawing.text(LEFT + WIDE, low + 32, "updates by all trainers; dotted grey: guessing among 100 classes", 11, "end")
    for n in TRAINERS:
        color, dashes = _LOOKS[n]
        points = []
        for updates, loss in middle(n, lr).losses:
            x = LEFT + WIDE * (updates + UPDATES / 40) / UPDATES
            points.append((x, low - tall * min(loss if loss is not None else most, most) / most))
            if loss is None or loss > most:
                break
        if len(points) == 1:
            points.insert(0, (LEFT, guess))
        drawing.line(points, color, 3.5 if n == chosen else 1.8, dashes)


def _many(n: int) -> str:
    return f"{counted(n, 'trainer')}"


def _said(here: AsyncTraining) -> str:
    end = "the loss diverged" if here.diverged else f"{here.accuracy:.1%} right in the end"
    return f"Measured here: {end}, gradients {here.stale:.1f} updates old (one run, another seed)"


def _run_here(values: Values) -> AsyncTraining:
    args = ["--trainers", values["trainers"], "--lr", values["lr"], "--seed", 7]
    program = PROGRAMS / "hogwild_steps.py"
    run = launch(program, 1, args=args, quiet=True, timeout=300, threads=1, device="cpu")
    return AsyncTraining.of(run.ranks[0].records)


def _updates_to(trainers: int) -> int | None:
    """The updates until the training loss is below `GOAL`, at the rate of the question; None if it never is."""
    return next((int(n) for n, loss in middle(trainers, ASKED).losses if loss is not None and loss < GOAL), None)


def staleness(**settings: Any) -> Explorer:
    """What old gradients do to a training. `settings` are trainers and lr."""
    choices = ("as many", "about twice as many", "they never get there")

    def judge(guess: str | None) -> str:
        one, eight = _updates_to(1), _updates_to(8)
        assert one is not None, "the recording has one trainer that gets there"
        right = choices[2 if eight is None else 1 if eight > 1.4 * one else 0]
        got = "8 never get there" if eight is None else f"8 need {eight:,}"
        first = opening(guess, right)
        return (
            f"{first}1 trainer needs {one:,} updates, and {got}. An old gradient still points roughly the right way"
            " while steps are small. Find the rate at which that ends, for 1, 2 and 8 trainers."
        )

    text = (
        f"1 trainer takes its learning rate of {ASKED:g} to a loss of {GOAL:g}. How many updates do 8 need for that,"
        " together?"
    )
    question = Question(text, choices, judge)
    actions = [Action("Run here", "measured", _run_here, lambda values: 12, HERE)]
    return Explorer(
        "staleness", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=actions
    )
