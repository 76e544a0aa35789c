"""What a floating-point format can hold, from the number of its bits."""

from __future__ import annotations

from dataclasses import dataclass

from ._check import positive


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with a sign bit: `exponent` bits for the range, `mantissa` bits for the precision.

    IEEE 754 keeps the largest exponent for infinity and NaN. `finite` formats, as e4m3fn of fp8, keep one pattern for NaN only, so they reach further.
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
        """The smallest number above zero; between it and `smallest_normal` precision is lost bit by bit."""
        return self.smallest_normal * self.eps


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
