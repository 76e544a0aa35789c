"""Training in fp16, whose range is small: with factors on the loss, and with a scaler that looks for one."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from types import EllipsisType

from course_utils import Run, claim, launch, more_checks
from course_utils.for_lessons import Figure, bet, figure_first, say

from .pictures import loss_scale, percent, window

MODEL = Path(__file__).resolve().parents[1] / "programs" / "08_counting.py"
POWERS = (-20, -16, -13, -10, -7, 0, 8, 16, 20)  # factors on the loss, as powers of two
LARGE_BATCH = -7  # 64 tokens of our batch over 8,192
STEPS = 50
INTERVAL = 10  # good steps after which the cell's scaler doubles

Guess = float | int | str | EllipsisType | None


@functools.cache
def fp16() -> Run:
    """A training in float32, one in fp16 for each factor on the loss, and which gradients fp16 would lose."""
    powers = ["--powers", *POWERS]
    return launch(MODEL, 1, args=["--ways", "float32", "fp16", *powers, "--steps", STEPS], threads=1, quiet=True)


def ends(run: Run) -> dict[int, float]:
    """The mean of the last five losses for each factor on the loss in fp16, NaN included."""
    found = {power: run.values("loss", way="fp16", power=power)[-5:] for power in POWERS}
    return {power: sum(each) / len(each) for power, each in found.items()}


@figure_first
def show_fp16(guess: Guess = ...) -> Figure:
    """What a small transformer has learned in fp16, for every factor on the loss."""
    run = fp16()
    in_float32 = run.values("loss", way="float32")
    first, last = in_float32[0], sum(in_float32[-5:]) / 5
    found = ends(run)
    lost = {power: run.value("lost", factor=power) for power in POWERS}
    learned = [power for power in POWERS if abs(found[power] - last) < 0.1 * (first - last)]
    yes = LARGE_BATCH in learned
    answer = bet(
        guess,
        "yes" if yes else "no",
        close="and you didn't let a number scare you." if yes else "it's beyond the cliff.",
        traps={"no" if yes else "yes": "So you'd think, but the large gradients are still there." if yes else ""},
    )
    say(
        f"fp16 would make {lost[LARGE_BATCH]:.0%} of the activations' gradients zero. The loss ends at"
        f" {found[LARGE_BATCH]:.2f}, in float32 at {last:.2f}. {answer}"
    )
    below = max((power for power in POWERS if power < min(learned, default=0)), default=POWERS[0])
    say(
        f"Times 2^{below}, {percent(lost[below])} are lost, and it learns less. Times 2^{POWERS[0]} nothing is left, so"
        f" it learns nothing. Times 2^{POWERS[-1]} some are infinite, and the weights become NaN."
    )
    claim(
        "fp16 learns as float32 does with many gradients lost; with a factor too small or too large it doesn't",
        yes and lost[LARGE_BATCH] > 0.05 and POWERS[0] not in learned and POWERS[-1] not in learned,
    )
    more_checks(
        {
            "with nothing but zeros left, the loss stays where it was": found[POWERS[0]] > first - 0.2,
            "the more are lost, the less it learns": _falls([found[power] for power in POWERS if power <= LARGE_BATCH]),
            "what's too large ends as NaN": found[POWERS[-1]] != found[POWERS[-1]],
        }
    )
    return window(found, lost, first, last, LARGE_BATCH)


def _falls(values: list[float]) -> bool:
    return all(after < before + 0.05 for before, after in itertools.pairwise(values))


@figure_first
def show_scaler(run: Run, guess: Guess = ...) -> Figure:
    """The scale of each step, and which steps were skipped."""
    scales, skipped, losses = run.values("scale"), run.values("skipped"), run.values("loss")
    halvings = [i for i, skip in enumerate(skipped) if skip]
    settled = next((i for i, skip in enumerate(skipped) if not skip), len(skipped))
    more = len(halvings) - settled
    later_ones = f", and {more} later, when S had doubled or the gradients had grown" if more else ""
    answer = bet(
        guess,
        float(len(halvings)),
        close="a good eye for logarithms.",
        over="Halving is fast: after ten of them S is a thousandth of what it was.",
        under="It only halves once a step, and from 2^32 it's a long way to the first S that fits.",
        within=0.3,
        kind="a number from 0 to 60",
        most=60,
    )
    say(f"It skips {len(halvings)} of {len(skipped)} steps: the first {settled}, until S fits{later_ones}. {answer}")
    say(f"The loss falls from {losses[0]:.2f} to {losses[-1]:.2f} all the same.")
    after = [later / scale for scale, later in itertools.pairwise(scales)]
    more_checks(
        {
            "a scaler that begins far too high finds its scale": 0 < settled <= len(halvings) < len(skipped) / 2,
            "with it, fp16 learns": losses[-1] < 0.8 * losses[0],
            "a skipped step halves the scale": all(after[i] == 0.5 for i in halvings if i < len(after)),
            f"{INTERVAL} good steps in a row double it": all(
                not any(skipped[max(0, i - INTERVAL + 1) : i + 1]) for i, ratio in enumerate(after) if ratio == 2
            ),
        }
    )
    return loss_scale(scales, skipped)
