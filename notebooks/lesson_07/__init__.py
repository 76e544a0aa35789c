"""What lesson 07 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Run, Verdict, claim, figures, launch, more_checks
from course_utils.for_lessons import Diff, Figure, Program, Words, bet, diff, figure_first, say

from . import old_gradients, ways
from .old_gradients import (  # noqa: F401
    delayed_sgd,
    largest_rate,
    mean_age,
    parameter_server,
    serve,
    server_program,
    show_ages,
    show_rates,
)
from .ways import show_seconds, updates_per_s  # noqa: F401

HERE = Path(__file__).resolve().parents[1]
HOGWILD = HERE / "programs" / "07_hogwild.py"
MENDED = HERE / "programs" / "07_torn_mended.py"
TAKE_HOME = HERE / "take_home" / "07_local_sgd.py"

OTHERWISE = {  # what's not in `p.grad`
    "the gradient": ", as it would be in one process. Here it's in the context, and gone when the context ends.",
    "zeros": "but nobody ever wrote there, not even zeros. The gradient is in the context.",
}

Guess = float | int | str | EllipsisType | None


@figure_first
def show_calls(run: Run, guess: Guess = ...) -> Figure:
    """Six calls that were awaited one by one, and six that were sent at once: who worked when."""
    both = {"one by one": run.value("one_by_one"), "at once": run.value("at_once")}
    taken = {way: max(end for _, end, _ in calls) - min(start for start, *_ in calls) for way, calls in both.items()}
    answer = bet(
        guess,
        taken["at once"],
        close="as long as the slowest call.",
        over="All six run at the same time, two on each worker.",
        under="No call is done before its own 0.1 s are over.",
        unit=" s",
        within=(0.08, 1.3 * taken["at once"]),
        traps={
            (0.19, 0.21): "That would be two calls one after the other on each worker, but each has many threads.",
            (0.59, 0.61): "That's one by one.",
        },
        kind="a number of seconds, such as 0.3",
        positive=True,
    )
    say(f"One by one they took {taken['one by one']:.2f} s, at once {taken['at once']:.2f} s. {answer}")
    say(f"The seventh call left its answer on {run.value('owner')}, and the reference fetched it.")
    more_checks(
        {
            "one by one, no call began before the last had ended": _in_turn(both["one by one"]),
            "each call ran where it was sent": all(
                [name for *_, name in calls] == ["worker1", "worker2", "worker3"] * 2 for calls in both.values()
            ),
            "the reference knew its owner": run.value("owner") == run.value("fetched")[2] == "worker3",
        }
    )
    spans, begin = [], 0.0
    for calls in both.values():
        first = min(start for start, *_ in calls)
        for i, (start, end, name) in enumerate(calls):
            spans.append((int(name[-1]), begin + start - first, begin + end - first, "compute", f"call {i + 1}"))
        begin = max(end for _, _, end, *_ in spans) + 0.1
    return figures.rank_timeline(
        spans,
        names={i: f"worker{i}" for i in (1, 2, 3)},
        kind="measured",
        title=f"Six calls: {taken['one by one']:.1f} s one by one, {taken['at once']:.1f} s at once",
    )


def _in_turn(calls: list[Any]) -> bool:
    return all(before[1] <= after[0] for before, after in zip(calls, calls[1:], strict=False))


def show_halves(run: Run, guess: Guess = ...) -> None:
    """What `p.grad` held on the workers, and how far the gradients are from those of one process."""
    kept = {text for grads in run.values("grads") for _, text in grads}
    truth = "nothing" if kept == {"None"} else "the gradient"
    words = ("the gradient", "zeros", "nothing")
    answer = bet(
        guess,
        truth,
        close="right, and hardly anybody guesses it.",
        traps={word: OTHERWISE.get(word, "") for word in words if word != truth},
        kind='"the gradient", "zeros" or "nothing"',
        also={"none": "nothing", "gradient": "the gradient"},
    )
    say(f"`p.grad` holds {truth}: it's {' or '.join(sorted(kept))} on both workers. {answer}")
    gap, losses = _gap(run), run.values("loss")
    apart = f"differ from those of one process by {gap:.0e} at most, relative to the largest"
    say(
        f"In {len(losses) // 2} steps the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}. The gradients' norms"
        f" {apart if gap else 'are exactly those of one process'}."
    )
    claim("a model in two processes has the gradients of one process, to rounding", gap < 1e-4)
    more_checks({"it learns": losses[-1] < losses[0] / 2})


def _gap(run: Run) -> float:
    """How far the norms of the gradients are from those of one process, over all steps, relative to the largest."""
    found = [[norm for norm, _ in grads] for grads in run.values("grads")]
    steps = [a + b for a, b in zip(found[::2], found[1::2], strict=True)]  # of the first layer, then of the second
    wanted = _one_process(len(steps))
    most = max(map(max, wanted))
    return max(abs(a - b) for of, to in zip(steps, wanted, strict=True) for a, b in zip(of, to, strict=True)) / most


@functools.cache
def _one_process(steps: int) -> list[list[float]]:
    """The gradients' norms of the cell's model in each step, in one process."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = nn.Linear(32, 64)
        torch.manual_seed(2)
        second = nn.Linear(64, 1)
        torch.manual_seed(0)
        x = torch.randn(256, 32)
    model = nn.Sequential(first, nn.Tanh(), second)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - x[:, :1]).square().mean().backward()
        norms.append([p.grad.norm().item() for p in model.parameters() if p.grad is not None])
        optimizer.step()
    return norms


