"""One process that drives n devices, as nn.DataParallel does: what its first device sends, receives and holds in a
step.

Device 0 holds the model. Each step it sends every other device the weights and a share of the inputs, gathers the
outputs, and gets the gradients back. Follows torch/nn/parallel (replicate.py, scatter_gather.py, _functions.py). Bytes
throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .collectives import ring_factor
from .validation import count, not_negative, one_of


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
    """What the FIRST of n devices sends and receives in a step of DataParallel. `input_bytes` and `output_bytes` are
    for the whole batch.

    `by="copies"`: device 0 sends the weights to n-1 other devices, and receives gradients from each.
    `by="ring"`: a library such as NCCL passes them on from device to device, so they leave and reach device 0 only
    once. A parameter counts once, however many names it has. If some are frozen, give the smaller `gradient_bytes`.
    The gradients of the outputs go back to the replicas, unless those compute the loss themselves and only hand back
    their outputs (`output_gradients=False`).
    """
    count(n=n)
    one_of(("copies", "ring"), by=by)
    gradient_bytes = parameter_bytes if gradient_bytes is None else gradient_bytes
    not_negative(
        parameter_bytes=parameter_bytes,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        buffer_bytes=buffer_bytes,
        gradient_bytes=gradient_bytes,
    )
    times = 0 if n == 1 else n - 1 if by == "copies" else 1
    away = (n - 1) / n  # the share of the batch that other devices compute
    sent = {
        "parameters": times * parameter_bytes,
        "buffers": times * buffer_bytes,
        "inputs": away * input_bytes,
        "gradients of outputs": away * output_bytes * output_gradients,
    }
    return Traffic(sent, {"gradients of parameters": times * gradient_bytes, "outputs": away * output_bytes})


def ddp_traffic(n: int, gradient_bytes: float) -> Traffic:
    """What EACH of n devices sends and receives in a step of DDP with a ring all-reduce: 2 (n-1)/n of the gradients in
    either direction."""
    not_negative(gradient_bytes=gradient_bytes)
    each_way = ring_factor("all_reduce", n) * gradient_bytes
    return Traffic({"gradients": each_way}, {"gradients": each_way})


def data_parallel_memory(
    n: int,
    parameter_bytes: float,
    activation_bytes: float,
    output_bytes: float,
    *,
    at: str,
    optimizer_factor: float = 2.0,
    loss_factor: float = 2.0,
) -> tuple[dict[str, float], dict[str, float]]:
    """What the first of n devices holds `at` the end of DataParallel's "forward" or "backward", and what each other
    device holds: parts for `figures.memory`.

    Every device has a copy of the weights. At the end of forward it also has the activations of its share of the batch
    (`activation_bytes` is for the whole batch). They go while backward fills the gradients, which are all there at its
    end, since they're sent together. Only the first has the optimizer's state, `optimizer_factor` times the weights (2:
    Adam), and at the end of forward the gathered outputs with what the loss keeps of them, `loss_factor` times
    `output_bytes` (2: the outputs, and the log-probabilities of a cross-entropy).
    """
    count(n=n)
    one_of(("forward", "backward"), at=at)
    not_negative(parameter_bytes=parameter_bytes, activation_bytes=activation_bytes, output_bytes=output_bytes)
    not_negative(optimizer_factor=optimizer_factor, loss_factor=loss_factor)
    other = {"parameters": parameter_bytes}
    first = {"parameters": parameter_bytes, "optimizer": optimizer_factor * parameter_bytes}
    if at == "backward":
        return first | {"gradients": parameter_bytes}, other | {"gradients": parameter_bytes}
    activations = {"activations": activation_bytes / n}
    return first | activations | {"gathered outputs and loss": loss_factor * output_bytes}, other | activations
