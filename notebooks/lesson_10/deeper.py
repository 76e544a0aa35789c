"""What the deeper part of lesson 10 shows: stages on paper, FSDP by hand, split layers, a thousand ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from types import EllipsisType
from typing import Any

from course_utils import (
    Machine,
    Provenance,
    RankError,
    Run,
    Samples,
    claim,
    figures,
    launch,
    more_checks,
    predict,
    published,
)
from course_utils.for_lessons import BLUE, INK, ORANGE, RUST, Figure, Table, bet, figure_first, new_axes, readable, say

LANGUAGE = Path(__file__).resolve().parents[1] / "programs" / "10_language.py"
KEPT_PLANS = published.PATH.with_name("emulated_plan.json")
COUNTED = Path(__file__).resolve().parents[1] / "programs" / "10_counted.py"
NAMES = ("DDP", "stage 1", "stage 2", "stage 3")
AUTOCAST = {"weight_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}  # in float32, and with autocast as well
PARAMS, RANKS = 7.5e9, 64  # of the paper's example
POLICIES = ("FSDP", "FSDP, gathers of 16 bits", "FSDP, all of 16 bits")
# Tokens a second and GPU, by H100s: mosaicml/llm-foundry@8c8dd48 scripts/train/benchmarking/README.md, MPT-7B
MPT_7B = {8: 10_643, 128: 10_475, 256: 10_119, 512: 9_670}

Guess = float | int | str | EllipsisType | None


@figure_first
def show_stages(guess: Guess = ...) -> Figure:
    """What each of 64 ranks holds of 7.5 billion parameters, stage by stage, by the paper's bytes and by autocast's."""
    paper = [predict.zero_memory(PARAMS, RANKS, stage) for stage in range(4)]
    autocast = [predict.zero_memory(PARAMS, RANKS, stage, **AUTOCAST) for stage in range(4)]
    answer = bet(
        guess,
        autocast[1].total / 1e9,
        close="weights and gradients stay, at 8 bytes.",
        over="The optimizer's 8 bytes are shared by 64.",
        under="Stage 1 leaves all weights and gradients on each rank, at 4 bytes each.",
        unit=" GB",
        within=0.05,
        traps={(31, 32): "That's the paper's number, for weights and gradients of 2 bytes. With autocast they have 4."},
        kind="a number of GB, such as 10",
    )
    say(
        f"{autocast[1].total / 1e9:.1f} GB with autocast, and {paper[1].total / 1e9:.1f} as the paper counts. {answer}"
        f" At stage 3 it's {paper[3].total / 1e9:.1f} either way."
    )
    printed = {c.inputs["stage"]: c.observed for c in published.cases("zero")}
    claim(
        "the formula gives the sizes that the ZeRO paper prints",
        all(abs(paper[stage].total / 1e9 - size) < 0.06 for stage, size in printed.items()),
    )
    stacks = {}
    for stage, name in enumerate(NAMES):
        for label, states in ((f"{name}, paper", paper[stage]), (f"{name}, autocast", autocast[stage])):
            stacks[label] = {"parameters": states.weights, "gradients": states.gradients, "optimizer": states.optimizer}
    return figures.memory(stacks, limit_bytes=80e9, decimal=True, title=f"7.5 billion parameters on {RANKS} ranks")


def show_stage_1(run: Run) -> Table:
    """What PyTorch's stage 1 holds and sends, next to DDP and FSDP, from what the core has counted."""
    rows = []
    for way in ("DDP", "ZeRO-1", "FSDP"):
        calls = ", ".join(run.ranks[0].values("calls", way=way)[0])
        held, beside, sent = (
            readable("bytes", fmean(run.values(key, way=way)))
            for key in ("optimizer_bytes", "beside_bytes", "sent_bytes")
        )
        rows.append([way, held, beside, sent, calls])
    times = fmean(run.values("sent_bytes", way="ZeRO-1")) / fmean(run.values("sent_bytes", way="DDP"))
    say(f"PyTorch's stage 1 sends {times:.2f} times as much as DDP.")
    claim("ZeroRedundancyOptimizer next to DDP sends as much as FSDP", abs(times - 1.5) < 0.01)
    most, least = max(run.values("optimizer_bytes", way="ZeRO-1")), min(run.values("optimizer_bytes", way="ZeRO-1"))
    more_checks({"it deals out whole tensors, about evenly": least > 0 and most < 2 * least + 1e6})
    return Table(("way", "optimizer", "beside the states", "sent", "calls"), rows, "lrrrl")


