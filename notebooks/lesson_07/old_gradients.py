"""A parameter server: how old its gradients are, what that does to a learning rate, and what a model says of both."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Run, claim, figures, launch, more_checks
from course_utils.for_lessons import Figure, Program, as_number, bet, figure_first, say

SERVER = Path(__file__).resolve().parents[1] / "programs" / "07_server.py"
TRAINERS, SLOW = 4, 4.0  # trainers, and how many times as long the slow one takes
MANY = {1: "one trainer", 2: "two trainers", 4: "four trainers"}
LARGE, SMALL, UPDATES = 0.8, 0.2, 60  # two learning rates, and how many updates they have

OTHERWISE = {
    "as good": "It is for one. But four step from the same place, one after the other, without seeing where they are.",
    "worse": "Each update makes it worse, without end.",
    "explodes": "Here it didn't.",
}

Guess = float | int | str | EllipsisType | None


def serve(trainers: int, *args: Any) -> Run:
    """Run the server with so many trainers. `args` are the program's, such as `"--slow", 4`."""
    return launch(SERVER, 1 + trainers, args=list(args), device="cpu", threads=1, timeout=120, quiet=True)


def server_program() -> Program:
    """The server and its trainers, as code behind a click."""
    return Program(SERVER)


def mean_age(run: Run, trainers: Sequence[int] | None = None) -> float:
    """The mean staleness of the gradients of some trainers, or of all: updates by others between read and update."""
    pairs = zip(run.value("staleness"), run.value("trainer"), strict=True)
    ages = [age for age, trainer in pairs if trainers is None or trainer in trainers]
    return sum(ages) / len(ages)


@figure_first
def show_ages(guess: Guess = ...) -> Figure:
    """How old the gradients of each of four trainers are, of which the first takes four times as long as the others."""
    run = uneven()
    ages = [mean_age(run, [i]) for i in range(TRAINERS)]
    slow, fast, every = ages[0], mean_age(run, range(1, TRAINERS)), mean_age(run)
    answer = bet(
        guess,
        slow,
        close="you counted who comes by meanwhile.",
        over="The others aren't that fast.",
        under="While it computes one gradient, each of the others makes about four.",
        within=(0.8 * slow, 1.25 * max(slow, SLOW * (TRAINERS - 1))),  # on paper is right, too
        traps={
            TRAINERS - 1: "That's the mean over all four, and this one is away for longer.",
            SLOW: "That's how many one of the others makes meanwhile, but there are three of them.",
            SLOW * TRAINERS: f"There are {TRAINERS - 1} others, not {TRAINERS}.",
        },
        positive=False,
    )
    say(
        f"The slow trainer's gradients are {slow:.1f} updates old, those of the others {fast:.1f}. {answer} The mean"
        f" over all is {every:.1f}."
    )
    older = claim("the slow trainer's gradients are more than twice as old as the others'", slow > 2 * fast)
    more_checks({"every gradient that was sent was applied": run.value("sent") == run.value("applied")})
    bars: dict[str, Any] = {"trainer 0, slow": slow, **{f"trainer {i}": ages[i] for i in range(1, TRAINERS)}}
    title = (
        f"The slow trainer is {slow:.0f} updates behind, the others {fast:.0f}" if older else "How old gradients are"
    )
    return figures.bars(
        bars,
        guess={"trainer 0, slow": as_number(guess)},
        predicted={"trainer 0, slow": _predicted_age()},
        unit="",
        ylabel="mean staleness (updates)",
        title=title,
    )


@functools.cache
def uneven() -> Run:
    return serve(TRAINERS, "--slow", SLOW, "--updates", 240)


def _predicted_age() -> float:
    """Of the slow trainer, with calls that take no time."""
    ages = parameter_server([SLOW, *[1.0] * (TRAINERS - 1)], call_s=1e-3, updates=800).of(0)
    return sum(ages) / len(ages)


