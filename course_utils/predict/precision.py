"""What mixed precision can gain: the bracket between work that waits for memory and work that computes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .validation import fraction, positive

# Which numbers a floating-point format can hold, worked out from its bits.


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with a sign bit: `exponent` bits for the range, `mantissa` bits for the precision.

    IEEE 754 reserves the largest exponent for infinity and NaN. `finite` formats, such as fp8's e4m3fn, reserve only
    one pattern for NaN, so they reach further.
    """

    name: str
    exponent: int
    mantissa: int
    finite: bool = False

    def __post_init__(self) -> None:
        positive(exponent=self.exponent - 1, mantissa=self.mantissa)

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def _bias(self) -> int:
        return int(2 ** (self.exponent - 1) - 1)

    @property
    def eps(self) -> float:
        """The step from 1 to the next larger number."""
        return 2.0**-self.mantissa

    @property
    def max(self) -> float:
        """The largest finite number."""
        if self.finite:
            return (2 - 2 * self.eps) * 2.0 ** (self._bias + 1)
        return (2 - self.eps) * 2.0**self._bias

    @property
    def smallest_normal(self) -> float:
        """The smallest number with all bits of precision."""
        return 2.0 ** (1 - self._bias)

    @property
    def smallest(self) -> float:
        """The smallest number above zero. Between it and `smallest_normal`, numbers lose precision bit by bit."""
        return self.smallest_normal * self.eps

    @property
    def infinity(self) -> int:
        """The first pattern above the largest number: infinity, or NaN in a `finite` format."""
        return 2 ** (self.bits - 1) - 1 if self.finite else (2**self.exponent - 1) << self.mantissa

    def pattern(self, number: float) -> int:
        """The bits that store `number`, as a whole number: rounded to the nearest, of two to the one that ends in 0.

        What is too large becomes infinite, or in a `finite` format the largest number, as in torch 2.15
        (torch/headeronly/util/Float8_e4m3fn.h). Older versions make it NaN.
        """
        sign = (math.copysign(1.0, number) < 0) << (self.bits - 1)
        if math.isnan(number):
            return sign | self.infinity | (0 if self.finite else 1 << (self.mantissa - 1))
        largest = self.infinity - self.finite
        if math.isinf(number):
            return sign | largest
        least = 1 - self._bias  # exponent of the smallest normal number, and of all below it
        exponent = max(math.frexp(abs(number))[1] - 1, least) if number else least
        steps = round(math.ldexp(abs(number), self.mantissa - exponent))
        return int(sign | min(((exponent - least) << self.mantissa) + steps, largest))

    def value(self, pattern: int) -> float:
        """The number that these bits store. Raises ValueError for more bits than there are."""
        if not 0 <= pattern < 2**self.bits:
            raise ValueError(f"{self.name} has {self.bits} bits; got {pattern:#x}")
        sign = -1.0 if pattern >> (self.bits - 1) else 1.0
        rest = pattern & (2 ** (self.bits - 1) - 1)
        if rest >= self.infinity:
            return sign * math.inf if rest == self.infinity and not self.finite else math.nan
        exponent, fraction = rest >> self.mantissa, rest & (2**self.mantissa - 1)
        steps = fraction + (2**self.mantissa if exponent else 0)
        return sign * math.ldexp(steps, max(exponent, 1) - self._bias - self.mantissa)


# IEEE 754-2019 (fp32, fp16); NVIDIA A100 white paper (TF32, kept in 32 bits); Kalamkar et al., arXiv 1905.12322 (bf16);
# Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433.
FORMATS = {
    f.name: f
    for f in (
        Format("fp32", 8, 23),
        Format("TF32", 8, 10),
        Format("bf16", 8, 7),
        Format("fp16", 5, 10),
        Format("fp8 e5m2", 5, 2),
        Format("fp8 e4m3", 4, 3, finite=True),
    )
}


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
