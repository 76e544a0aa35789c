"""Simulate a fully sharded step (FSDP, ZeRO-3): gather weights before each layer, scatter gradients after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..results.spans import Span
from .data_parallel import Layer
from .validation import fraction


@dataclass(frozen=True)
class ShardedStep:
    """A predicted step; `spans` are for `figures.rank_timeline`."""

    total_s: float
    compute_s: float  # forward and backward, undisturbed
    communication_s: float  # all collectives, one after the other
    spans: tuple[Span, ...]

    @property
    def cost_s(self) -> float:
        """What communication costs: collectives that compute doesn't hide, and compute that they slow down."""
        return self.total_s - self.compute_s


def fsdp_step(
    layers: Sequence[Layer],
    all_gather_s: Callable[[float], float],
    reduce_scatter_s: Callable[[float], float] | None = None,
    *,
    reshard_after_forward: bool = True,
    interference: float = 0.0,
    rank: int = 0,
) -> ShardedStep:
    """One step of `layers` (in forward order). A layer's `nbytes` is the size of its weights, and of its gradients, as
    they travel.

    While one layer computes, the next layer's weights are gathered. Backward gathers them again (unless they were kept:
    `reshard_after_forward=False`, ZeRO-2) and reduce-scatters each layer's gradients (`reduce_scatter_s`, by default
    the time of a gather). All collectives share one link, first come, first served. They hide behind layers that
    compute for longer, except for the first gather and the last scatter. During a collective, compute loses the
    fraction `interference` of its speed. Zhao et al., "PyTorch FSDP", arXiv 2304.11277, section 3.3.
    """
    if not layers:
        raise ValueError("a step needs at least one layer")
    fraction(interference=interference)
    scatter_s = reduce_scatter_s or all_gather_s
    spans: list[Span] = []
    link = now = total_link = 0.0

    def send(earliest: float, cost: float, label: str) -> float:
        nonlocal link, total_link
        start = max(earliest, link)
        link = start + cost
        total_link += cost
        if cost:
            spans.append((rank, start, link, "communication", label))
        return link

    def compute(start: float, cost: float, label: str) -> float:
        # Every collective so far was requested by `start`, so the link is busy from then until `link` without a gap.
        busy_s = max(0.0, link - start) if cost else 0.0
        slowed = min(busy_s * interference, cost * interference / (1 - interference) if interference < 1 else busy_s)
        end = start + cost + slowed
        spans.append((rank, start, end, "compute", label))
        return end

    last = len(layers) - 1
    gathered = send(0.0, all_gather_s(layers[0].nbytes), "gather 0")
    for i, layer in enumerate(layers):
        start = max(now, gathered)
        if i < last:
            gathered = send(start, all_gather_s(layers[i + 1].nbytes), f"gather {i + 1}")
        elif reshard_after_forward:
            gathered = send(start, all_gather_s(layer.nbytes), f"gather {i}")
        now = compute(start, layer.forward_s, f"F{i}")
    for i in reversed(range(len(layers))):
        start = max(now, gathered) if reshard_after_forward else now
        if i and reshard_after_forward:
            gathered = send(start, all_gather_s(layers[i - 1].nbytes), f"gather {i - 1}")
        now = compute(start, layers[i].backward_s, f"B{i}")
        send(now, scatter_s(layers[i].nbytes), f"scatter {i}")
    return ShardedStep(
        max(now, link), sum(layer.forward_s + layer.backward_s for layer in layers), total_link, tuple(spans)
    )