def show_policies() -> Table:
    """What a step of FSDP sends if weights, and then gradients too, travel in 16 bits."""
    threads = None if len(Machine.here().usable_gpus) > 1 else 1
    run = launch(COUNTED, "auto", args=list(POLICIES), threads=threads, quiet=True)
    sent = {way: fmean(run.values("sent_bytes", way=way)) for way in POLICIES}
    kept = {way: run.value("kept", way=way) for way in POLICIES}
    halves = sent[POLICIES[2]] / sent[POLICIES[0]]
    claim(
        "16 bits for all that travels sends half of the bytes, and shards stay in float32",
        abs(halves - 0.5) < 0.01 and set(kept.values()) == {"torch.float32"},
    )
    rows = [[way, readable("bytes", sent[way]), kept[way].removeprefix("torch.")] for way in POLICIES]
    return Table(("way", "sent in a step", "shards are"), rows, "lrl")


def show_inside(run: Run) -> None:
    """FSDP by hand: a rank's share, its collectives, and the gradients of one device."""
    layers, calls = run.value("layers"), run.value("calls")
    say(f"A rank held {run.value('held'):.0%} of the weights, and called {calls} collectives for {layers} layers.")
    claim(
        "FSDP by hand: the gradients of one device, for two gathers and a scatter a layer",
        max(run.values("gap")) < 1e-12 and calls == 3 * layers,
    )


def show_split(run: Run) -> None:
    """An MLP split over ranks, by hand and by DTensor, against one device."""
    say("; ".join(run.value("where", rank=0)))
    gaps = {way: max(run.values("gap", way=way)) for way in ("by hand", "DTensor")}
    claim("a split MLP has the input gradient of one device, by hand and by DTensor", max(gaps.values()) < 1e-12)
    sums = {run.value("sums", way=way) for way in gaps}
    claim("two all-reduces a block: one forward, one backward", sums == {2})


def show_mesh(run: Run) -> None:
    """FSDP around split layers on a grid of 2 by 2 ranks."""
    say(f"The first weight lies as {run.value('placed')}, and a rank holds {run.value('held'):.2%} of the weights.")
    claim(
        "FSDP around tensor parallel layers: the gradients of one device, a quarter a rank",
        max(run.values("gap")) < 1e-12 and 0.25 <= run.value("held") < 0.27,
    )


def show_thousand(run: Run) -> Figure | None:
    """What rank 0 of 64 and of 1,024 holds of 7.5 billion parameters, counted on tensors without data."""
    sentence = "7.5 billion parameters on 64 and on 1,024 ranks: to the byte what the formula says"
    if not run.records:
        claim(sentence, None, why="needs a torch newer than 2.10")
        return None
    parts = ("parameters", "gradients", "optimizer")
    held = {f"{n} ranks": {part: run.value(part, n=n) for part in parts} for n in (64, 1024)}
    paper: dict[str, dict[str, float]] = {}
    for n in (64, 1024):
        states = predict.zero_memory(run.value("params"), n, 3, **AUTOCAST)
        paper[f"{n} ranks"] = {
            "parameters": states.weights,
            "gradients": states.gradients,
            "optimizer": states.optimizer,
        }
    claim(sentence, all(held[k][part] == paper[k][part] for k in held for part in parts))
    say(f"Collectives in a step: {run.value('calls', n=64)} with 64 ranks, {run.value('calls', n=1024)} with 1,024.")
    largest = sum(held["64 ranks"].values()) / 1e9
    return figures.memory(
        paper, held, decimal=True, title=f"Each of 64 ranks holds {largest:.2f} GB, of 1,024 a sixteenth"
    )


@figure_first
def show_published() -> Figure:
    """MPT-7B on more and more H100s, published, and what it would be if no traffic hid behind computing."""
    inputs: Mapping[str, Any] = published.cases("fsdp_overlap")[0].inputs
    eight, most = MPT_7B[8], max(MPT_7B)
    bus_Bps = 8 * inputs["nic_GBps"] * 1e9  # a ring uses the interfaces of all 8 GPUs of a node
    traffic_s = 3 * 2 * inputs["N"] / bus_Bps  # two gathers and a scatter, 2 bytes a weight
    unhidden = inputs["tokens"] / (inputs["tokens"] / eight + traffic_s)
    say(
        f"With 128 GPUs each does {MPT_7B[128] / eight:.0%} of what it does with 8, and with {most} it does"
        f" {MPT_7B[most] / eight:.0%}. If nothing hid between nodes, it would be {unhidden / eight:.0%}."
    )
    more_checks(
        {
            "each run is slower than the one on fewer": list(MPT_7B.values()) == sorted(MPT_7B.values(), reverse=True),
            "even the slowest hides something": MPT_7B[most] > unhidden,
        }
    )
    return figures.bars(
        {
            f"{n} H100": Samples([rate], "tokens/s", Provenance("published", "llm-foundry"))
            for n, rate in MPT_7B.items()
        },
        predicted={f"{n} H100": unhidden for n in MPT_7B if n > 8},
        unit="tokens/s",
        title=f"MPT-7B under FSDP: with {most} GPUs each loses {1 - MPT_7B[most] / eight:.0%}",
    )


