"""Section 5 of lesson 03: what threads of one process do at once, and what processes do."""

from __future__ import annotations

from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Run, Samples, Verdict, claim, figures, launch
from course_utils.for_lessons import Figure, as_number, bet, disturbed, figure_first, say, say_disturbed

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "03_threads.py"
SMALL, LARGE = 8, 512  # widths of the matrices that threads and processes multiply
SETUPS = {"one": (1, 1), "threads": (1, 2), "processes": (2, 1)}  # processes, threads in each

Guess = float | int | str | EllipsisType | None

_timed: dict[str, Run] = {}  # the runs of `show_threads`, by SETUPS


@figure_first
def show_threads(guess: Guess = ...) -> Figure:
    """Two threads and two processes, with small and with large operations, in times of one thread."""
    if disturbed(*_timed.values()):  # measured before, while other programs were in the way
        _timed.clear()
    found, why = _rates(), disturbed(*_timed.values())
    threads, processes = found["threads", SMALL].median, found["processes", SMALL].median
    if why:
        say_disturbed(why, "what threads and processes do", guess)
    else:
        said = bet(
            guess,
            threads,
            "You've met this lock before.",
            over="One thread computes, and the other waits for the lock.",
            under="It's a bit better: a thread lets go of the lock while it multiplies.",
            within=(threads - 0.25, threads + 0.25),
            kind="a number, such as 2",
        )
        say(
            f"Two threads do {threads:.1f} times the small products of one, and two processes {processes:.1f} times."
            f" {said}"
        )
    names = {SMALL: "small", LARGE: "large"}
    faster = kindly(found["processes", SMALL].more_than(found["threads", SMALL], factor=1.2)).unless(why)
    shown = claim("with small operations two processes do more than two threads", faster)
    if not shown and not why:
        say("Too close to tell. Other programs may be using your cores: close them and run this cell again.")
    large = [found[how, LARGE].median for how in ("threads", "processes")]
    level = min(large) > 1.3 and large[0] > 0.75 * large[1]
    if not why:
        say(
            f"With large products it's {large[0]:.1f} and {large[1]:.1f} times"
            f"{': there the lock hardly matters' if level else ''}."
        )
    title = f"Small operations: {threads:.1f} times with two threads, {processes:.1f} with two processes"
    return figures.bars(
        {f"2 {how}, {names[w]}": found[how, w] for w in (SMALL, LARGE) for how in ("threads", "processes")},
        guess={"2 threads, small": as_number(guess)},
        ylabel="products, compared with one thread",
        title=why or title,
    )


def threads_you_saw() -> str:
    """What two threads and two processes did, in a sentence."""
    found = _rates()
    if disturbed(*_timed.values()):
        return "While threads multiplied, other programs were in the way. Run section 5 again to see what two do."
    return (
        f"Two threads did {found['threads', SMALL].median:.1f} times the small products of one; two processes did"
        f" {found['processes', SMALL].median:.1f} times."
    )


def _time_threads() -> dict[str, Run]:
    """Multiply with one thread, two threads and two processes. On the CPU everywhere, since the lock is Python's."""
    widths = ["--widths", SMALL, LARGE]
    settings: dict[str, Any] = {"device": "cpu", "threads": 1, "quiet": True}
    return {
        name: launch(PROGRAM, ranks, args=["--threads", threads, *widths], **settings)
        for name, (ranks, threads) in SETUPS.items()
    }


def _rates() -> dict[tuple[str, int], Samples]:
    """Products per second of two threads and of two processes, in times of one thread, by width."""
    if not _timed:
        _timed.update(_time_threads())
    runs = {name: run.ranks[0] for name, run in _timed.items()}
    found = {}
    for width in (SMALL, LARGE):
        one = sorted(runs["one"].values("products_per_s", width=width))
        for how in ("threads", "processes"):
            rates = [rate / one[len(one) // 2] for rate in runs[how].values("products_per_s", width=width)]
            found[how, width] = Samples(rates, "times the rate of one thread")
    return found


def kindly(verdict: Verdict) -> Verdict:
    """A comparison of times that came out the wrong way round proves nothing either: other programs, a slow link."""
    return verdict if verdict.status == "shown" else Verdict("not shown", verdict.detail)
