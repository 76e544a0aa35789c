"""When compiling pays off: what you spend once, compared with what every later call saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .validation import not_negative, positive

Points = Sequence[tuple[float, float]]  # (calls, seconds since the first of them began)


@dataclass(frozen=True)
class BreakEven:
    """Seconds after n calls: either `before_s` for each, or `once_s` at the start and then `after_s` for each.

    The two straight lines meet after `once_s / (before_s - after_s)` calls, as for any fixed cost that makes each unit
    cheaper.
    """

    once_s: float
    before_s: float
    after_s: float

    def __post_init__(self) -> None:
        not_negative(once_s=self.once_s)
        positive(before_s=self.before_s, after_s=self.after_s)

    @property
    def calls(self) -> float:
        """Calls after which both have taken equally long. Infinite when calls didn't get cheaper."""
        saved = self.before_s - self.after_s
        return self.once_s / saved if saved > 0 else math.inf

    def before(self, calls: float) -> float:
        """Seconds for `calls` calls without compiling."""
        return calls * self.before_s

    def after(self, calls: float) -> float:
        """Seconds for `calls` calls, including what is spent once."""
        return self.once_s + calls * self.after_s


def crossing(before: Points, after: Points) -> float:
    """The number of calls at which the measured curve `after`, which starts more expensive, comes down to `before`.
    Infinite when the curves end before that.

    Points are cumulative (calls, seconds), rising in both. The curves are straight between points and start at zero.
    Raises ValueError for an empty curve, or one whose numbers of calls don't rise.
    """
    for name, curve in (("before", before), ("after", after)):
        if not curve or any(b[0] <= a[0] for a, b in zip([(0.0, 0.0), *curve], curve, strict=False)):
            raise ValueError(f"the curve {name!r} needs points with rising numbers of calls, all above zero")
    last = min(before[-1][0], after[-1][0])
    grid = sorted({calls for curve in (before, after) for calls, _ in curve if after[0][0] <= calls <= last})
    ahead = 0.0
    for i, calls in enumerate(grid):
        behind = _at(after, calls) - _at(before, calls)
        if behind <= 0:
            if i == 0:
                return calls
            return grid[i - 1] + (calls - grid[i - 1]) * ahead / (ahead - behind)
        ahead = behind
    return math.inf


def _at(curve: Points, calls: float) -> float:
    """The curve's seconds at a number of calls within it."""
    x0, y0 = 0.0, 0.0
    for x1, y1 in curve:
        if calls <= x1:
            return y0 + (y1 - y0) * (calls - x0) / (x1 - x0)
        x0, y0 = x1, y1
    raise ValueError(f"the curve ends at {x0:g} calls, before {calls:g}")
