"""What lesson 03 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import EllipsisType

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_utils import Machine, Provenance, Run, Samples, claim, figures, launch, more_checks, predict, published
from course_utils.for_lessons import Figure, Program, Words, bet, disturbed, figure_first, say, say_disturbed

from .deeper import show_memory, show_norm, show_partly, show_prefix, show_replica, show_six_losses  # noqa: F401
from .threads import kindly, show_threads, threads_you_saw  # noqa: F401
from .traffic import COUNTS, counts, mib, on_the_ring, show_traffic, through  # noqa: F401

HERE = Path(__file__).resolve().parents[1]
PROGRAMS = HERE / "programs"
TAKE_HOME = HERE / "take_home" / "03_dp_or_ddp.py"

FOUR, IMAGES = "4xA100", 16  # the emulated GPUs, and what each gets of ResNet-50's images
LINK_GBPS = 50  # of the published pair, each way

Guess = float | int | str | EllipsisType | None
Forward = Callable[[nn.Module, Tensor], Tensor]

# --- What the cells of the notebook show ------------------------------------------------------------------------------


def show_one_line(run: Run, guess: Guess = ...) -> None:
    """How often `forward` was called, and with how many of the samples."""
    n, seen, rows = run.value("devices"), sorted(run.values("samples"), reverse=True), run.value("rows")
    calls = "once" if len(seen) == 1 else f"{len(seen)} times"
    each = "It's one call for each GPU, and one call where there's none to share with."
    if len(seen) < n:
        each = f"It's one call for each chunk, and chunks of this size go to {len(seen)} of {n} GPUs."
    none = "You made no bet. It's more fun with one, and you remember more."
    said = bet(guess, len(seen), "You knew.", each, within=0, none=none, kind="a number of calls")
    say(f"forward was called {calls}, with {' + '.join(map(str, seen))} samples. {said}")
    if n > 1:
        say(f"One line, and {len(seen)} GPUs work on one batch. Nothing else in the program changed.")
    elif n == 1:
        say("With one GPU the wrapper moves the model and the batch there, and calls the model. Nothing is split.")
    else:
        say(
            "There's no GPU here that it could use, so the wrapper only called your model: no error, no warning."
            " Four GPUs would have got 6 samples each."
        )
    more_checks(
        {
            "each sample went in once": sum(seen) == rows,
            "it was split if there's more than one GPU, and only then": (len(seen) > 1) == (n > 1),
        }
    )


def show_same(model: nn.Module, batch: Tensor, labels: Tensor) -> None:
    """Compare the gradient that the replicas left in `model` with that of the whole batch in one piece."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    cross_entropy(alone(batch), labels).backward()
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), alone.parameters(), strict=True)]
    if any(p is None for p, _ in pairs):
        raise ValueError("the model has no gradients yet: run the cell that calls backward() first")
    gap = max(((p - q).abs().max() / q.abs().max()).item() for p, q in pairs if p is not None and q is not None)
    say(f"The largest difference between the two gradients is {gap:.0e} of the largest number in them: rounding.")
    claim("the replicas' gradients add up to the gradient of one device", gap < 1e-5)
    n = len(Machine.here().usable_gpus)
    if n < 2:
        return
    real = _real()
    say(f"The real nn.DataParallel, on your {n} GPUs, is off by {real.value('gap'):.0e} (in double precision).")
    more_checks(
        {
            "the real one gives the gradient of one device, too": real.value("gap") < 1e-9,
            "it cuts as chunk does": real.value("chunks") == sorted(len(c) for c in torch.arange(3 * n - 1).chunk(n)),
            "a number that forward changes on a replica is lost": real.value("calls") == 0,
            "BatchNorm remembers the first chunk only": real.value("norm_gap") < 1e-12,
            "it refuses a model that's partly on the CPU": real.value("refused"),
            "an argument of one row makes it drop all chunks but the first": real.value("trained_on")
            < real.value("samples"),
        }
    )


@figure_first
def show_sum(
    train: Callable[..., list[float]], summed: list[float], averaged: list[float], n: int, guess: Guess = ...
) -> Figure:
    """The training with `.sum()` next to one device, and next to one device with n times the learning rate."""
    lr = inspect.signature(train).parameters["lr"].default
    alone, faster = (train(lambda model, batch: model(batch), lr=rate) for rate in (lr, lr * n))
    said = bet(
        guess,
        n,
        "that's it. Nobody set that rate, and nothing warns you.",
        f"{n} replicas each bring a mean, the sum is {n} times as large, and so is the gradient.",
        within=0,
        traps={
            1: f"But each replica's loss is already a mean, and {n} means were added up: {n} times.",
            (0, 1): f", and it's the other way round: {n} means were added up, so it's {n} times.",
        },
        none="Would you have looked at your learning rate?",
        kind="a number, where 1 is the rate you set",
        positive=True,
    )
    say(
        f"After {len(alone) - 1} steps the loss is {alone[-1]:.3g} on one device, {averaged[-1]:.3g} with .mean(), and"
        f" {summed[-1]:,.0f} with .sum(). {said}"
    )
    claim(
        f"the sum over {n} replicas trains as {n} times the learning rate does",
        _apart(summed, faster) < 1e-3,
        headline=True,
    )
    more_checks({"the mean over even chunks trains as one device does": _apart(averaged, alone) < 1e-3})
    curves = {
        "one device": alone,
        f"{n} replicas, .sum()": summed,
        f"predicted: one device, {n} times the learning rate": faster,
    }
    return figures.lines(
        {name: (list(range(len(losses))), losses) for name, losses in curves.items()},
        xlabel="step",
        ylabel="training loss",
        log="y",
        title=f"The loss after {len(alone) - 1} steps: {alone[-1]:.2g} on one device, {summed[-1]:,.0f} with .sum()",
    )


