"""What the button of `explore.memory()` runs: a real sharded program on modelled GPUs, whose memory is counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..launcher import launch
from .drawing import Drawing
from .gpu_bytes import PRECISIONS, Held, gb, shape
from .parts import table

MIXED, FP32_GRADIENTS = list(PRECISIONS)[:2]
# Where the program's bytes count in the prediction. What's gathered is whole weights under stage 2, a layer's under 3.
_KINDS = {"weights": "weights", "gradients": "gradients", "buckets": "gradients", "optimizer": "optimizer",
          "activations": "activations"}  # fmt: skip


def refusal(values: Mapping[str, Any]) -> str:
    """Why the program can't run these settings, if so."""
    if values["tensor"] * values["pipeline"] > 1:
        return "the program shards and replicates; it has neither tensor parallelism nor a pipeline"
    if values["precision"] == FP32_GRADIENTS:
        return "PyTorch keeps a gradient in the type of its weight; fp32 ones next to 16-bit weights are Megatron's own"
    return ""


def seconds(values: Mapping[str, Any]) -> float:
    """About how long the emulation takes: a program of a second for each dozen of layers."""
    return 4 + shape(1e9 * values["params_B"])[0] * (0.2 if values["recompute"] == "full" else 0.15)


def run_memory(values: Mapping[str, Any]) -> dict[str, Any]:
    """Emulate one rank of the training at full size; the others are taken to do the same. Its GPU has as much memory as
    it takes, so that what doesn't fit can be compared too. Returns the bytes of each kind at the fullest moment."""
    layers, width = shape(1e9 * values["params_B"])
    precision = "mixed" if values["precision"] == MIXED else values["precision"].partition(":")[0]
    args: list[object] = ["--layers", layers, "--width", width, "--precision", precision]
    args += [part for name in ("stage", "batch", "seq", "recompute") for part in (f"--{name}", values[name])]
    run = launch(
        Path(__file__).with_name("gpt_steps.py"), 1, args, quiet=True, timeout=300, engine="local",
        cluster={"count": values["gpus"], "device": {"like": "A100", "memory_bytes": 1e15}}, one_of=values["gpus"],
    )  # fmt: skip
    (found,) = run.emulated.memory().values()
    held: dict[str, float] = {}
    for kind, nbytes in found.items():
        known = _KINDS.get(kind, "weights" if values["stage"] == 2 else "gathered")
        held[known] = held.get(known, 0.0) + nbytes
    return held


def compared(drawing: Drawing, y: float, predicted: Held, emulated: Mapping[str, float]) -> None:
    """Bytes of each kind, predicted and emulated, 130 pixels high."""
    first = predicted.stages[0]
    kinds = [kind for kind in first if first[kind] or emulated.get(kind)]
    sums = [(kind, first[kind], emulated.get(kind, 0.0)) for kind in kinds]
    sums.append(("together", sum(first.values()), sum(emulated.values())))
    rows = [(name, (gb(one), gb(other), f"{other / one - 1:+z.0%}" if one else "")) for name, one, other in sums]
    table(drawing, y, ("predicted", "emulated", "difference"), rows, "together")


def said(values: Mapping[str, Any], predicted: Held, emulated: Mapping[str, float]) -> str:
    """What was compared with what, and why they differ where they do."""
    total, memory = sum(emulated.values()), 1e9 * values["memory_GB"]
    words = f" Emulated: {gb(total)}, {total / predicted.most - 1:+z.1%} against the prediction. Both are models: the"
    words += " real program ran, and its tensors were counted, on a GPU that has as much memory as it takes."
    if total > memory:
        words += f" On {gb(memory)} it would have run out of memory."
    if values["stage"] == 1:
        words += " PyTorch's ZeroRedundancyOptimizer deals out whole tensors, so some ranks get more than their share."
    if values["stage"] == 2:
        words += " PyTorch's nearest to stage 2, `fully_shard(reshard_after_forward=False)`, keeps its shard of the"
        words += " weights next to the whole ones."
    if values["precision"].startswith("autocast"):
        words += " Autocast also keeps 16-bit copies of the weights until backward, and computes norms in fp32."
    return words