GPUS, PEAK_FLOPS, REACHED = "8xH100", 989.4e12, 0.55  # what products of matrices get, as data/clusters.toml has it
PLAN = {  # 2 sequences of 8,192 tokens a GPU in each
    "keep all": "llama3-8b:2:8192:none:1:compiled:1",
    "keep some": "llama3-8b:2:8192:selective:1:compiled:1",
    "recompute": "llama3-8b:2:8192:full:1:compiled:1",
    "recompute, TP 8": "llama3-8b:16:8192:full:tp8:compiled:1",
}


@figure_first
def show_plan() -> Figure:
    """Ways to train 8 billion parameters on eight emulated H100s: each a real program, run as one of eight."""
    rates, full, no_room = {}, {}, []
    by = Provenance("emulated", f"one of {GPUS}")
    for way, case in PLAN.items():
        try:
            run = launch(LANGUAGE, 1, args=[case], cluster=GPUS, one_of=8, quiet=True, timeout=600)
        except RankError as error:
            if "OutOfMemoryError" not in str(error):
                raise
            no_room.append(way)
        else:
            rates[way] = Samples([run.value("tokens_per_s")], "tokens/s", by)
            full[way] = run.value("peak_bytes") / 2**30
    flops = 6 * 8.03e9 + 6 * 32 * 4096 * 8192  # a token's: weights, and the half of attention below the diagonal
    first = max(rates, key=lambda way: rates[way].median)
    used = rates[first].median * flops / PEAK_FLOPS
    say(f"Doesn't fit into 80 GB: {', '.join(no_room) or 'none of them'}.")
    say("At its fullest, a GPU holds " + ", ".join(f"{full[way]:.0f} GiB ({way})" for way in full) + ".")
    say(f"The fastest that fits, {first}, uses {used:.0%} of what the GPUs could do.")
    more_checks(
        {
            "keeping all activations doesn't fit": no_room == ["keep all"],
            "what's computed again costs time": rates["recompute"].median < rates["keep some"].median,
            "and saves memory": full["recompute"] < full["keep some"],
            "tensor parallelism inside a machine is slower than FSDP alone": rates["recompute, TP 8"].median
            < rates["recompute"].median,
        }
    )
    return figures.bars(
        rates,
        predicted={"recompute": _predicted_rate()},
        unit="tokens/s",
        ylabel="tokens a second and GPU",
        title=f"8 billion parameters on 8 emulated H100s: {first} is the fastest that fits",
    )


SPLITS = {
    "1": "FSDP", "tp8": "TP 8", "cp8": "context 8", "ep8": "experts 8", "pp4": "pipeline 4",
    "tp8pp4": "TP 8, pipeline 4", "tp8pp4x2": "TP 8, pipeline 4, interleaved", "tp8pp8": "TP 8, pipeline 8",
    "tp8pp8x2": "TP 8, pipeline 8, interleaved",
}  # fmt: skip
MODELS = {
    "llama3-8b": "Llama 3, 8 billion", "llama3-70b": "Llama 3, 70 billion", "llama3-405b": "Llama 3, 405 billion",
    "mixtral-8x7b": "Mixtral, 8 experts of 7 billion",
}  # fmt: skip
COLUMN = 58  # where the numbers stand, right of all bars
KEPT = {"none": ", keep all", "selective": ", keep some", "full": ""}