@figure_first
def show_four(guess: Guess = ...) -> Figure:
    """A step of ResNet-50 on four emulated A100s, both ways, next to one of them alone."""
    one, dp, ddp = four_gpus()
    one_s, dp_s, ddp_s = (run.samples("step_s").median for run in (one, dp, ddp))
    said = bet(
        guess,
        dp_s / one_s,
        "you've learnt what it costs.",
        over="It isn't that bad: all four compute at the same time, once they've begun.",
        under="The weights go out before anyone computes, the gradients come back after all have, and one Python starts"
        " all four forward passes.",
        none="It would be 1 if four GPUs did four times the work in the same time.",
        kind="a number, such as 1.5",
        positive=True,
    )
    say(
        f"One GPU takes {one_s * 1e3:.0f} ms for {IMAGES} images. Four take {dp_s * 1e3:.0f} ms for {4 * IMAGES} with"
        f" DataParallel, {dp_s / one_s:.2f} times as long. {said} With DDP it's {ddp_s * 1e3:.0f} ms."
    )
    spans, begin, end = [], {}, {}
    for way, run, first in (("DataParallel", dp, 0), ("DDP", ddp, 4)):
        found = run.emulated
        begin[way], end[way] = found.steps(0)[-1]
        rows = found.by_gpu() if way == "DataParallel" else [s for rank in range(4) for s in found.spans(rank)]
        spans += [
            (first + row, start - begin[way], stop - begin[way], "communication" if what == "loading" else what, "")
            for row, start, stop, what, _ in rows
            if begin[way] <= start and stop <= end[way]
        ]
    alone = [s for s in spans if s[0] == 3 and s[3] == "compute"]
    late_ms = min(s[1] for s in alone) * 1e3
    say(f"With DataParallel, GPU 3 begins to compute {late_ms:.0f} ms into the step: only then do all have a replica.")
    more_checks(
        {
            "four GPUs take longer for four times the work with DataParallel than one for its own": dp_s > one_s,
            "DDP takes less": ddp_s < dp_s,
            "all four compute with both": {s[0] for s in spans if s[3] == "compute"} == set(range(8)),
        }
    )
    return figures.rank_timeline(
        spans,
        title=f"Four emulated A100s: {dp_s * 1e3:.0f} ms a step with DataParallel, {ddp_s * 1e3:.0f} with DDP",
        kind="modelled",
        names={i: f"{'DP' if i < 4 else 'DDP'}, GPU {i % 4}" for i in range(8)},
    )


@functools.cache
def four_gpus() -> tuple[Run, Run, Run]:
    """ResNet-50 on one emulated GPU, on four by DataParallel, and on four by DDP."""

    def run(how: str, ranks: int, cluster: str, gpus: int = 1) -> Run:
        args = [how, "--resnet50", "--images", IMAGES, "--steps", 4]
        program = PROGRAMS / "03_both_ways.py"
        return launch(program, ranks, args=args, cluster=cluster, gpus_per_rank=gpus, quiet=True)

    return run("one", 1, "1xA100"), run("dp", 1, FOUR, gpus=4), run("ddp", 4, FOUR)


@figure_first
def show_against_ddp() -> Figure:
    """Both ways on two GPUs: as others measured them, and on this machine if it has two."""
    fast, slow = published.cases(prefix="dp-against-ddp")
    dp_s, ddp_s, off_s = (
        us / 1e6 for us in (fast.inputs["before_us"], fast.inputs["after_us"], slow.inputs["before_us"])
    )
    weights_GB, outputs_GB = (nbytes / 1e9 for nbytes in _waited_for())
    bare_s = 200 * (weights_GB + outputs_GB) / LINK_GBPS
    say(
        f"Published: DDP {ddp_s:.0f} s, DataParallel {dp_s:.0f} s. In each of 200 steps DataParallel's GPUs wait for"
        f" {weights_GB:.1f} GB of weights and gradients and {outputs_GB:.1f} GB of outputs (not for their gradients:"
        f" the loss was among the outputs). At {LINK_GBPS} GB/s that predicts {bare_s:.1f} s more. The rest may be"
        " Python."
    )
    say(f"DDP that may not use the fast link took {off_s:.0f} s: the link matters more than the wrapper.")
    _both_ways()
    seen = {"DDP": ddp_s, "DataParallel": dp_s, "DDP, link off": off_s}
    return figures.bars(
        {name: Samples([s], "run_s", Provenance("published", fast.label)) for name, s in seen.items()},
        predicted={"DataParallel": ddp_s + bare_s},
        ylabel="200 steps of GPT-2 (s)",
        title=f"Two GPUs: {dp_s / ddp_s - 1:.0%} longer with DataParallel; the link matters more",
    )


