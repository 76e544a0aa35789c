"""What lesson 05 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Machine, Run, Samples, claim, figures, launch, more_checks, predict, traces
from course_utils.for_lessons import (
    Diff,
    Figure,
    Program,
    Span,
    Words,
    bet,
    covered,
    diff,
    disturbed,
    figure_first,
    intersection,
    intervals,
    say,
    say_disturbed,
)

from .skipped_step import show_skipped  # noqa: F401
from .who_holds_what import collectives, ring  # noqa: F401

HERE = Path(__file__).resolve().parents[1]
BY_HAND = HERE / "programs" / "05_by_hand.py"
BUCKETS = HERE / "programs" / "05_buckets.py"
TAKE_HOME = HERE / "take_home" / "05_accumulate.py"

EIGHT, MANY = 8, 1024  # GPUs
TOO_WIDE = 0.6  # of the middle half of shares between 0 and 1, to say anything of them
ETHERNET = {"count": EIGHT, "device": "A100", "inside": "ethernet100", "label": "8xA100 over Ethernet"}
LINKS: dict[str, Any] = {"NVLink": "8xA100", "100 Gbit/s Ethernet": ETHERNET}
BUCKET_MB = (1, 16, 25, 100, 1000)  # 1000 holds all gradients of this model
DEFAULT_MB, ALL_MB = 25, BUCKET_MB[-1]

Guess = float | int | str | EllipsisType | None


def show_hooks(run: Run, guess: Guess = ...) -> None:
    """How many sums each rank started, in which order, and whether their mean is that of one process with everybody's
    data."""
    sent = run.ranks[0].values("sent")
    layers = [int(name.split(".")[0]) + 1 for name in sent]
    answer = bet(
        guess,
        float(len(sent)),
        close="one for each weight and each bias.",
        over="There's one for each weight and each bias.",
        under="There's one for each weight and each bias.",
        within=0.01,
        traps={max(layers): "That's one for each layer. But a layer has two parameters here, its weight and its bias."},
    )
    say(f"{len(sent)} sums, those of layer {layers[0]} first and those of layer {layers[-1]} last. {answer}")
    gap = _gap(run)
    claim("your hooks give every rank the mean gradient of all ranks", gap < 1e-5, headline=True)
    more_checks(
        {
            "each parameter was sent once": all(len(set(names)) == len(names) for names in _sent(run)),
            "layers were sent from the last to the first": layers == sorted(layers, reverse=True),
        }
    )


def _sent(run: Run) -> list[list[str]]:
    return [rank.values("sent") for rank in run.ranks]


def _gap(run: Run) -> float:
    """How far the norms of the ranks' gradients are from those of one process, relative to the largest."""
    norms = run.values("norms")
    wanted = _one_process(len(norms), len(norms[0]) // 2)
    return max(abs(a - b) for rank in norms for a, b in zip(rank, wanted, strict=True)) / max(wanted)


@functools.cache
def _one_process(ranks: int, layers: int) -> list[float]:
    """The gradients' norms of the cell's model for the data of so many ranks, in one process, without hooks."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(layers)])
    data = [torch.randn(32, 64, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)]
    model(torch.cat(data)).square().mean().backward()
    return [p.grad.norm().item() for p in model.parameters() if p.grad is not None]


def show_buckets(hooks: Run) -> Diff:
    """Run the program with buckets, say what it sent, and show what changed."""
    run = launch(BY_HAND, hooks.world_size, quiet=True)
    before, after = len(hooks.ranks[0].values("sent")), len(run.ranks[0].values("sent"))
    say(f"{before} sums became {after}, and the gradients are the same.")
    claim("with buckets every rank holds the same mean gradient", _gap(run) < 1e-5)
    more_checks({"there are fewer sums than layers": after < before / 2})
    return diff(hooks.script, BY_HAND)


def show_ring(guess: Guess = ...) -> None:
    """What a rank sends in a ring of 8 and of 1,024, in times of its tensor, and in how many messages."""
    few, many = (2 * (n - 1) / n for n in (EIGHT, MANY))
    answer = bet(
        guess,
        many / few,
        close="you know your rings.",
        over="Twice the ranks cut the tensor into twice the pieces.",
        under="It's a little more, because less of the sum is your own.",
        unit=" times",
        within=0.1,
        traps={MANY / EIGHT: "That's how many more ranks there are. But each piece is as much smaller.", 1: "Nearly."},
    )
    say(f"{many / few:.2f} times: {few:.2f} tensors with {EIGHT} GPUs, {many:.3f} with {MANY:,}. {answer}")
    say(
        f"What does grow is the number of messages: {2 * (EIGHT - 1)} one after the other with {EIGHT} GPUs,"
        f" {2 * (MANY - 1):,} with {MANY:,}. Each takes some microseconds, however short it is."
    )
    held = predict.ring_held(EIGHT)
    more_checks({"a ring of eight takes 2 x 7 steps": len(held) - 1 == 2 * (EIGHT - 1)})


@figure_first
def show_timeline(run: Run, guess: Guess = ...) -> Figure:
    """A step on the ranks' own clocks, and the share of sending that runs beside computing."""
    spans = traces.load(run)
    beside = traces.overlap(spans)
    share = _beside(spans)
    answer = bet(
        guess,
        100 * share,
        close="good eye.",
        over="The last bucket has nothing left to hide behind, and the ranks wait for each other.",
        under="Sending starts as soon as a bucket is full, long before backward ends.",
        unit="%",
        within=0.15,
        kind="a percentage, such as 40",
    )
    say(f"{share:.0%} of the sending runs while the rank computes. {answer}")
    claim("on every rank some sending runs beside computing", min(beside.values()) > 0.05)
    return figures.rank_timeline(spans, title=f"{share:.0%} of the sending runs beside computing")


def _beside(spans: Sequence[Span]) -> float:
    """The share of all ranks' sending that runs beside computing."""
    ranks = {span[0] for span in spans}
    sent = {rank: intervals(spans, rank, "communication") for rank in ranks}
    hidden = sum(covered(intersection(sent[rank], intervals(spans, rank, "compute"))) for rank in ranks)
    return hidden / sum(map(covered, sent.values()))


@figure_first
def show_saved(timeline: Run, guess: Guess = ...) -> Figure:
    """How much shorter a step is than its parts one after the other, as a share of the time of the sums alone."""
    run, parts, mb = _parts()
    labels = {
        "computing": "computing",
        "filling": "computing, and filling buckets",
        mb: "a step: computing and sending",
        "sums alone": "the sums, alone",
    }
    title = "What overlap saved is what's missing from the third bar"
    why = run.disturbed
    if why:
        say_disturbed(why, "what overlap saves", guess)
    else:
        share, low, high = _saved(parts, mb)
        beside = _beside(traces.load(timeline))
        say(
            f"Alone the sums take {parts['sums alone'].median * 1e3:.1f} ms. In the picture {beside:.0%} of that was"
            " hidden."
        )
        if high - low > TOO_WIDE:
            say(
                "How much overlap saved is too close to call here: from one step to the next the times differ by more"
                " than the sums take. Run the cell again on a quiet machine. Nothing below needs this number."
            )
            title = "Too noisy to tell what overlap saved"
        else:
            answer = bet(
                guess,
                100 * share,
                close="you don't trust pictures, and you're right.",
                over="In the picture both run at once. But they share something, and each gets slower.",
                under="Your machine has a core to spare, or a GPU.",
                unit="%",
                within=0.25,
                kind="a percentage, such as 40",
            )
            say(f"Overlap saved {share:.0%} (the middle half of the steps: {low:.0%} to {high:.0%}). {answer}")
            title = f"Overlap saved {share:.0%} of the sums' time, and showed {beside:.0%} of it"
    return figures.bars({label: parts[name] for name, label in labels.items()}, unit="s", title=title)


def _saved(parts: Mapping[str, Samples], mb: str) -> tuple[float, float, float]:
    """The share of the sums' time that a step doesn't take, from 0 to 1: the median, and the middle half. Steps are
    compared within a round, so what slows the machine for a while counts on both sides."""
    whole_s, filling_s = parts[mb].values, parts["filling"].values
    sums_s = parts["sums alone"].median
    shares = Samples([1 - (a - b) / sums_s for a, b in zip(whole_s, filling_s, strict=True)], "share")
    median, low, high = (min(1.0, max(0.0, x)) for x in (shares.median, shares.q1, shares.q3))
    return median, low, high


@functools.cache
def _parts() -> tuple[Run, dict[str, Samples], str]:
    """Seconds of a step on this machine's ranks, and of what's in it, each alone; and the name of the step."""
    gpus = len(Machine.here().usable_gpus) > 1
    mb = DEFAULT_MB if gpus else 2
    run = launch(BUCKETS, "auto", args=["--bucket-mb", mb, "--parts"], threads=None if gpus else 1, quiet=True)
    return run, {name: run.samples("step_s", name=name) for name in dict.fromkeys(run.values("name"))}, f"{mb:g}"


@figure_first
def show_links(guess: Guess = ...) -> Figure:
    """A step on eight emulated A100, by bucket size, over NVLink and over Ethernet."""
    steps = emulated()
    over = {link: found[ALL_MB] / found[DEFAULT_MB] - 1 for link, found in steps.items()}
    slow = steps["100 Gbit/s Ethernet"]
    answer = bet(
        guess,
        100 * over["100 Gbit/s Ethernet"],
        close="you could have bought the right network.",
        over="Half of the step is computing, and no bucket makes that longer.",
        under="One bucket is full when backward ends, so nothing hides it.",
        unit="%",
        within=0.25,
        kind="a percentage, such as 10",
    )
    say(
        f"Over Ethernet a step takes {slow[DEFAULT_MB] * 1e3:.0f} ms with {DEFAULT_MB} MiB and"
        f" {slow[ALL_MB] * 1e3:.0f} with one bucket for all, {over['100 Gbit/s Ethernet']:.0%} more. {answer}"
    )
    say(f"Over NVLink it's {over['NVLink']:.0%} more.")
    claim("over Ethernet one bucket for all costs more than 20%", over["100 Gbit/s Ethernet"] > 0.2)
    more_checks({"over NVLink it costs less than 10%": over["NVLink"] < 0.1})
    curves: dict[str, tuple[Sequence[float], Sequence[float]]] = {
        f"emulated: {link}": ([*found], [s * 1e3 for s in found.values()]) for link, found in steps.items()
    }
    title = f"Eight A100: the bucket's size costs {over['100 Gbit/s Ethernet']:.0%} or {over['NVLink']:.0%}"
    return figures.lines(curves, "bucket size (MiB)", "a step (ms)", log="x", title=title)


@functools.cache
def emulated() -> dict[str, dict[int, float]]:
    """Seconds of a step over each link, by bucket size in MiB."""
    args = ["--bucket-mb", *BUCKET_MB, "--steps", 1]
    runs = {link: launch(BUCKETS, args=args, cluster=gpus, one_of=EIGHT, quiet=True) for link, gpus in LINKS.items()}
    return {link: {mb: run.samples("step_s", name=f"{mb:g}").median for mb in BUCKET_MB} for link, run in runs.items()}


def take_home() -> Program:
    """Micro-batches, one sum a window, and a broken one that all ranks leave out, in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(hooks: Run, timeline: Run, skipped: Run) -> Words:
    """The lesson in the reader's own numbers."""
    run, parts, mb = _parts()
    beside = _beside(traces.load(timeline))
    share, low, high = _saved(parts, mb)
    saved = f"It saved {share:.0%} of the sums' time."
    if high - low > TOO_WIDE:
        saved = "What it saved was too close to call."
    if disturbed(run):
        saved = "While you timed what overlap saves, other programs were in the way."
    steps = emulated()
    slow, fast = steps["100 Gbit/s Ethernet"], steps["NVLink"]
    done = [len(rank.values("step")) for rank in skipped.ranks]
    return Words(
        [
            f"You wrote DDP's heart yourself: hooks that sent {len(hooks.ranks[0].values('sent'))} gradients while"
            " backward ran.",
            f"In a timeline {beside:.0%} of the sending ran beside computing. {saved}",
            f"On eight emulated A100 one bucket for all makes a step {slow[ALL_MB] / slow[DEFAULT_MB]:.2f} times as"
            f" long over Ethernet, and {fast[ALL_MB] / fast[DEFAULT_MB]:.2f} times over NVLink.",
            f"One rank skipped a step. Rank 0 had finished {done[0]} and rank 1 {done[1]} when they stopped. By then"
            " some sums had mixed different steps.",
        ]
    )