@figure_first
def show_rates(guess: Guess = ...) -> Figure:
    """The loss of one, two and four trainers with a learning rate that's good for one."""
    runs = _learning()
    losses = {n: run.value("loss", lr=LARGE)[: UPDATES + 1] for n, run in runs.items()}
    one, four = losses[1][-1], losses[TRAINERS][-1]
    outcome = "explodes" if four > 1 else "worse" if four > 2 * one else "as good"
    answer = bet(
        guess,
        outcome,
        close=", and you've been burnt before." if outcome == "explodes" else ", and so it was here.",
        traps={word: answer for word, answer in OTHERWISE.items() if word != outcome},
        kind='"as good", "worse" or "explodes"',
    )
    say(
        f"After {UPDATES} updates one trainer's loss is {_times(one)} what it was at the start, and four trainers' is"
        f" {_times(four)}. {answer}"
    )
    limit = {n: largest_rate(n - 1) for n in runs}
    say(
        "On paper the largest learning rate that still converges is"
        f" {', '.join(f'{limit[n]:.2f} with {MANY[n]}' for n in runs)}."
    )
    small = {n: run.value("loss", lr=SMALL)[: UPDATES + 1][-1] for n, run in runs.items()}
    say(f"With {SMALL:g} all three learn.")
    claim("the same learning rate is good for one trainer, and four explode with it", one < 0.01 and four > 1,
          headline=True)  # fmt: skip
    more_checks(
        {
            f"with a learning rate of {SMALL:g} all learn": max(small.values()) < 0.05,
            "on paper that's where four trainers explode": limit[TRAINERS] < LARGE < limit[1],
        }
    )
    steps = range(UPDATES + 1)
    theory = [e**2 for e in delayed_sgd(LARGE, TRAINERS - 1, UPDATES)]
    curves: dict[str, Any] = {MANY[n]: (steps, losses[n]) for n in runs}
    curves[f"predicted: {TRAINERS - 1} updates old"] = (steps, theory)
    title = f"Learning rate {LARGE:g}: good for one trainer, and four explode"
    return figures.lines(
        curves, "updates, by all trainers", "loss / loss at the start", log="y", title=title if four > 1 else None
    )


def _times(loss: float) -> str:
    return f"{loss:,.0f} times" if loss >= 10 else f"{loss:.1g} times"


@functools.cache
def _learning() -> dict[int, Run]:
    args = ["--lr", LARGE, SMALL, "--gradient-ms", 4, "--updates", UPDATES]
    return {n: serve(n, *args) for n in MANY}


# --- The model --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerRun:
    """A predicted run of a parameter server. `staleness` and `trainer` have an entry for each update, in the server's
    order."""

    updates_per_s: float
    staleness: tuple[int, ...]
    trainer: tuple[int, ...]

    def of(self, trainer: int) -> tuple[int, ...]:
        """The staleness of the updates of one trainer."""
        return tuple(s for s, t in zip(self.staleness, self.trainer, strict=True) if t == trainer)


def parameter_server(
    gradient_s: Sequence[float], *, call_s: float, serve_s: float = 0.0, updates: int = 400
) -> ServerRun:
    """Simulate trainers that each compute a gradient, send it, and get new weights back, while the server makes one
    update at a time.

    gradient_s   seconds of a gradient, one number for each trainer
    call_s       seconds of a call whose update takes no time: a round trip with gradient and weights
    serve_s      seconds of an update, during which the server does nothing else
    updates      how many to simulate; rate and staleness leave out the first tenth

    A closed queue without randomness: n equal trainers make min(n / (gradient + call + serve), 1 / serve) updates a
    second (the asymptotic bound of Denning and Buzen, ACM Computing Surveys 10 (1978)), each with a gradient that is
    n - 1 updates old. Raises ValueError for times that aren't positive, and for too few updates.
    """
    trainers = len(gradient_s)
    if not trainers or updates < 2 * trainers:
        raise ValueError(f"{updates} updates don't suffice for {trainers} trainers: at least two for each")
    if call_s <= 0 or serve_s < 0 or min(gradient_s) < 0:
        raise ValueError("a call takes some time, and gradients and updates none at least")
    arrivals = [(s + call_s / 2, i) for i, s in enumerate(gradient_s)]
    heapq.heapify(arrivals)
    read = [0] * trainers  # the version that each trainer computes with
    free_s, ends, staleness, who = 0.0, [], [], []
    for version in range(updates):
        arrived, i = heapq.heappop(arrivals)
        free_s = max(arrived, free_s) + serve_s
        ends.append(free_s)
        staleness.append(version - read[i])
        who.append(i)
        read[i] = version + 1
        heapq.heappush(arrivals, (free_s + call_s + gradient_s[i], i))
    first = max(updates // 10, trainers)
    rate = (updates - 1 - first) / (ends[-1] - ends[first]) if ends[-1] > ends[first] else math.inf
    return ServerRun(rate, tuple(staleness[first:]), tuple(who[first:]))


def delayed_sgd(rate: float, staleness: int, updates: int) -> list[float]:
    """SGD with gradients that are `staleness` updates old: the distance to the minimum before the first update (1.0)
    and after each of `updates`.

    `rate` is the learning rate times the curvature. e[t+1] = e[t] - rate * e[t - staleness]; the first gradients are
    all computed at the start.
    """
    e = [1.0]
    for t in range(updates):
        e.append(e[t] - rate * e[max(0, t - staleness)])
    return e


def largest_rate(staleness: int) -> float:
    """The largest learning rate times curvature with which stale gradients still converge: 2 sin(pi / (2 (2 staleness
    + 1))).

    2 for fresh gradients, 1 for a staleness of 1, and about pi / (2 staleness) for very stale ones. Levin and May, A
    note on difference-delay equations, Theoretical Population Biology 9 (1976).
    """
    if staleness < 0:
        raise ValueError(f"no gradient is {staleness} updates old; 0 is the least")
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))
