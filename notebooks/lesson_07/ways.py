"""Updates a second against seconds to a loss: one process, Hogwild, and two processes in step."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Run, Samples, figures, launch, more_checks
from course_utils.for_lessons import Figure, bet, figure_first, say, say_disturbed

WAYS = Path(__file__).resolve().parents[1] / "programs" / "07_ways.py"
ONE, HOGWILD, STEP = "one process", "Hogwild", "in step"
LOSS = 3.0  # the network begins at 4.6, where it only guesses

Guess = float | int | str | EllipsisType | None
Points = Sequence[Sequence[float]]  # seconds, and the mean loss just before


@figure_first
def show_seconds(guess: Guess = ...) -> Figure:
    """How much sooner Hogwild and two processes in step are at a loss than one process, and how many updates more they
    make."""
    run = three_ways()
    more, faster = updates_ratio(run, HOGWILD), seconds_ratio(run, HOGWILD)
    title = f"Three ways to a loss of {LOSS:g}"
    if why := run.disturbed:
        say_disturbed(why, "how fast Hogwild is", guess)
    elif not math.isfinite(faster.median) or not faster.median:
        say(f"Not every way came to a loss of {LOSS:g} here, so there's nothing to compare. Run the cell again.")
    else:
        answer = bet(
            guess,
            faster.median,
            close="you've met old gradients before.",
            over=f"It made {more.median:.1f} times the updates, and none of them is worth more for being old.",
            under="An old gradient still points roughly the right way.",
            unit=" times",
            within=0.15,
            positive=True,
        )
        say(
            f"Hogwild made {more.median:.1f} times the updates a second of one process, and was at a loss of {LOSS:g}"
            f" {faster.median:.1f} times as fast. {answer}"
        )
        waits = seconds_ratio(run, STEP)
        if math.isfinite(waits.median):
            say(
                f"The two in step made {updates_ratio(run, STEP).median:.1f} times the updates of one process, each"
                f" from two fresh gradients, and got there {waits.median:.1f} times as fast."
            )
        title = f"Hogwild: {more.median:.1f} times the updates, {faster.median:.1f} times as fast to a loss of {LOSS:g}"
    checks = {
        "one process learns": min(loss for of in points(run, ONE) for _, loss in of) < 3.5,
        "in step no gradient is old": max(run.values("age", way=STEP)) == 0,
    }
    more_checks(checks)
    curves: dict[str, Any] = {way: zip_points(points(run, way)[0]) for way in (ONE, HOGWILD, STEP)}
    return figures.lines(curves, "seconds", "training loss", title=title)


@functools.cache
def three_ways() -> Run:
    """The same network in three ways, a few times each."""
    return launch(WAYS, 1, device="cpu", threads=1, timeout=300, quiet=True)


def points(run: Run, way: str) -> list[Points]:
    """Seconds and losses of each round."""
    return run.values("points", way=way)


def zip_points(of: Points) -> tuple[list[float], list[float]]:
    return [seconds for seconds, _ in of], [loss for _, loss in of]


def updates_per_s(way: str) -> float:
    """Updates a second of one of the three ways, the median of the rounds."""
    run = three_ways()
    return Samples(_rates(run, way), "updates_per_s").median


def _rates(run: Run, way: str) -> list[float]:
    return [n / of[-1][0] for n, of in zip(run.values("updates", way=way), points(run, way), strict=True)]


def updates_ratio(run: Run, way: str) -> Samples:
    """How many times the updates a second of one process, round by round."""
    ratios = [a / b for a, b in zip(_rates(run, way), _rates(run, ONE), strict=True)]
    return Samples(ratios, "times the updates")


def seconds_ratio(run: Run, way: str) -> Samples:
    """How many times as fast as one process to the loss, round by round: 0 if it never came there, infinity if only one
    process didn't."""
    taken = {name: [_reached(of) for of in points(run, name)] for name in (ONE, way)}
    ratios = [a / b if math.isfinite(b) else 0.0 for a, b in zip(taken[ONE], taken[way], strict=True)]
    return Samples(ratios, "times as fast")


def _reached(of: Points) -> float:
    return next((seconds for seconds, loss in of if loss < LOSS), math.inf)
