"""One process that drives n devices, as nn.DataParallel does: what passes through its first device in a step, and what lies there.

Device 0 holds the model. Each step it sends every other device the weights and a share of the inputs, gathers the outputs, and
gets the gradients back. Follows torch/nn/parallel (replicate.py, scatter_gather.py, _functions.py). Bytes throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ._check import count, not_negative, one_of
from .collectives import ring_factor


@dataclass(frozen=True)
class Traffic:
    """Bytes that one device sends to others and receives from them in a training step, each by what travels."""

    sent: Mapping[str, float]
    received: Mapping[str, float]

    @property
    def sent_bytes(self) -> float:
        return sum(self.sent.values())

    @property
    def received_bytes(self) -> float:
        return sum(self.received.values())

    @property
    def total_bytes(self) -> float:
        """Both directions together."""
        return self.sent_bytes + self.received_bytes


def data_parallel_traffic(
    n: int,
    parameter_bytes: float,
    input_bytes: float = 0.0,
    output_bytes: float = 0.0,
    *,
    buffer_bytes: float = 0.0,
    gradient_bytes: float | None = None,
    output_gradients: bool = True,
    by: str = "copies",
) -> Traffic:
    """What passes through the FIRST of n devices in a step of DataParallel: `input_bytes` and `output_bytes` are those of the whole batch, there.

    `by="copies"`: device 0 sends the weights to each other device, and receives each other's gradients: n-1 times both. `by="ring"`: a library
    such as NCCL passes them on from device to device, so that they leave and reach device 0 once. A parameter counts once however
    many names it has; `gradient_bytes` are fewer than `parameter_bytes` where some are frozen. The gradients of the outputs go back the way the outputs came,
    unless the loss was computed in the replicas and the outputs are only handed back (`output_gradients=False`).
    """
    count(n=n)
    one_of(("copies", "ring"), by=by)
    gradient_bytes = parameter_bytes if gradient_bytes is None else gradient_bytes
    not_negative(parameter_bytes=parameter_bytes, input_bytes=input_bytes, output_bytes=output_bytes, buffer_bytes=buffer_bytes, gradient_bytes=gradient_bytes)
    times = 0 if n == 1 else n - 1 if by == "copies" else 1
    away = (n - 1) / n  # of a batch that is cut into n equal parts, what is not for device 0
    sent = {
        "parameters": times * parameter_bytes,
        "buffers": times * buffer_bytes,
        "inputs": away * input_bytes,
        "gradients of outputs": away * output_bytes * output_gradients,
    }
    return Traffic(sent, {"gradients of parameters": times * gradient_bytes, "outputs": away * output_bytes})


def ddp_traffic(n: int, gradient_bytes: float) -> Traffic:
    """What passes through ANY of n devices in a step of DDP whose all-reduce is a ring: 2 (n-1)/n of the gradients out, and as much in."""
    not_negative(gradient_bytes=gradient_bytes)
    each_way = ring_factor("all_reduce", n) * gradient_bytes
    return Traffic({"gradients": each_way}, {"gradients": each_way})


def data_parallel_memory(
    n: int, parameter_bytes: float, activation_bytes: float, output_bytes: float, *, optimizer_factor: float = 2.0, loss_factor: float = 2.0
) -> tuple[dict[str, float], dict[str, float]]:
    """What lies on the first of n devices, and on each of the others, at the end of the backward pass of DataParallel: parts as `figures.memory` draws them.

    Every device has a copy of the weights, their gradients, and the activations of its share of the batch (`activation_bytes` are those of all of
    it). Only the first has the optimizer's state, `optimizer_factor` times the weights (2: Adam), and the gathered outputs with what the loss keeps of
    them, `loss_factor` times `output_bytes` (2: the outputs, and the log-probabilities of a cross-entropy).
    """
    count(n=n)
    not_negative(parameter_bytes=parameter_bytes, activation_bytes=activation_bytes, output_bytes=output_bytes)
    not_negative(optimizer_factor=optimizer_factor, loss_factor=loss_factor)
    other = {"parameters": parameter_bytes, "gradients": parameter_bytes, "activations": activation_bytes / n}
    first = {**other, "optimizer": optimizer_factor * parameter_bytes, "gathered outputs and loss": loss_factor * output_bytes}
    return first, other
