"""Repeated measurements of one quantity, and careful comparisons between them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..show.units import readable, span, unit_of_name
from .provenance import Provenance


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison: `shown`, `not shown` or `contradicted`, and its numbers in words."""

    status: str
    detail: str

    def unless(self, disturbed: str) -> Verdict:
        """This verdict, or `not shown` if something speaks against the measurement: `run.disturbed` says what."""
        return Verdict("not shown", disturbed[0].lower() + disturbed[1:]) if disturbed else self

    def __bool__(self) -> bool:
        raise TypeError("a Verdict has three values; give it to claim(), or look at .status")


class Samples:
    """Repeated measurements of one quantity, with the median and the quartiles that figures draw.

    Comparisons look at the same bars the reader sees. A is *shown* to be smaller than B when the upper quartile of A
    lies below the lower quartile of B. It's *contradicted* when the bars lie apart the other way round and the medians
    differ by more than 10%. Anything else is *not shown*, so a busy machine gives no red cell. A factor makes *shown*
    harder; *contradicted* still means the opposite direction.
    """

    def __init__(self, values: Iterable[float], name: str = "", provenance: Provenance | None = None):
        self.values = tuple(float(v) for v in values)
        self.name = name
        self.provenance = provenance or Provenance()
        if not self.values:
            raise ValueError(f"no samples of {name or 'this quantity'}: did a rank report it?")

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def q1(self) -> float:
        return self._quantile(0.25)

    @property
    def q3(self) -> float:
        return self._quantile(0.75)

    def _quantile(self, q: float) -> float:
        ordered = sorted(self.values)
        at = q * (len(ordered) - 1)
        low = math.floor(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    def __len__(self) -> int:
        return len(self.values)

    def map(self, function: Callable[[float], float], name: str = "") -> Samples:
        """The same samples in another unit, for example `step_s.map(lambda s: 64 / s, "images_per_s")`."""
        return Samples((function(v) for v in self.values), name or self.name, self.provenance)

    def faster_than(self, other: Samples, factor: float = 1.0) -> Verdict:
        """Compare times. Shown when `other` takes at least `factor` times as long as this; contradicted when it takes
        less time than this."""
        return _compare(self, other, _against(self, other), factor)

    def more_than(self, other: Samples, factor: float = 1.0) -> Verdict:
        """Compare rates or sizes. Shown when this is at least `factor` times `other`; contradicted when it's less than
        `other`."""
        return _compare(other, self, _against(self, other), factor)

    def not_slower_than(self, other: Samples) -> Verdict:
        """Compare times. Shown when the median of this lies below the upper quartile of `other`."""
        detail = _against(self, other)
        if self.median <= other.q3:
            return Verdict("shown", detail)
        return _compare(self, other, detail)

    def near(self, expected: float, within: float) -> Verdict:
        """Shown when the median is within the fraction `within` of `expected`; contradicted when the bar is off by
        three times that."""
        error, allowed = abs(self.median - expected), within * abs(expected)  # only 0 itself is near 0
        nearest = min(max(expected, self.q1), self.q3)
        off = abs(nearest - expected)
        status = "shown" if error <= allowed else "contradicted" if off > 3 * allowed else "not shown"
        apart = f", {error / abs(expected):.0%} apart" if expected else ""
        detail = f"{_named_span(self)} against {readable(unit_of_name(self.name), expected)}{apart}"
        return Verdict(status, detail)

    def __repr__(self) -> str:
        return f"<{self.name or 'samples'}: {_span(self)}, {len(self)} values, {self.provenance.kind}>"


def _span(samples: Samples) -> str:
    return span(unit_of_name(samples.name), samples.median, samples.q1, samples.q3)


def _named_span(samples: Samples) -> str:
    """What was emulated says so."""
    return f"{'emulated ' * (samples.provenance.kind == 'emulated')}{_span(samples)}"


def _against(one: Samples, other: Samples) -> str:
    if one.provenance.kind == other.provenance.kind == "emulated":
        return f"{_span(one)} against {_span(other)}, both emulated"
    return f"{_named_span(one)} against {_named_span(other)}"


def _compare(small: Samples, large: Samples, detail: str, factor: float = 1.0) -> Verdict:
    if small.q3 * factor < large.q1:
        return Verdict("shown", detail)
    if small.q1 > large.q3 and small.median > 1.1 * large.median:
        return Verdict("contradicted", detail)
    return Verdict("not shown", detail)
