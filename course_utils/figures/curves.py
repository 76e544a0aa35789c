"""Curves over a common x: losses over steps, times over sizes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..results.samples import Samples
from ..show.units import number
from . import canvas
from .canvas import KINDS, Figure, Value, errorbars, middle, named_kind, sentence


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[Value]]],
    xlabel: str,
    ylabel: str,
    log: Literal["", "x", "y", "xy"] = "",
    title: str | None = None,
) -> Figure:
    """Draw curves over a common x: losses over steps, times over sizes.

    A label that starts with a kind (`predicted: alpha-beta`) gets the look of that kind. Otherwise samples bring their
    own kind, and plain numbers are `measured`. A y may be `Samples`; their quartiles are drawn too. Put units in the
    labels of the axes; with a logarithmic x in bytes the ticks read KiB and MiB. Raises ValueError for an empty curve,
    or for x and y of different lengths.
    """
    if not series:
        raise ValueError("lines() needs at least one curve")
    curves = [_curve(label, x, y) for label, (x, y) in series.items()]
    agreement = _agreement(curves)
    widen = 2.6 if agreement is not None and agreement < 0.02 else 0.6
    mpl, (ax,) = canvas.new_axes()
    drawn: Counter[str] = Counter()
    for c in curves:
        style = KINDS[c.kind].style(drawn[c.kind], widen)
        if style.get("marker") and len(c.x) > 12:
            style["markevery"] = _some_markers(len(c.x), drawn[c.kind])
        if c.kind == "published":
            style["linestyle"] = "-"
        if any(isinstance(v, Samples) for v in c.y):
            errorbars(ax, c.x, c.y, c.kind, label=c.legend, **style)
        else:
            ax.plot(c.x, c.medians, label=c.legend, **style)
        drawn[c.kind] += 1
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.grid(color="#E6E6E6", linewidth=0.8)
    if "x" in log:
        canvas.log_axis(ax, "x", "bytes" if "byte" in xlabel else "")
        counts = sorted({float(x) for xs, _ in series.values() for x in xs})
        if (
            "byte" not in xlabel
            and len(counts) <= 12
            and all(more / less >= 1.5 for less, more in itertools.pairwise(counts))
        ):
            ax.set_xticks(
                counts, [f"{c:,.0f}" if c.is_integer() else number(c) for c in counts]
            )  # few enough to write each number in full
            ax.set_xticks([], minor=True)
    else:
        ax.set_xlim(left=min(0.0, *(min(c.x) for c in curves)))
    if "y" in log:
        canvas.log_axis(ax, "y", "")
    else:
        low, high = min(0.0, *(min(c.medians) for c in curves)), max(max(c.medians) for c in curves)
        ax.set_ylim(low, max(ax.get_ylim()[1], high + 0.04 * (high - low)))  # no marker is cut in half
    canvas.legend_above(ax, columns=3)
    finding = _curves_finding(curves, agreement, ylabel)
    canvas.title(mpl, title or finding)
    ends = "; ".join(f"{c.name}: from {number(c.medians[0])} to {number(c.medians[-1])}" for c in curves)
    return Figure(mpl, f"{sentence(finding)} {sentence(f'{ylabel} over {xlabel}, {ends}')}")


@dataclass(frozen=True)
class _Curve:
    name: str
    kind: str
    legend: str
    x: list[float]
    y: list[Value]
    medians: list[float]


def _curve(label: str, x: Sequence[float], y: Sequence[Value]) -> _Curve:
    if not len(x) or len(x) != len(y):
        raise ValueError(
            f"the curve {label!r} has {len(x)} x and {len(y)} y; it needs the same number of both, and at least one"
        )
    return _Curve(*named_kind(label, y[0]), [float(v) for v in x], list(y), [middle(v) for v in y])


def _some_markers(points: int, series: int) -> tuple[int, int]:
    """About ten markers per curve, shifted from series to series so that they don't hide each other."""
    step = max(1, points // 10)
    return ((series * step // 2) % step, step)


def _agreement(curves: Sequence[_Curve]) -> float | None:
    """The largest relative gap between the curves at any point. None for a single curve, or for different x."""
    if len(curves) < 2 or any(c.x != curves[0].x for c in curves):
        return None
    columns = list(zip(*(c.medians for c in curves), strict=True))
    return max((max(at) - min(at)) / (max(abs(v) for v in at) or 1.0) for at in columns)


def _curves_finding(curves: Sequence[_Curve], agreement: float | None, ylabel: str) -> str:
    """Say whether the curves agree, or how far a prediction is off, or else where each curve ends."""
    if agreement is not None:
        both = "Both curves" if len(curves) == 2 else f"All {len(curves)} curves"
        if agreement == 0:
            return f"{both} are equal at every point"
        if agreement < 1e-3:
            return f"{both} agree to one part in {10 ** math.floor(-math.log10(agreement)):,}"
        if agreement <= 0.05:
            return f"{both} stay within {agreement:.1%} of each other"
        if len(curves) == 2 and {c.kind for c in curves} == {"measured", "predicted"}:
            seen, forecast = sorted(curves, key=lambda c: c.kind)
            off = max(abs(p - m) / abs(m) if m else 0.0 for m, p in zip(seen.medians, forecast.medians, strict=True))
            return f"{forecast.name} is off by up to {off:.0%}"
    what = ylabel.partition(" (")[0]
    return f"{what} ends at " + ", ".join(f"{number(c.medians[-1])} ({c.name})" for c in curves)
