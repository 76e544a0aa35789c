"""What lesson 00 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

from course_utils import Run, Samples, Sweep, claim, figures, more_checks, predict
from course_utils.for_lessons import Figure, Program, Words, bet, disturbed, figure_first, say, say_disturbed

from .deeper import (
    explore_serial,
    published_table,
    show_doubled,
    show_fit,
    show_pieces,
    show_product,
    show_queue,
    show_residuals,
    show_variables,
)
from .job import (
    EIGHT,
    FAR_BELOW,
    HERE,
    WORLDS,
    Guess,
    ahead,
    expected_speedup,
    gap_in,
    hours,
    run_job,
    show_eight,
    show_prediction,
    show_shared_test,
    show_speedup,
    speedup,
)
from .ways import WAYS, ways

__all__ = [
    "WAYS",
    "explore_serial",
    "published_table",
    "run_job",
    "show_clocks",
    "show_doubled",
    "show_eight",
    "show_first",
    "show_fit",
    "show_pieces",
    "show_prediction",
    "show_product",
    "show_queue",
    "show_residuals",
    "show_shared_test",
    "show_speedup",
    "show_step",
    "show_variables",
    "take_home",
    "ways",
    "what_you_saw",
]

TAKE_HOME = HERE / "take_home" / "00_speedup.py"
PARTS = ("load", "move", "forward", "backward", "optimizer")


def show_first(run: Run) -> None:
    """Who took which images, and that together they took all."""
    taken = sorted(image for mine in run.values("mine") for image in mine)
    shares = ", ".join(f"rank {rank} took {len(mine)}" for rank, mine in enumerate(run.values("mine")))
    say(f"Nobody handed anything out, and yet {shares}, and no image was taken twice.")
    claim("together the ranks took every image once", taken == list(range(10)))
    more_checks({"every rank knows the total": run.values("total") == [10] * run.world_size})


@figure_first
def show_step(run: Run, guess: Guess = ...) -> Figure:
    """The parts of a training step, which of them is the longest, and what holds the step up."""
    parts = _step_parts(run)
    part_s = {part: samples.median for part, samples in parts.items()}
    losses = run.values("loss")
    first, last = (sum(some) / len(some) for some in (losses[:8], losses[-8:]))
    if why := run.disturbed:
        say_disturbed(why, "where a step's time goes", guess, "run both cells again")
    else:
        longest = _longest(part_s)
        said = bet(
            guess,
            longest,
            ", and it takes longest.",
            traps=dict.fromkeys(PARTS, f", and it's {longest}."),
            none=f"The longest part is {longest}.",
            kind=f"{', '.join(PARTS[:-1])} or {PARTS[-1]}. The longest part is {longest}",
        )
        say(f"A step of {run.value('images')} images takes {sum(part_s.values()) * 1e3:.0f} ms. {said}")
        say(
            f"{_on_bottleneck(predict.bottleneck(part_s))}"
            f" Backward takes {part_s['backward'] / part_s['forward']:.1f} times as long as forward."
        )
    say(f"The loss went from {first:.2f} to {last:.2f}: so few steps are only a beginning.")
    claim("forward takes less time than backward", parts["forward"].faster_than(parts["backward"]).unless(why))
    more_checks({"the loss doesn't grow": last < 1.1 * first})
    return figures.parts({"one step": parts}, title=why or None)


def _on_bottleneck(found: predict.Bottleneck) -> str:
    if found.kind == "compute":
        return (
            f"Forward and backward are {found.share:.0%} of a step, so the device is busy, and a second one can take"
            " half of the work."
        )
    return str(found)


def _step_parts(run: Run) -> dict[str, Samples]:
    """Seconds of each part, without the first steps."""
    return {part: Samples(run.values(part)[3:], f"{part}_s", run.provenance) for part in PARTS}


def _longest(part_s: dict[str, float]) -> str:
    return max(part_s, key=lambda part: part_s[part])


def show_clocks(run: Run, guess: Guess = ...) -> None:
    """What a clock sees of a collective that it doesn't wait for."""
    asked, done = run.samples("asked_s"), run.samples("done_s")
    seen = asked.median / done.median
    if why := run.disturbed:
        say_disturbed(why, "how much a hasty clock sees", guess, "run both cells again")
    else:
        near = (100 * seen - 10, 100 * seen + 10)
        kind = "a number from 0 to 100"
        said = bet(guess, 100 * seen, "Close.", unit="%", within=near, none="You made no bet.", kind=kind)
        say(
            f"The call comes back after {asked.median * 1e3:.2f} ms, and the sum is there after"
            f" {done.median * 1e3:.1f} ms. The hasty clock saw {seen:.1%}. {said}"
        )
    claim("a clock that doesn't wait sees less than half", asked.faster_than(done, factor=2).unless(why))


def take_home() -> Program:
    """Time a training and a test on any number of ranks, in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(first: Run, baseline: Run, alone: Sweep, runs: Sweep) -> Words:
    """The lesson in the reader's own numbers."""
    return Words(
        [
            f"You started {first.world_size} ranks from a cell, and they shared ten images without asking anybody.",
            _step_you_saw(baseline),
            _job_you_saw(alone, runs),
            f"On eight emulated A100, 24 hours become {sum(hours(EIGHT).values()):.1f}. With the test shared it's"
            f" {sum(hours(EIGHT, shared=True).values()):.1f}.",
        ]
    )


def _step_you_saw(baseline: Run) -> str:
    if baseline.disturbed:
        return "While you timed a training step, other programs were in the way. Run section 2 again for its numbers."
    part_s = {part: samples.median for part, samples in _step_parts(baseline).items()}
    longest = _longest(part_s)
    return (
        f"A training step took {sum(part_s.values()) * 1e3:.0f} ms here, {part_s[longest] * 1e3:.0f} of them for"
        f" {longest}."
    )


def _job_you_saw(alone: Sweep, runs: Sweep) -> str:
    n = WORLDS[-1]
    if disturbed(alone, runs):
        return (
            "While you timed the job, other programs were in the way. Run section 3 again to see what"
            f" {'two' if n == 2 else n} ranks bring."
        )
    shown, expected = ahead(runs).status == "shown", expected_speedup(alone, n)
    measured = f"you measured {speedup(runs):.2f}" if shown else "your machine was too busy to show it"
    if shown and speedup(runs) < FAR_BELOW * expected and (where := gap_in(runs)):
        measured += f"; what's missing is in the {where}"
    return f"From one rank you predicted {expected:.2f} times the speed on {n}, and {measured}."