def show_race(run: Run, guess: Guess = ...) -> None:
    """How many additions of two processes were overwritten, here and in three more runs."""
    counted, of, again = run.value("counted"), run.value("of"), _again(run)
    lost, lost_again = of - counted, [of - n for n in again]
    answer = bet(
        guess,
        float(lost),
        close="good nose.",
        over="Reading and writing lie nanoseconds apart, so they seldom meet there.",
        under="They do nothing but add, so they do meet.",
        within=(min(lost, *lost_again) / 2, 2 * max(lost, *lost_again) + 1),  # it's another number each time
        traps={0: "Most programs hope so."} if lost else {},
        kind=f"a number from 0 to {of:,}",
        most=of,
    )
    say(f"They counted to {counted:,}, so {lost:,} of {of:,} additions are missing. {answer}")
    say(f"Three more runs lose {', '.join(f'{n:,}' for n in lost_again[:-1])} and {lost_again[-1]:,}.")
    some = lost or max(lost_again)
    claim("two processes that add without a lock lose additions",
          Verdict("shown" if some else "not shown", "" if some else "on a busy core they take turns"))  # fmt: skip
    more_checks({"nothing was counted twice": max(counted, *again) <= of})


def _again(run: Run) -> list[int]:
    """What three more runs of the same program count to."""
    more = [launch(run.script, 1, device="cpu", threads=1, timeout=60, quiet=True) for _ in range(3)]
    return [each.value("counted") for each in more]


def show_hogwild(race: Run) -> Diff:
    """Two processes that train one model instead, and what changed in the program."""
    run = launch(HOGWILD, 1, device="cpu", threads=1, timeout=60, quiet=True)
    before, after = run.value("before"), run.value("after")
    say(f"Two processes changed the same weights, and the loss fell from {before:.1f} to {after:.1g}.")
    more_checks({"Hogwild learns": after < before / 100})
    return diff(race.script, HOGWILD)


def show_torn(run: Run, guess: Guess = ...) -> Diff:
    """How many of the reads without the lock held weights that no update has left, or a version that isn't theirs; and
    the program with the lock."""
    torn, wrong, reads = _reads(run)
    share = 100 * (torn + wrong) / reads
    answer = bet(
        guess,
        share,
        close="you've debugged threads before.",
        over="A read and an update have to run at the same moment.",
        under="Copying takes a while, and so does an update.",
        unit="%",
        within=(0.6 * share, min(1.7 * share, 99)) if share else 0.2,
        traps={0: "So said the colleague."} if share else {},
        kind="a percentage, such as 40",
        most=100,
    )
    say(
        f"Of {reads} reads {torn} got weights of which some were new and others old, and {wrong} got whole ones with"
        f" another version. That's {share:.0f}%. {answer}"
    )
    bad = torn + wrong
    claim("without the lock, reads get weights or versions that never were",
          Verdict("shown" if bad else "not shown", f"{bad} of {reads} reads"))  # fmt: skip
    mended = _mended()
    say("With the lock around both, every read is whole. That's the change:")
    more_checks({"with the lock no read is wrong": _reads(mended)[:2] == (0, 0)})
    return diff(run.script, MENDED)


def _reads(run: Run) -> tuple[int, int, int]:
    """How many reads had unequal weights, how many had equal ones with another version, and how many there were."""
    found = list(zip(*(run.values(key) for key in ("version", "least", "most")), strict=True))
    torn = sum(least != most for _, least, most in found)
    return torn, sum(least == most != version for version, least, most in found), len(found)


@functools.cache
def _mended() -> Run:
    return launch(MENDED, 3, device="cpu", threads=1, timeout=120, quiet=True)


def take_home() -> Program:
    """Local SGD, and DiLoCo's outer step, in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(calls: Run, halves: Run, race: Run, torn: Run) -> Words:
    """The lesson in the reader's own numbers."""
    way, run = ways.three_ways(), old_gradients.uneven()
    at_once = calls.value("at_once")
    seconds = max(end for _, end, _ in at_once) - min(start for start, *_ in at_once)
    faster, more = (f(way, ways.HOGWILD).median for f in (ways.seconds_ratio, ways.updates_ratio))
    progress = f"Hogwild made {more:.1f} times the updates, and was {faster:.1f} times as fast to the same loss."
    if way.disturbed or not math.isfinite(faster) or not faster:
        progress = "What Hogwild gains in time, your machine couldn't show today."
    bad = sum(_reads(torn)[:2])
    return Words(
        [
            f"Six calls of 0.1 s, sent at once, took {seconds:.2f} s.",
            f"A model in two processes had the gradients of one, to {_gap(halves):.0e} of the largest.",
            f"Two processes lost {race.value('of') - race.value('counted'):,} of {race.value('of'):,} additions, and"
            " with Hogwild a model learned all the same.",
            f"A slow trainer's gradients were {mean_age(run, [0]):.1f} updates old, the others'"
            f" {mean_age(run, [1, 2, 3]):.1f}. With a learning rate that's good for one trainer, four exploded.",
            progress,
            f"{bad} of {_reads(torn)[2]} reads without a lock were wrong, and nothing told you.",
        ]
    )
