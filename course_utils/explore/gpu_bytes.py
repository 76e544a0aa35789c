"""Bytes on each GPU that trains a transformer, and bytes that it sends: what `explore.memory()` draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import predict
from ..units import number

# Bytes a parameter: weights, gradients, what the optimizer holds (its fp32 copy of the weights included).
PRECISIONS: Mapping[str, tuple[float, float, float]] = {
    "mixed: 2 + 2 + 12 bytes": (2, 2, 12),  # ZeRO, arXiv 1910.02054, section 3.1
    "mixed, fp32 gradients: 2 + 4 + 12": (2, 4, 12),  # as Megatron-LM accumulates them
    "autocast: 4 + 4 + 8": (4, 4, 8),  # weights stay in fp32, activations are 16 bit
    "fp32: 4 + 4 + 8": (4, 4, 8),
}
FP32 = "fp32: 4 + 4 + 8"
HEADROOM = 0.1  # of the memory: CUDA's own, NCCL's buffers, fragments between tensors. A rule of thumb, no measurement


@dataclass(frozen=True)
class Held:
    """Bytes on a GPU of each pipeline stage, by kind, and bytes that a GPU sends in a step, by purpose."""

    stages: list[dict[str, float]]
    sent: dict[str, float]
    layers: int
    hidden: int

    @property
    def most(self) -> float:
        return max(sum(parts.values()) for parts in self.stages)


def shape(params: float) -> tuple[int, int]:
    """Layers and width of a GPT: params = 12 layers width^2, and a width of 128 times the layers (GPT-3: 96, 12288)."""
    hidden = 128 * max(1, round((128 * params / 12) ** (1 / 3) / 128))
    return max(1, round(params / (12 * hidden**2))), hidden


def held(values: Mapping[str, Any]) -> Held:
    """What each GPU holds and sends. Tensor and pipeline parallelism divide weights, gradients and optimizer; ZeRO
    shards what is left over the replicas; activations are those of Korthikanti et al., arXiv 2205.05198, with sequence
    parallelism wherever there is tensor parallelism. Raises ValueError when GPUs or layers don't go round."""
    tensor, pipeline, gpus = values["tensor"], values["pipeline"], values["gpus"]
    params = 1e9 * values["params_B"]
    layers, hidden = shape(params)
    replicas, left = divmod(gpus, tensor * pipeline)
    if left or not replicas:
        raise ValueError(
            f"{gpus} GPUs don't divide into groups of {tensor} x {pipeline}: take a multiple of {tensor * pipeline}"
        )
    if pipeline > layers:
        raise ValueError(f"a model of {layers} layers has no {pipeline} pipeline stages")
    weight, gradient, optimizer = PRECISIONS[values["precision"]]
    states = predict.zero_memory(
        params / (tensor * pipeline), replicas, values["stage"],
        weight_bytes=weight, gradient_bytes=gradient, optimizer_bytes=optimizer,
    )  # fmt: skip
    options: dict[str, Any] = {
        "batch": values["batch"], "seq": values["seq"], "hidden": hidden, "heads": hidden // 128, "tensor": tensor,
        "sequence_parallel": tensor > 1,
    }  # fmt: skip
    wide = 2 if values["precision"] == FP32 else 1  # the formula is for 16 bits
    layer = wide * predict.transformer_activation_bytes(**options, recompute=values["recompute"])
    again = wide * predict.transformer_activation_bytes(**options) if values["recompute"] == "full" else 0.0
    one = params / layers / tensor  # parameters of a layer
    loan = 2 * weight * one if values["stage"] == 3 and replicas > 1 else 0.0  # one computes, the next is gathered
    stages = [
        {
            "weights": states.weights, "gradients": states.gradients, "optimizer": states.optimizer,
            # 1F1B: stage s has pipeline - s micro-batches under way; the first one holds what all layers would
            "activations": layer * layers * (pipeline - stage) / pipeline + again, "gathered": loan,
        }
        for stage in range(pipeline)
    ]  # fmt: skip
    residual = 2.0 * wide * values["batch"] * values["seq"] * hidden
    reductions = 4 + 2 * (values["recompute"] == "full")  # of a layer: two forward, two backward, two when recomputed
    # As `predict.zero_traffic`: gradients scattered, then gradients (0) or weights (1, 2) gathered, or those twice (3).
    travels = (
        "gradients",
        "gradients and weights",
        "gradients and weights",
        "gradients, and weights twice (1.5 times DDP's)",
    )
    rest = (gradient, weight, weight, 2 * weight)[values["stage"]]
    sent = {
        travels[values["stage"]]: params / (tensor * pipeline) * (replicas - 1) / replicas * (gradient + rest),
        "activations to the GPUs that split a layer":
            layers / pipeline * reductions * residual * predict.ring_factor("all_reduce", tensor),
        "activations to the next stage": 2 * residual / tensor if pipeline > 1 else 0.0,
    }  # fmt: skip
    return Held(stages, sent, layers, hidden)


def verdict(nbytes: float, memory: float) -> str:
    """Whether so many bytes fit, as the end of a sentence."""
    if nbytes > memory:
        return f"doesn't fit: {gb(nbytes - memory)} more than it has"
    if nbytes > (1 - HEADROOM) * memory:
        wanted = f"and CUDA, NCCL and fragments want about {gb(HEADROOM * memory)}"
        return f"is too tight: it leaves {gb(memory - nbytes)}, {wanted}"
    return f"fits, and leaves {gb(memory - nbytes)}"


def gb(nbytes: float) -> str:
    return f"{number(nbytes / 1e9)} GB" if nbytes < 1e12 else f"{number(nbytes / 1e12)} TB"
