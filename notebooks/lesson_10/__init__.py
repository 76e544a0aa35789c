"""What lesson 10 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from types import EllipsisType

from course_utils import Machine, Run, Samples, claim, figures, launch, more_checks, predict
from course_utils.for_lessons import Figure, Program, Words, bet, figure_first, say

from .deeper import (  # noqa: F401
    show_inside,
    show_mesh,
    show_plan,
    show_plans,
    show_policies,
    show_published,
    show_split,
    show_stage_1,
    show_stages,
    show_thousand,
    show_ways_out,
)

HERE = Path(__file__).resolve().parents[1]
COUNTED = HERE / "programs" / "10_counted.py"
TAKE_HOME = HERE / "take_home" / "10_fsdp.py"

LAYERS, WIDTH, GPUS = 28, 16384, 8  # of the model of this page, and of the machine
GIB = 2**30
STATES = 16  # bytes a parameter: weight, gradient, Adam's two averages, in float32
TWO_MACHINES = {"count": 16, "device": "A100", "between": "ethernet100", "label": "two machines of 8xA100"}
STAGES = {"DDP": 0, "ZeRO-1": 1, "FSDP, weights kept": 2, "FSDP": 3}
KINDS = {"parameters": "weight_bytes", "gradients": "gradient_bytes", "optimizer": "optimizer_bytes"}
IN_32_BITS = {"weight_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}

Guess = float | int | str | EllipsisType | None


def show_copies(run: Run, guess: Guess = ...) -> None:
    """In which call DDP ran out of memory, and what lay there by then."""
    text = (run.ranks[0].stack or "") + run.log()
    if "out of memory" not in text:
        say("The run ended before the memory did. Run the cell again.")
        return
    parts = {what: float(gib) for what, gib in re.findall(r"(\w+) ([\d.]+) GiB", text.partition("are taken: ")[2])}
    where = "backward" if "backward()" in text else "step" if "optimizer.step()" in text else "DDP"
    answer = bet(
        guess,
        where,
        close="you know what DDP keeps.",
        kind="one of these: DDP, backward, step",
        traps={
            "DDP": "It copies rank 0's weights to the others, and there's room for that.",
            "backward": "Not quite yet.",
            "step": "On paper, yes: weights and gradients are 56 GiB, and Adam's 56 come in the first step. But DDP's"
            " buckets are a second copy of the gradients, so it never gets there.",
        },
    )
    named = ", ".join(f"{what} {gib:.0f}" for what, gib in parts.items() if gib >= 1)
    say(f"In {where}. {answer}")
    say(f"On each GPU lay, in GiB: {named}. It has 79, and Adam's averages would want 56 more.")
    more_checks({"each held all weights": abs(parts.get("weights", 0) - _params() * 4 / GIB) < 1})


def _params() -> int:
    """Parameters of the page's model."""
    return LAYERS * (WIDTH * WIDTH + WIDTH)


@figure_first
def show_sharded(run: Run, guess: Guess = ...) -> Figure:
    """What each GPU held at its fullest moment, next to what DDP would need."""
    share = _params() * STATES / GPUS
    peak = _peak(run)
    answer = bet(
        guess,
        peak / GIB,
        close="you thought of what's borrowed.",
        over="It borrows a layer or two, not the model.",
        under="Each GPU keeps an eighth of everything.",
        unit=" GiB",
        within=0.12,
        traps={
            (0.95 * share / GIB, 1.06 * share / GIB): "That's its own eighth. It also borrows, and that comes on top.",
            (1.06 * share / GIB, 0.88 * peak / GIB): "There's more on its way: gradients, and the next layer.",
            (0.95 * GPUS * share / GIB, 1.1 * GPUS * share / GIB): "That's all of it, as under DDP.",
        },
        kind="a number of GiB, such as 10",
    )
    say(f"{peak / GIB:.1f} GiB: {share / GIB:.0f} of its own, and {(peak - share) / GIB:.1f} on top. {answer}")
    say(
        "On top are the weights of two layers, the one that computes and the next, gradients on their way to their"
        f" owners, and activations. A step takes {_step_s(run):.1f} s."
    )
    claim("eight emulated GPUs have room for a model that none can hold", peak < run.emulated.memory_bytes < 8 * share)
    more_checks({"what's borrowed is less than a fifth of the weights": peak - share < 4 * _params() / 5})
    (held,) = list(run.emulated.memory().values())[:1]
    weights = 4.0 * _params()
    ddp = {"weights": weights, "gradients": weights, "optimizer": 2 * weights, "buckets": weights}
    return figures.memory(
        {"DDP would need": ddp},
        {"FSDP holds": {kind: held[kind] for kind in sorted(held)}},
        limit_bytes=run.emulated.memory_bytes,
        title=f"Sharded over eight GPUs, {peak / GIB:.0f} GiB are enough",
        kind="emulated",
    )


