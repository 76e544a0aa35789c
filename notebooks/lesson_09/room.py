"""Half A of lesson 09: what a step holds, and what it costs to hold less."""

from __future__ import annotations

import functools
from pathlib import Path
from types import EllipsisType

from course_utils import Machine, Run, Samples, claim, figures, launch, more_checks
from course_utils.for_lessons import Figure, bet, disturbed, figure_first, say, say_disturbed

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
HERE, EIGHT = PROGRAMS / "09_here.py", PROGRAMS / "09_eight.py"

GIB = 2**30
BLOCKS, LENGTH, WIDTH = 24, 2048, 2048  # of the model of this page
SMALL, LARGE = 16, 64  # sequences in a batch
KEPT_UNDER_DDP = 12  # sequences on each of eight GPUs, with everything kept
ETHERNET = {"count": 8, "device": "A100", "inside": "ethernet25", "label": "8xA100 over Ethernet"}
ROUNDING = 1e-4  # of the largest gradient: some kernels of a GPU add in another order each time

Guess = float | int | str | EllipsisType | None


def needs(run: Run) -> dict[str, int]:
    """What an emulated GPU held at its fullest moment, by kind, in bytes."""
    (parts,) = run.emulated.memory().values()
    return parts


def why_it_died(run: Run) -> str:
    """The error of the first rank, and nothing if all went well."""
    return "" if run.ok else (run.ranks[0].stack or run.log())


def step_s(run: Run) -> float:
    return float(run.values("step_s")[-1])


@figure_first
def show_needs(plain: Run, large: Run, guess: Guess = ...) -> Figure:
    """What 16 sequences take of the GPU, by kind, and that 32 don't fit."""
    parts = needs(plain)
    kept, others = parts["activations"] / GIB, (sum(parts.values()) - parts["activations"]) / GIB
    answer = bet(
        guess,
        kept,
        close="you've been out of memory before.",
        over="It does fit, and the GPU has 79 GiB.",
        under="16 sequences fit and 32 don't, so it's between 33 and 66 GiB, and nearer the top.",
        unit=" GiB",
        within=0.2,
        traps={(0.8 * others, 1.2 * others): "That's as much as weights and optimizer take. It's far more."},
        kind="a number of GiB, such as 10",
    )
    say(f"The activations take {kept:.0f} GiB, {kept / others:.1f} times as much as all the rest. {answer}")
    say("With 32 sequences the GPU ran out of memory.")
    more_checks(
        {
            "with 32 sequences it ran out of memory": "out of memory" in why_it_died(large),
            "activations are more than half of it": kept > others,
        }
    )
    return figures.memory(
        measured={"16 sequences": parts},
        limit_bytes=plain.emulated.memory_bytes,
        kind="emulated",
        title=f"Activations: {kept:.0f} of {kept + others:.0f} GiB",
    )


@figure_first
def show_again(plain: Run, again: Run, guess: Guess = ...) -> Figure:
    """Memory of both ways, and how many times as long a step takes if activations are computed again."""
    times = step_s(again) / step_s(plain)
    before, after = (sum(needs(run).values()) / GIB for run in (plain, again))
    answer = bet(
        guess,
        times,
        close="you left something out, and rightly so.",
        over="It's one more forward at most, and backward takes twice as long as that.",
        under="The second forward isn't free: its products are as large as those of the first.",
        unit=" times",
        within=0.05,
        kind="a number such as 1.5",
        traps={
            (1.3, 1.36): "That's a whole forward more, and nearly right.",
            2: "Then backward would be repeated, too. Only forward is, and that's about a third of a step.",
            (0.01, 0.9): "If you meant so much longer: 1 would be as long as before.",
        },
    )
    each = needs(plain)["activations"] / BLOCKS / (SMALL * LENGTH * WIDTH * 4)  # a block's input is float32
    say(f"{before:.0f} GiB became {after:.0f}, and a step takes {times:.2f} times as long. {answer}")
    say(f"A block keeps {each:.0f} times as much as its input alone, and that's why so little is left.")
    claim("one line takes a step to less than half of its memory", after < before / 2)
    more_checks({"a step takes less than a third longer": 1 < times < 4 / 3})
    return figures.memory(
        measured={"everything kept": needs(plain), "computed again": needs(again)},
        limit_bytes=plain.emulated.memory_bytes,
        kind="emulated",
        title=f"From {before:.0f} GiB to {after:.0f}, for {times:.2f} times the time",
    )


