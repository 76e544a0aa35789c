"""What lesson 08 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

import functools
import itertools
import math
import tempfile
from pathlib import Path
from types import EllipsisType

from course_utils import Run, claim, figures, launch, more_checks
from course_utils.for_lessons import Cell, Figure, Program, Table, Words, bet, figure_first, say

from .pictures import brackets, loss_scale, never_moved  # noqa: F401
from .small_gradients import MODEL, show_fp16, show_scaler  # noqa: F401
from .speeds import eight, recorded_speedups, show_eight, show_here, show_steps, steps  # noqa: F401

TAKE_HOME = Path(__file__).resolve().parents[1] / "take_home" / "08_amp.py"
SIXTEEN = ("bfloat16", "float16")
STEPS, RATE = 200, 1e-4  # of the model that freezes
GAP = 2.0**-7  # between bf16's numbers from 1 to 2

Guess = float | int | str | EllipsisType | None


def show_types(run: Run, guess: Guess = ...) -> Table:
    """The types of a weight, its gradient, the output and the loss, after a few steps under autocast."""
    found = {name: run.value("dtype", name=name).removeprefix("torch.") for name in run.values("name")}
    short = [name for name, dtype in found.items() if dtype in SIXTEEN]
    kept = "The weights keep their type, their gradients come back in it, and the loss needs the digits."
    answer = bet(
        guess,
        float(len(short)),
        close="the output, and nothing else.",
        over=kept,
        under="The last layer multiplies in 16 bits, and hands that on.",
        within=0.01,
        traps={2: "It's only the output. A gradient is cast to its weight's type before it gets there."},
        kind="a number from 0 to 4",
        most=4,
    )
    say(f"{len(short)} of {len(found)} {'has' if len(short) == 1 else 'have'} 16 bits. {answer}")
    claim("under autocast the output has 16 bits; weight, gradient and loss are float32", short == ["output"])
    return Table(
        ("", "type", "bytes a number"),
        [[name, Cell(dtype, bold=name in short), "2" if name in short else "4"] for name, dtype in found.items()],
        "llr",
    )


@figure_first
def show_frozen(guess: Guess = ...) -> Figure:
    """A small transformer in float32, under autocast, and as a bf16 model: how many weights never moved, by their
    size, and what each has learned."""
    run = frozen()
    losses = {way: run.values("loss", way=way) for way in dict.fromkeys(run.values("way"))}
    same = {way: run.value("same", way=way) for way in losses}
    last = {way: sum(each[-10:]) / 10 for way, each in losses.items()}
    share = same["bf16 model"]
    edge = 2.0 ** math.ceil(math.log2(2 * RATE / GAP))  # from here up, half the gap between two numbers is longer
    answer = bet(
        guess,
        100 * share,
        close="you know how coarse bf16 is.",
        over="The small ones do move. Their neighbours are close enough.",
        under=f"For a weight above 1/{1 / edge:.0f} half the way to its neighbour is longer than a step of {RATE:g}.",
        unit="%",
        within=0.15,
        kind="a percentage, such as 10",
        most=100,
    )
    say(f"After {STEPS} steps {share:.0%} of the bf16 model's weights are where they began. {answer}")
    say(
        f"Its loss went from {losses['bf16 model'][0]:.2f} to {last['bf16 model']:.2f}. With autocast it went to"
        f" {last['autocast to bf16']:.2f}, and in float32 to {last['float32']:.2f}."
    )
    claim(
        "a bf16 model left over half of its weights where they were, and learned less than with autocast",
        share > 0.5 and last["bf16 model"] > last["autocast to bf16"] + 0.2,
    )
    more_checks(
        {
            "with autocast nearly every weight moved": same["autocast to bf16"] < 0.05,
            "with autocast the loss ends within 5% of float32's": abs(last["autocast to bf16"] / last["float32"] - 1)
            < 0.05,
        }
    )
    sizes = {
        exponent: tuple(run.value(what, way="bf16 model", exponent=exponent) for what in ("kept", "moved"))
        for exponent in sorted(run.values("exponent", way="bf16 model"))
    }
    return never_moved(sizes, edge, f"{share:.0%} of the bf16 model's weights are where they began: the large ones")


@functools.cache
def frozen() -> Run:
    """The three trainings of `show_frozen`, with the losses of each step."""
    ways = ("float32", "autocast to bf16", "bf16 model")
    return launch(MODEL, 1, args=["--ways", *ways, "--steps", STEPS, "--lr", RATE], threads=1, quiet=True)


@figure_first
def show_tidy(run: Run, guess: Guess = ...) -> Figure:
    """The loss of a training with one autocast block an epoch, next to one that forgets the copies in each step."""
    losses, right = run.values("loss"), _forgetting(run).values("loss")
    steps = len(losses) // 4
    epochs = [losses[i : i + steps] for i in range(0, len(losses), steps)]
    flat = max(max(epoch) - min(epoch) for epoch in epochs)
    drops = [before[-1] - after[0] for before, after in itertools.pairwise(epochs)]
    answer = bet(
        guess,
        "stairs",
        close="and it didn't take you a week to see them.",
        traps={
            "fall": "It does, once an epoch.",
            "stand still": "Within an epoch, yes. Between two it falls.",
            "nan": "That would be easy to see.",
        },
    )
    say(
        f"Stairs: within an epoch the loss is the same in all {steps} steps, and from one to the next it falls."
        f" {answer}"
    )
    say(f"After {len(losses)} steps it's {losses[-1]:.2f}, and {right[-1]:.2f} with a block in each step.")
    claim(
        "with one block an epoch, the loss stands still until the block ends",
        min(drops) > 0 and flat < 0.05 * min(drops),
    )
    more_checks({"with a block in each step it falls within the first epoch": right[0] - right[steps - 1] > 10 * flat})
    x = range(len(losses))
    return figures.lines(
        {"a block in each step": (x, right), "a block around each epoch": (x, losses)},
        "step",
        "training loss",
        title="One block an epoch: each of its steps computes with the same old weights",
    )


def _forgetting(run: Run) -> Run:
    """Launch the program of `run` so that autocast forgets its copies after each step, as it does when a block ends."""
    script, line = Path(run.script), "optimizer.step()"
    text = script.read_text(encoding="utf-8")
    if text.count(line) != 1:
        raise ValueError(f"{line} is in the program {text.count(line)} times, and should be there once")
    copy = Path(tempfile.mkdtemp(prefix="changed-", dir=script.parent)) / script.name
    copy.write_text(text.replace(line, f"{line}; torch.clear_autocast_cache()"), encoding="utf-8")
    return launch(copy, run.world_size, threads=1, quiet=True)


def take_home() -> Program:
    """Mixed precision with accumulation, clipping, a schedule and a checkpoint, under DDP, in plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(types: Run, scaled: Run, tidy: Run) -> Words:
    """The lesson in the reader's own numbers."""
    found, many = steps(), eight()
    a100, t4 = found["A100"], found["T4"]
    same = frozen().value("same", way="bf16 model")
    skipped = scaled.values("skipped")
    losses = tidy.values("loss")
    return Words(
        [
            f"Under autocast the output was {types.value('dtype', name='output').removeprefix('torch.')}. The weight,"
            " its gradient and the loss were float32.",
            f"Of a model that was bf16 altogether, {same:.0%} of the weights ended where they began.",
            f"On an emulated A100 bf16 was {a100['fp32'].s / a100['bf16'].s:.1f} times as fast as float32, and"
            f" {a100['TF32'].s / a100['bf16'].s:.1f} times as fast as TF32. On a T4 fp16 was"
            f" {t4['fp32'].s / t4['fp16'].s:.1f} times as fast, and bf16 was slower.",
            f"Eight A100 over Ethernet were {many['fp32']:.1f} times as fast as one in float32, and"
            f" {many['bf16']:.1f} times in bf16.",
            f"A scaler skipped {sum(skipped)} of {len(skipped)} steps to find its scale. And with one block an epoch"
            f" the loss had {len(set(losses))} values in {len(losses)} steps.",
        ]
    )