def _peak(run: Run) -> int:
    """Bytes of the fullest moment on any GPU."""
    return max(nbytes for _, nbytes in run.emulated.peaks())


def _step_s(run: Run) -> float:
    """Seconds of the last step of an emulated run."""
    start, end = run.emulated.steps(0)[-1]
    return end - start


def count() -> Run:
    """The small model on this machine's ranks, in four ways: what each holds, sends and learns."""
    threads = None if len(Machine.here().usable_gpus) > 1 else 1
    return launch(COUNTED, "auto", args=list(STAGES), threads=threads, quiet=True)


@figure_first
def show_counts(run: Run, guess: Guess = ...) -> Figure:
    """What a rank holds and sends under each way, counted and on paper."""
    n, params = run.world_size, run.value("params", way="DDP")
    sent = {way: _mean(run, "sent_bytes", way) for way in STAGES}
    times = sent["FSDP"] / sent["DDP"]
    answer = bet(
        guess,
        times,
        close="you counted the gathers.",
        over="DDP's sum already sends everything twice: it's a scatter and a gather.",
        under="The gradients still have to be summed, and the weights come on top.",
        unit=" times",
        within=0.1,
        traps={
            3: "There are three collectives. But DDP's one sum counts as two of them.",
            2: "Gradients once, weights once? DDP's sum has two halves already, and FSDP gathers the weights twice.",
            1: "That's what it is if the gathered weights stay until backward.",
        },
        kind="a number of times, such as 2",
    )
    gap = max(run.values("gap", way="FSDP"))
    say(f"{times:.2f} times. {answer}")
    say(
        f"A rank held {_total(run, 'FSDP') / _total(run, 'DDP'):.0%} of what it did under DDP: {n} ranks share it."
        f" Training has moved the weights by some way; FSDP's and DDP's differ by {gap:.0e} of it."
    )
    claim("FSDP trains the weights of DDP", gap < 0.01, headline=True)
    paper = {way: predict.zero_memory(params, n, stage, **IN_32_BITS) for way, stage in STAGES.items()}
    more_checks(
        {
            "what's held is on paper, to 2%": all(
                abs(_total(run, way) / states.total - 1) < 0.02 for way, states in paper.items()
            ),
            "FSDP sends 1.5 times as much as DDP": abs(times - 1.5) < 0.01,
            "weights that are kept send what DDP does": abs(sent["FSDP, weights kept"] / sent["DDP"] - 1) < 0.01,
            "all ranks together have the optimizer once": sum(run.values("optimizer_bytes", way="FSDP")) == 8 * params,
        }
    )
    shown = [way for way in STAGES if way != "ZeRO-1"]
    return figures.memory(
        {
            way: {
                "parameters": paper[way].weights,
                "gradients": paper[way].gradients,
                "optimizer": paper[way].optimizer,
            }
            for way in shown
        },
        {way: {part: _mean(run, key, way) for part, key in KINDS.items()} for way in shown},
        title=f"{n} ranks: FSDP holds {_total(run, 'FSDP') / _total(run, 'DDP'):.0%}, and sends {times:.2f} times",
    )