def show_plans() -> Figure:
    """Ways to train 8 to 405 billion parameters on 8 to 1,024 emulated H100s, each by a real program, and what
    `predict` says of them. They were run once, in half an hour, and kept in `data/emulated_plan.json`."""
    rows = json.loads(KEPT_PLANS.read_text())
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        model, _, length, *_ = row["case"].split(":")
        longer = f", sequences of {int(length):,}" if length != "8192" else ""
        groups.setdefault((f"{MODELS[model]}{longer}", row["cluster"]), []).append(row)
    mpl, (ax,) = new_axes(size=(7.6, 0.9 + 0.27 * (len(rows) + 1.3 * len(groups))))
    place, labels, misses = 0.0, {}, []
    for (model, cluster), ways in groups.items():
        title = f"{model}, on {cluster.partition('x')[0]} H100"
        ax.text(0, place, title, va="center", color=INK, fontweight="bold")
        for row in ways:
            place += 1
            labels[place] = _way(row["case"])
            if row.get("tokens_per_s") is None:
                ax.text(0.5, place, "doesn't fit into 80 GB", va="center", color=RUST, fontsize=9)
                continue
            used = _used(row, "tokens_per_s")
            words = f"{used:.0f}%: {row['tokens_per_s']:,.0f} tokens/s, {row['reserved_bytes'] / 2**30:.0f} GiB"
            ax.barh(place, used, color=BLUE, height=0.7, label="emulated" if place < 3 else None)
            ax.text(COLUMN, place, words, va="center", color=INK, fontsize=9)
            if row["predicted_tokens_per_s"]:
                predicted = _used(row, "predicted_tokens_per_s")
                misses.append(predicted / used)
                ax.plot(
                    [predicted], [place], marker="D", color=ORANGE, markersize=5, linestyle="none",
                    label="predicted" if len(misses) == 1 else None,
                )  # fmt: skip
        place += 1.3
    ax.set_yticks(list(labels), list(labels.values()))
    ax.set_ylim(place - 0.6, -0.7)
    ax.set_xlim(0, 100)
    ax.set_xticks(range(0, COLUMN, 10))
    ax.set_xlabel("% of the GPUs' peak that the model needs (MFU); on the right, for each GPU")
    ax.legend(loc="upper right", frameon=False)
    most = max((row for row in rows if row.get("tokens_per_s")), key=lambda row: _used(row, "tokens_per_s"))
    claim(
        f"the ways use {min(_used(r, 'tokens_per_s') for r in rows if r.get('tokens_per_s')):.0f} to"
        f" {_used(most, 'tokens_per_s'):.0f}% of the GPUs, and predict says {median(misses):.2f} times as much",
        all(1 <= miss < 2 for miss in misses),
    )
    return Figure(mpl, f"{len(rows)} ways to train {len(MODELS)} models on 8 to 1,024 emulated H100s.")


def _way(case: str) -> str:
    _, _, _, checkpoints, split, *_ = case.split(":")
    return SPLITS[split] + KEPT[checkpoints]


def _used(row: Mapping[str, Any], rate: str) -> float:
    return float(100 * row[rate] * row["flops_per_token"] / PEAK_FLOPS)


def _predicted_rate() -> float:
    """Tokens a second and GPU of FSDP with recomputation, by `predict.strategies`: products at the rate they reach, and
    all other operators for nothing."""
    tokens = 2 * 8192
    forward_s = tokens * (2 * 8.03e9 + 2 * 32 * 4096 * 8192) / (PEAK_FLOPS * REACHED)
    training = predict.Training(
        *(8.03e9, 32, forward_s, 2 * forward_s, 0.0, tokens * 4096 * 2), weight_bytes=2, gradient_bytes=4
    )
    (way,) = [way for way in options(training, 80e9, 361e9, 8) if way.name == "FSDP, recompute"]
    return float(tokens / way.step_s)


def options(training: predict.Training, memory_bytes: float, bandwidth_Bps: float, ranks: int) -> list[Any]:
    """DDP, ZeRO-1, FSDP, recomputation and a pipeline for a training, as `predict.strategies` has them."""
    link = predict.Link(20e-6, bandwidth_Bps)
    return list(
        predict.strategies(
            training,
            ranks,
            lambda nbytes: predict.ring_all_reduce(ranks, nbytes, link),
            lambda nbytes: predict.all_gather(ranks, nbytes, link),
            link.send_s,
            micro_batches=2 * ranks,
        )
    )


@figure_first
def show_ways_out(training: predict.Training, memory_GiB: float, bandwidth_GBps: float, ranks: int = 8) -> Figure:
    """What each way to train holds, and which is the fastest that fits."""
    ways = options(training, memory_GiB * 2**30, bandwidth_GBps * 1e9, ranks)
    choice = predict.choose(ways, memory_GiB * 2**30)
    say(f"{choice.best.name if choice.best else 'None of them'}: {choice.reason}")
    steps = ", ".join(f"{way.name} {way.step_s:.2f} s" for way in ways)
    say(f"Steps, predicted: {steps}.")
    fitting = sum(way.memory_bytes <= memory_GiB * 2**30 for way in ways)
    return figures.memory(
        {
            way.name: {
                "parameters": way.states.weights,
                "gradients": way.states.gradients,
                "optimizer": way.states.optimizer,
                "gathered": way.gathered_bytes,
                "activations": way.activation_bytes,
            }
            for way in ways
        },
        limit_bytes=memory_GiB * 2**30,
        title=f"{fitting} of {len(ways)} ways fit into {memory_GiB:g} GiB",
    )
