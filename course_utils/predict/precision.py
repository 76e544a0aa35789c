"""What mixed precision can gain: the roofline of a device, and the bracket between work that waits for memory and work that computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ._check import fraction, not_negative, positive


def roofline_s(flops: float, nbytes: float, *, peak_flops: float, memory_Bps: float) -> float:
    """Seconds of a kernel that computes `flops` and moves `nbytes`: the longer of the two. Williams et al., "Roofline", CACM 52(4), 2009."""
    not_negative(flops=flops, nbytes=nbytes)
    positive(peak_flops=peak_flops, memory_Bps=memory_Bps)
    return max(flops / peak_flops, nbytes / memory_Bps)


@dataclass(frozen=True)
class Bracket:
    """A speed-up that lies between `low` (all kernels wait for memory) and `high` (all compute)."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean of both ends: the guess when nothing is known of the mix of kernels."""
        return (self.low * self.high) ** 0.5

    def outside(self, value: float) -> float:
        """How far `value` lies outside, relative to the nearer end; 0 inside."""
        return max(0.0, 1 - value / self.low, value / self.high - 1)


def amp_bracket(compute_ratio: float, memory_ratio: float = 2.0, untouched: float = 0.0) -> Bracket:
    """The speed-up of 16-bit training over 32-bit: a kernel that waits for memory gains `memory_ratio` (half the bytes: 2), one that computes
    gains `compute_ratio` (the ratio of the two peaks), and the fraction `untouched` of the 32-bit time gains nothing, as in Amdahl's law.

    Micikevicius et al., "Mixed precision training", arXiv 1710.03740; roofline of Williams et al. 2009.
    """
    positive(compute_ratio=compute_ratio, memory_ratio=memory_ratio)
    fraction(untouched=untouched)
    ends = sorted(1 / (untouched + (1 - untouched) / ratio) for ratio in (compute_ratio, memory_ratio))
    return Bracket(ends[0], ends[1])


@dataclass(frozen=True)
class Kernel:
    """A kernel of a step: operations, bytes in 32 bit, and whether autocast runs it in 16 bit."""

    flops: float
    nbytes: float
    lower: bool = True


def amp_speedup(kernels: Sequence[Kernel], *, peak_flops_32: float, peak_flops_16: float, memory_Bps: float) -> float:
    """The speed-up of a step of `kernels`: each takes its roofline time, with half the bytes and the 16-bit peak where it runs in 16 bit."""
    if not kernels:
        raise ValueError("a step needs at least one kernel")
    before = sum(roofline_s(k.flops, k.nbytes, peak_flops=peak_flops_32, memory_Bps=memory_Bps) for k in kernels)
    after = sum(
        roofline_s(k.flops, k.nbytes / 2 if k.lower else k.nbytes, peak_flops=peak_flops_16 if k.lower else peak_flops_32, memory_Bps=memory_Bps)
        for k in kernels
    )
    return before / after