def _mean(run: Run, key: str, way: str) -> float:
    """Over the ranks: where a tensor doesn't divide by the ranks, some hold a little more."""
    return fmean(run.values(key, way=way))


def _total(run: Run, way: str) -> float:
    """Bytes of weights, gradients and optimizer on a rank."""
    return sum(_mean(run, key, way) for key in KINDS.values())


@figure_first
def show_ways(ddp: Run, fsdp: Mapping[str, Run], guess: Guess = ...) -> Figure:
    """A step under DDP, and under FSDP with gathers of 32 and of 16 bits, and what's in it."""
    runs = {"DDP": ddp, **{f"FSDP, gathers {way}": run for way, run in fsdp.items()}}
    seconds = {name: _step_s(run) for name, run in runs.items()}
    wide, narrow = (_step_s(fsdp[way]) for way in ("float32", "bfloat16"))
    times = wide / seconds["DDP"]
    answer = bet(
        guess,
        times,
        close="you thought of the update.",
        over="Sending hides behind computing, and each GPU updates an eighth of the weights.",
        under="Computing takes as long as before.",
        unit=" times",
        within=0.12,
        traps={
            1.5: "That would be so if a step were all sending. Most of it hides behind computing.",
            1: "So it would be if only the sending counted, and all of it hid. But there's the update.",
            (times * 1.12, 0.97): "It's faster, right, and by more than that: the update is divided by eight.",
        },
        kind="a number of times, such as 1",
    )
    ms = {name: 1e3 * s for name, s in seconds.items()}
    update = {name: 1e3 * _update_s(run) for name, run in runs.items()}
    first, last = list(runs)[1:]
    say(f"{times:.2f} times: {ms[first]:.0f} ms, and DDP takes {ms['DDP']:.0f}. {answer}")
    say(
        f"The update takes {update['DDP']:.0f} ms under DDP and {update[first]:.0f} with shards. The rest is"
        f" {ms['DDP'] - update['DDP']:.0f} ms under DDP and {ms[first] - update[first]:.0f} under FSDP."
    )
    say(f"With gathers in bfloat16 that rest is {ms[last] - update[last]:.0f} ms, and a step {ms[last]:.0f}.")
    claim("on eight emulated A100 this step is faster with shards, though more is sent", wide < 0.9 * seconds["DDP"])
    more_checks(
        {
            "a shard's update takes an eighth": abs(8 * update[first] / update["DDP"] - 1) < 0.1,
            "gathers in bfloat16 are faster": narrow < wide,
        }
    )
    return figures.bars(
        {name: Samples([s], "step_s", runs[name].provenance) for name, s in seconds.items()},
        unit="s",
        title=f"1.5 times the bytes, {times:.2f} times the time",
    )


def _update_s(run: Run) -> float:
    """Seconds of the optimizer in the last step of an emulated run."""
    start, _ = run.emulated.steps(0)[-1]
    return sum(s[2] - s[1] for s in run.emulated.spans(0) if s[1] >= start - 1e-9 and s[4] == "step")


@figure_first
def show_far(far: Mapping[str, Run]) -> Figure:
    """A step on two machines with a slow link between them: copies, shards over all, shards within a machine."""
    seconds = {way: _step_s(run) for way, run in far.items()}
    held = {way: _peak(run) / GIB for way, run in far.items()}
    names = {"DDP": "DDP", "bfloat16": "FSDP over 16", "hybrid": "hybrid: 2 x 8"}
    say(
        f"Shards over all 16 take {seconds['bfloat16'] * 1e3:.0f} ms, {seconds['bfloat16'] / seconds['DDP']:.1f} times"
        f" DDP's. Hybrid takes {seconds['hybrid'] * 1e3:.0f}, and holds {held['hybrid']:.1f} GiB instead of"
        f" {held['bfloat16']:.1f}."
    )
    say("Across the slow link go only the sums of shards that are an eighth of the gradients.")
    more_checks(
        {
            "over a slow link, shards within a machine are faster": 1.2 * seconds["hybrid"] < seconds["bfloat16"],
            "hybrid holds less than a third of DDP": held["hybrid"] < held["DDP"] / 3,
        }
    )
    return figures.bars(
        {
            f"{names[way]}, {held[way]:.0f} GiB": Samples([s], "step_s", far[way].provenance)
            for way, s in seconds.items()
        },
        unit="s",
        title="Two machines, 100 Gbit/s between them: keep shards inside",
    )