def run_here() -> Run:
    """A small transformer with dropout on one device of this machine, both ways."""
    return launch(HERE, 1, threads=None if Machine.here().usable_gpus else 1, quiet=True)


def times_here(run: Run) -> float:
    """How many times as long a step takes on this machine if activations are computed again."""
    kept, again = (run.samples("step_s", name=name).median for name in ("kept", "computed again"))
    return again / kept


@figure_first
def show_here(run: Run) -> Figure:
    """Bytes kept on the reader's own device, and that the gradients are the same."""
    kept, again = (run.value("kept_bytes", name=name) for name in ("kept", "computed again"))
    apart, on_cpu = run.value("apart"), run.value("on") == "cpu"
    same = "Not one bit of a gradient differs." if apart == 0 else f"Gradients differ by {apart:.0e} of the largest."
    say(f"Forward left {again / kept:.0%} of the bytes for backward. {same}")
    if why := disturbed(run):
        say_disturbed(why, "how much longer a step takes here")
    else:
        say(f"A step took {times_here(run):.2f} times as long on your machine.")
    claim(
        "on your machine activations that are computed again give the same gradients, dropout included",
        apart <= (0 if on_cpu else ROUNDING),
        headline=True,
    )
    more_checks({"less than a third of the bytes is kept": again < kept / 3})
    bars = {
        "everything kept": Samples([kept], "kept_bytes", run.provenance),
        "computed again": Samples([again], "kept_bytes", run.provenance),
    }
    return figures.bars(
        bars, ylabel="kept after forward", title=f"Computed again: {again / kept:.0%} of the bytes, the same gradients"
    )


def tokens_s(run: Run, sequences: int) -> float:
    """Tokens a second on one GPU."""
    return sequences * LENGTH / step_s(run)


@figure_first
def show_tokens(plain: Run, large: Run, guess: Guess = ...) -> Figure:
    """Tokens a second of one GPU: 16 sequences that are kept, 64 that are computed again."""
    before, after = tokens_s(plain, SMALL), tokens_s(large, LARGE)
    answer = bet(
        guess,
        "no",
        close="16 sequences keep it busy, and now each of them costs a second forward.",
        traps={"yes": "A larger batch helps a GPU that has too little to do. This one had enough with 16."},
    )
    say(f"{after:,.0f} tokens a second instead of {before:,.0f}, so {after / before:.0%} of it. {answer}")
    more_checks({"the room alone brings nothing": after < before})
    return figures.bars(
        {
            "16, everything kept": Samples([before], "tokens", plain.provenance),
            "64, computed again": Samples([after], "tokens", large.provenance),
        },
        unit="tokens/s",
        title=f"One GPU: four times the batch, {after / before:.0%} of the tokens a second",
    )


@functools.cache
def eight() -> dict[str, Run]:
    """A step of eight emulated GPUs over Ethernet; one stands for all, since all do the same."""
    asked = {"kept": [KEPT_UNDER_DDP, "keep"], "computed again": [LARGE, "again"]}
    return {way: launch(EIGHT, 1, args, cluster=ETHERNET, one_of=8, quiet=True) for way, args in asked.items()}


@figure_first
def show_eight(guess: Guess = ...) -> Figure:
    """Tokens a second of each of eight GPUs over Ethernet: 12 sequences that are kept, 64 that are computed again."""
    runs = eight()
    before, after = tokens_s(runs["kept"], KEPT_UNDER_DDP), tokens_s(runs["computed again"], LARGE)
    answer = bet(
        guess,
        after / before,
        close="you looked at the network.",
        over="Each sequence still costs a second forward.",
        under="Here most of a short step is waiting for the network.",
        unit=" times",
        within=0.25,
        traps={(0.01, 1.05): "On one GPU you'd be right. But here most of a short step is waiting for the network."},
        kind="a number such as 0.5 or 2",
        positive=True,
    )
    say(f"{after:,.0f} tokens a second on each GPU instead of {before:,.0f}: {after / before:.1f} times. {answer}")
    claim(
        "emulated, over slow Ethernet: the batch that recomputing makes room for brings twice the tokens a second",
        after > 2 * before,
    )
    return figures.bars(
        {
            "12, everything kept": Samples([before], "tokens", runs["kept"].provenance),
            "64, computed again": Samples([after], "tokens", runs["computed again"].provenance),
        },
        unit="tokens/s",
        title=f"Eight GPUs over Ethernet: {after / before:.1f} times the tokens a second",
    )
