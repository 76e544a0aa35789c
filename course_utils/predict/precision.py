"""What mixed precision can gain: the bracket between work that waits for memory and work that computes."""

from __future__ import annotations

from dataclasses import dataclass

from .validation import fraction, positive


@dataclass(frozen=True)
class Bracket:
    """A speed-up that lies between `low` (all kernels wait for memory) and `high` (all compute)."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean of both ends: a fair guess if you don't know the mix of kernels."""
        return (self.low * self.high) ** 0.5

    def outside(self, value: float) -> float:
        """How far `value` lies outside, relative to the nearer end; 0 inside."""
        return max(0.0, 1 - value / self.low, value / self.high - 1)


def amp_bracket(compute_ratio: float, memory_ratio: float = 2.0, untouched: float = 0.0) -> Bracket:
    """The speed-up of 16-bit training over 32-bit: a kernel that waits for memory gains `memory_ratio` (half the bytes:
    2), one that computes gains `compute_ratio` (the ratio of the two peaks), and the fraction `untouched` of the 32-bit
    time gains nothing, as in Amdahl's law.

    Micikevicius et al., "Mixed precision training", arXiv 1710.03740; roofline of Williams et al., CACM 52(4), 2009.
    """
    positive(compute_ratio=compute_ratio, memory_ratio=memory_ratio)
    fraction(untouched=untouched)
    ends = sorted(1 / (untouched + (1 - untouched) / ratio) for ratio in (compute_ratio, memory_ratio))
    return Bracket(ends[0], ends[1])