def show_elastic(two: Run, one: Run, four: Run) -> None:
    """The last loss of two ranks that saved, and of one and four that loaded."""
    losses = {n: run.value("loss", rank=0) for n, run in ((2, two), (1, one), (4, four))}
    drift = max(abs(loss / losses[2] - 1) for loss in losses.values())
    say(f"{losses[2]:.9f} on two ranks, {losses[1]:.9f} on one, {losses[4]:.9f} on four.")
    files = sorted(file.name for file in Path(two.script).with_name("checkpoint").iterdir())
    say(f"In the folder are {', '.join(files)}: a file for each rank that saved, and one that says what lies where.")
    claim("what two ranks saved goes on alike on one rank and on four", drift < 1e-5)


def show_early(run: Run, guess: Guess = ...) -> None:
    """The losses of five steps with an optimizer that was made before `fully_shard`."""
    losses = run.ranks[0].values("loss")
    same = len(set(losses)) == 1
    answer = bet(
        guess,
        "stay" if same else "fall" if losses[-1] < losses[0] else "rise",
        close="the optimizer has nothing to do.",
        traps={
            "error": "It would be kinder. Every call is valid by itself, so nobody complains.",
            "fall": "Forward and backward do compute. But who moves the weights?",
            "stay": "Not here.",
        },
        kind="one of these: error, fall, stay",
        also={"falls": "fall", "stays": "stay"},
    )
    say(f"It stays, at {losses[-1]:.4f}. {answer}" if same else f"The losses are {losses}. {answer}")
    claim("an optimizer made before fully_shard trains nothing, and nobody says so", same)


def show_one_unit(units: Run, whole: Run) -> None:
    """The fullest moment and the step of a model that's one unit, next to a unit for each layer."""
    few, all_at_once = _peak(units) / GIB, _peak(whole) / GIB
    say(
        f"{all_at_once:.1f} GiB on each GPU, and {few:.1f} with a unit for each layer. A step takes"
        f" {_step_s(whole) * 1e3:.0f} ms instead of {_step_s(units) * 1e3:.0f}. There's no error and no warning."
    )
    more_checks(
        {
            "one unit takes far more memory": all_at_once > 1.5 * few,
            "and it's slower": _step_s(whole) > 1.05 * _step_s(units),
        }
    )


def take_home() -> Program:
    """FSDP with everything around it, in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(sharded: Run, counted: Run, ddp: Run, fsdp: Mapping[str, Run], two: Run, four: Run) -> Words:
    """The lesson in the reader's own numbers."""
    sent = _mean(counted, "sent_bytes", "FSDP") / _mean(counted, "sent_bytes", "DDP")
    share = _total(counted, "FSDP") / _total(counted, "DDP")
    here, wide, narrow = (_step_s(run) * 1e3 for run in (ddp, fsdp["float32"], fsdp["bfloat16"]))
    gap = max(counted.values("gap", way="FSDP"))
    off = abs(four.value("loss", rank=0) / two.value("loss", rank=0) - 1)
    return Words(
        [
            f"A model of {_params() * STATES / GIB:.0f} GiB took two steps on eight emulated A100, with"
            f" {_peak(sharded) / GIB:.0f} GiB on each.",
            f"Your own {counted.world_size} ranks held {share:.0%} of what DDP holds, sent {sent:.2f} times as much,"
            f" and their weights ended {gap:.0e} of the way of training from DDP's.",
            f"Where DDP took {here:.0f} ms a step, FSDP took {wide:.0f}, and with gathers in bfloat16 {narrow:.0f}.",
            f"Two ranks saved, four loaded, and their losses differed by {off:.0e} of their size.",
        ]
    )