@figure_first
def show_measured() -> Figure:
    """How much more four A100s did than one with DataParallel, as others measured it on ten models."""
    took: dict[str, dict[int, float]] = {}
    for case in published.load(published.EMULATED):
        if case.cls == "data_parallel" and case.inputs["case"].endswith(":half:12:train"):
            model = case.inputs["case"].partition(":")[0]
            took.setdefault(model, {})[int(case.inputs["cluster"].partition("x")[0])] = case.observed
            source = case.source
    did = {model: 4 * ms[1] / ms[4] for model, ms in sorted(took.items(), key=lambda item: item[1][1] / item[1][4])}
    least, most = min(did, key=did.__getitem__), max(did, key=did.__getitem__)
    say(
        f"Published: four GPUs did {did[least]:.1f} times the work of one with {least}, and {did[most]:.1f} times with"
        f" {most}, which has few layers, and large ones. With {least}, a step of 48 images on four GPUs took"
        f" {took[least][4]:.0f} ms, and one of 12 on a single GPU {took[least][1]:.0f} ms."
    )
    more_checks({"no model gains more than 2.5 times from four GPUs": did[most] < 2.5})
    by = Provenance("published", source)
    return figures.bars(
        {model: Samples([times], "times", by) for model, times in did.items()},
        ylabel="work of four GPUs, compared with one",
        title=f"DataParallel on four A100s, 12 images each: {did[least]:.1f} to {did[most]:.1f} times one GPU's work",
    )


def _both_ways() -> None:
    """Train here by both, where there are two GPUs."""
    n, sentence = len(Machine.here().usable_gpus), "a step of DDP takes less time than one of DataParallel"
    if n < 2:
        claim(sentence, None, why="needs two GPUs")
        return
    dp = launch(PROGRAMS / "03_both_ways.py", 1, args=["dp"], gpus_per_rank="all", timeout=300, quiet=True)
    ddp = launch(PROGRAMS / "03_both_ways.py", "auto", args=["ddp"], timeout=300, quiet=True)
    dp_s, ddp_s = dp.samples("step_s"), ddp.samples("step_s")
    why = disturbed(dp, ddp)
    faster = claim(sentence, kindly(ddp_s.faster_than(dp_s)).unless(why))
    if why:
        say_disturbed(why, f"which is faster on your {n} GPUs")
    else:
        say(
            f"On your {n} GPUs a step of ResNet takes {dp_s.median * 1e3:.0f} ms with DataParallel and"
            f" {ddp_s.median * 1e3:.0f} ms with DDP{'' if faster else ': too close to tell, or your link is slow'}."
        )
    peaks = [f"{nbytes / 2**30:.2f}" for nbytes in dp.value("peak_bytes")]
    alike = max(nbytes for rank in ddp.ranks for nbytes in rank.values("peak_bytes")[-1]) / 2**30
    say(f"GPU memory at its fullest: {', '.join(peaks)} GiB with DataParallel, {alike:.2f} GiB on each with DDP.")


def take_home() -> Program:
    """The same training, started either way, in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(run: Run, summed: Sequence[float], averaged: Sequence[float], n: int) -> Words:
    """The lesson in the reader's own numbers."""
    counted, rings = counts()
    most = COUNTS[-1]
    dp, ddp = through(counted, "ring")[most], on_the_ring(rings)[most]
    gpus, kind = run.value("devices"), "emulated " * (run.provenance.kind == "emulated")
    used = f"it split your batch over {gpus} {kind}GPUs" if gpus > 1 else "it only called your model"
    return Words(
        [
            f"One line, and here {used}. You wrote what's inside: scatter, replicate, parallel_apply and gather.",
            f"Of {most} GPUs, {mib(dp)} MiB pass through the first in a step, and {mib(ddp)} MiB with DDP:"
            f" {dp / ddp:.1f} times as much, and nothing hides it.",
            f"With a mean over {n} replicas the loss ended at {averaged[-1]:.2g}, and with a sum at {summed[-1]:,.0f}.",
            threads_you_saw(),
        ]
    )


# --- From records to numbers ------------------------------------------------------------------------------------------


@functools.cache
def _real() -> Run:
    return launch(PROGRAMS / "03_real.py", 1, gpus_per_rank="all", quiet=True)


def _waited_for() -> tuple[float, float]:
    """Bytes that the GPUs wait for in a step of the published pair: weights and gradients, and outputs of GPT-2 (124.4
    million parameters, 8 sequences of 1024 tokens, 50257 scores each, fp32)."""
    weights, outputs = 4 * 124.4e6, 8 * 1024 * 50257 * 4
    moved = predict.data_parallel_traffic(2, weights, output_bytes=outputs, output_gradients=False, by="ring")
    return 2 * weights, moved.total_bytes - 2 * weights


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest relative difference between two curves."""
    return max(abs(a / b - 1) for a, b in zip(one, other, strict=True))
