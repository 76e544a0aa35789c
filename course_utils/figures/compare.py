"""Figures that compare numbers: bars side by side, scaling over ranks, curves."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..published import Point
from ..run import Samples
from ..units import number, readable_unit, unit_of_name
from . import look
from .look import KINDS, Figure, errorbars, kind_of, listing, made_guesses, middle, provenance_words, sentence, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Value = Samples | float
QUARTILES = "median, 25% to 75%"


def bars(
    values: Mapping[Any, Value],
    guess: Mapping[Any, Any] | None = None,
    predicted: Mapping[Any, float] | None = None,
    unit: str | None = None,
    ylabel: str | None = None,
    title: str | None = None,
) -> Figure:
    """One bar for each label, with what was predicted and guessed for it.

    All numbers are in `unit`; without it, in the unit that the samples' name ends with (`step_s`: seconds). Seconds, bytes
    and B/s are drawn in the size that reads best. A guess of `...` draws nothing, and the text says that none was made. Each value is drawn
    in the look of its provenance. Raises KeyError for a guess or a prediction about a label that is not there.
    """
    if not values:
        raise ValueError("bars() needs at least one labelled value")
    labels = list(values)
    guesses, open_guess = made_guesses(guess, labels)
    predictions = {key: float(value) for key, value in (predicted or {}).items()}
    if unknown := set(predictions) - set(labels):
        raise KeyError(f"predicted has {listing([repr(k) for k in unknown])}, but the bars are {listing([repr(k) for k in labels])}")
    name = next((v.name for v in values.values() if isinstance(v, Samples)), "")
    base_unit = unit_of_name(name) if unit is None else unit
    largest = max([abs(spread(v)[1]) for v in values.values()] + [abs(v) for v in [*predictions.values(), *guesses.values()]])
    factor, shown_unit = readable_unit(base_unit, largest)

    mpl, (ax,) = look.new_axes()
    named: set[str] = set()
    for i, value in enumerate(values.values()):
        kind = kind_of(value)
        ax.bar(i, middle(value) * factor, width=0.6, color=KINDS[kind].color, alpha=0.22, edgecolor="none")
        told = _legend_words(value)
        errorbars(ax, [i], [value], kind, factor, label=None if told in named else told, linestyle="none")
        named.add(told)
        written = number(middle(value) * factor) + (f" {shown_unit}" if len(labels) <= 3 else "")
        ax.annotate(written.strip(), (i, 0), (0, 5), textcoords="offset points", ha="center", fontsize=10, color=look.INK)
    for i, label in enumerate(labels):
        if label in predictions:
            _once(ax, named, "predicted", [i - 0.38, i + 0.38], [predictions[label] * factor] * 2, **KINDS["predicted"].style())
        if label in guesses:
            cross = {**KINDS["guess"].style(), "markersize": 10, "markeredgewidth": 2.4, "zorder": 5}
            _once(ax, named, "your guess", [i + 0.2], [guesses[label] * factor], **cross)
    wrap = max(8, 60 // len(labels))
    ax.set_xticks(range(len(labels)), ["\n".join(textwrap.wrap(str(label), wrap)) or str(label) for label in labels], fontsize=10)
    ax.set_xlim(-0.6, max(len(labels), 2) - 0.4)
    ax.set_ylim(0, largest * factor * 1.12 or 1)
    ax.set_ylabel(ylabel or _axis_words(name, base_unit, shown_unit))
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    look.legend_above(ax)
    look.title(mpl, title or _bars_finding(values, base_unit))

    parts = []
    for label, value in values.items():
        text = f"{label}: {provenance_words(value)} {number(middle(value) * factor)} {shown_unit}".rstrip()
        if label in predictions:
            text += f", predicted {number(predictions[label] * factor)}"
        if label in guesses:
            text += f", guessed {number(guesses[label] * factor)}"
        parts.append(sentence(text))
    return Figure(mpl, " ".join(parts + ["No guess was made."] * open_guess))


def speedup(
    measured: Mapping[int, Value],
    predicted: Mapping[int, float] | None = None,
    guess: Mapping[int, Any] | None = None,
    recorded: Sequence[Mapping[int, Value]] = (),
    published: Sequence[Point] = (),
    ideal: bool = True,
    quantity: Literal["speed-up", "efficiency", "throughput"] = "speed-up",
    what: str = "images per second",
    title: str | None = None,
) -> Figure:
    """How the rate grows with the number of ranks, from 1 to at least 8.

    Every series maps a number of ranks to the rate of all of them together. A series that has a value for 1 rank is divided by
    it, so speed-ups can be given as well. `quantity` says what is drawn: that speed-up; the efficiency, which is the speed-up
    over the number of ranks; or the rate itself, in `what`. Guesses are in what is drawn. `recorded` series carry their machine in the
    provenance of their samples; `published` are the points of `published.ddp_scaling()`. Raises ValueError for an empty series, or published
    speed-ups beside throughput.
    """
    if quantity not in ("speed-up", "efficiency", "throughput"):
        raise ValueError(f"quantity is speed-up, efficiency or throughput; got {quantity!r}")
    if not measured or any(n < 1 for n in measured):
        raise ValueError("measured maps numbers of ranks, from 1 on, to samples; it is empty or has a number below 1")
    if published and quantity == "throughput":
        raise ValueError("published points are speed-ups of other machines; draw them with quantity='speed-up' or 'efficiency'")
    here = _drawn(measured, quantity)
    forecast = {n: middle(v) for n, v in _drawn(predicted or {}, quantity).items()}
    others = [(provenance_words(next(iter(series.values()))), _drawn(series, quantity)) for series in recorded]
    points = [p._replace(speedup=p.speedup / p.n) if quantity == "efficiency" else p for p in published]
    guesses, open_guess = made_guesses(guess, sorted({*range(1, 9), *here, *forecast}))

    most = max([8, *here, *forecast, *guesses, *(p.n for p in points), *(n for _, series in others for n in series)])
    tops = [spread(v)[1] for series in [here, *(s for _, s in others)] for v in series.values()]
    tops += [*forecast.values(), *guesses.values(), *(p.speedup for p in points)]
    mpl, (ax,) = look.new_axes()
    if ideal and (quantity != "throughput" or 1 in here):
        one = middle(here[1]) if quantity == "throughput" else 1.0
        ends = [1.0, 1.0] if quantity == "efficiency" else [0.0, most * one]
        ax.plot([0, most], ends, label="ideal", **KINDS["ideal"].style())
        tops.append(ends[1])
    if forecast:
        order = sorted(forecast)
        ax.plot(order, [forecast[n] for n in order], label="predicted", **KINDS["predicted"].style())
    for i, (told, series) in enumerate(others):
        order = sorted(series)
        errorbars(ax, order, [series[n] for n in order], "recorded", label=told, **KINDS["recorded"].style(i))
    beside: list[float] = []
    if points:
        sources = ", ".join(dict.fromkeys(p.source.split("/")[0].replace("tensorflow", "TensorFlow") for p in points))
        told = f"published: {points[0].label}" if len(points) == 1 else f"published: {len(points)} results"
        beside = _side_by_side([(p.n, p.speedup) for p in points], width=0.022 * most, height=0.03 * max(tops))
        ax.plot(beside, [p.speedup for p in points], label=f"{told} ({sources})", **{**KINDS["published"].style(), "alpha": 0.85})
    order = sorted(here)
    errorbars(ax, order, [here[n] for n in order], kind_of(here[order[0]]), label=_legend_words(here[order[0]]), zorder=4)
    if order[-1] > 1:
        told = _as(quantity, here[order[-1]])
        ax.annotate(told, (order[-1], middle(here[order[-1]])), (6, -13), textcoords="offset points", fontsize=11, fontweight="bold", color=look.BLUE)
    if guesses:
        ax.plot(list(guesses), list(guesses.values()), label="your guess", **{**KINDS["guess"].style(), "markersize": 10, "markeredgewidth": 2.4, "zorder": 5})

    _rank_axis(ax, most, "GPUs or ranks" if points else "ranks")
    ax.set_xlim(right=max([ax.get_xlim()[1], *(x + 0.01 * most for x in beside)]))
    ax.set_ylim(0, max(tops) * 1.06)
    if quantity == "efficiency":
        from matplotlib.ticker import PercentFormatter

        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylabel({"speed-up": "speed-up (times one rank)", "efficiency": "efficiency (speed-up over ranks)", "throughput": what}[quantity])
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    # Where curves rise from the origin the upper left is free, and below high efficiencies the lower left.
    if quantity == "efficiency" and min([middle(v) for v in here.values()] + [*forecast.values(), *guesses.values()]) < 0.6:
        look.legend_above(ax)
    else:
        look.legend(ax, loc="lower left" if quantity == "efficiency" else "upper left")
    look.title(mpl, title or _scaling_finding(here, quantity, what))

    parts = []
    for n in order if len(order) == 1 else [n for n in order if n > 1]:
        text = f"{_ranks(n)} {provenance_words(here[n])} {_as(quantity, here[n], True)}"
        text += f", predicted {_as(quantity, forecast[n])}" if n in forecast else ""
        parts.append(text + (f", guessed {_as(quantity, guesses[n])}" if n in guesses else ""))
    beyond = [n for n in sorted(forecast) if n > max(order)]
    parts += [f"predicted for {_ranks(beyond[-1])} {_as(quantity, forecast[beyond[-1]])}"] if beyond else []
    parts += [f"guessed for {_ranks(n)} {_as(quantity, g)}" for n, g in guesses.items() if n not in here]
    parts += [f"{told}, {_ranks(max(series))} {_as(quantity, series[max(series)])}" for told, series in others]
    if points:
        low, high = min(p.speedup for p in points), max(p.speedup for p in points)
        counts = sorted({p.n for p in points})
        parts.append(f"published for {listing([str(n) for n in counts])} GPUs {_as(quantity, low)}" + (f" to {_as(quantity, high)}" if high > low else ""))
    head = what if quantity == "throughput" else quantity
    summary = " ".join([sentence(f"{head}: {'; '.join(parts)}"), *["No guess was made."] * open_guess])
    return Figure(mpl, summary, [f"{p.label}: {p.speedup:.3g} on {p.n} GPUs. {p.source}" for p in points])


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[Value]]], xlabel: str, ylabel: str, log: Literal["", "x", "y", "xy"] = "", title: str | None = None
) -> Figure:
    """Curves over a common x: losses over steps, times over sizes.

    A label that starts with a kind (`predicted: alpha-beta`) is drawn in the look of that kind; otherwise the kind is that of the
    samples, and `measured` for plain numbers. A y may be `Samples`, whose quartiles are drawn. Give units in the labels of the axes; with a
    logarithmic x in bytes the ticks read KiB and MiB. Raises ValueError for an empty curve or one whose x and y differ in length.
    """
    if not series:
        raise ValueError("lines() needs at least one curve")
    curves = [_curve(label, x, y) for label, (x, y) in series.items()]
    agreement = _agreement(curves)
    widen = 2.6 if agreement is not None and agreement < 0.02 else 0.6
    mpl, (ax,) = look.new_axes()
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
        look.log_axis(ax, "x", "bytes" if "byte" in xlabel else "")
        counts = sorted({float(x) for xs, _ in series.values() for x in xs})
        if "byte" not in xlabel and len(counts) <= 12 and all(more / less >= 1.5 for less, more in itertools.pairwise(counts)):
            ax.set_xticks(counts, [f"{c:,.0f}" if c.is_integer() else number(c) for c in counts])  # a few numbers of ranks: all digits
            ax.set_xticks([], minor=True)
    else:
        ax.set_xlim(left=min(0.0, *(min(c.x) for c in curves)))
    if "y" in log:
        look.log_axis(ax, "y", "")
    else:
        ax.set_ylim(bottom=min(0.0, *(min(c.medians) for c in curves)))
    look.legend_above(ax, columns=3)
    finding = _curves_finding(curves, agreement, ylabel)
    look.title(mpl, title or finding)
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
        raise ValueError(f"the curve {label!r} has {len(x)} x and {len(y)} y; it needs as many of each, and at least one")
    head, _, rest = label.partition(":")
    told = bool(rest) and head in KINDS
    kind, name = (head, rest.strip()) if told else (kind_of(y[0]), label)
    where = kind if told else provenance_words(y[0])
    return _Curve(name, kind, f"{where}: {name}", [float(v) for v in x], list(y), [middle(v) for v in y])


def _legend_words(value: Value) -> str:
    repeated = isinstance(value, Samples) and len(value) > 1 and kind_of(value) in ("measured", "emulated")
    return provenance_words(value) + (f" ({QUARTILES})" if repeated else "")


def _once(ax: Axes, named: set[str], label: str, x: list[float], y: list[float], **style: Any) -> None:
    ax.plot(x, y, label=None if label in named else label, **style)
    named.add(label)


def _axis_words(name: str, base_unit: str, shown_unit: str) -> str:
    if "/" in base_unit or not base_unit:
        return shown_unit or name.replace("_", " ")
    stem = name.rpartition("_")[0].replace("_", " ") if unit_of_name(name) else name.replace("_", " ")
    if base_unit in ("s", "ms", "µs"):
        stem = stem if "time" in stem else f"{stem} time".strip()
    return f"{stem} ({shown_unit})".strip()


def _apart(a: Value, b: Value) -> bool:
    """Whether the quartiles of two values do not overlap."""
    return spread(a)[1] < spread(b)[0] or spread(b)[1] < spread(a)[0]


def _bars_finding(values: Mapping[Any, Value], unit: str) -> str:
    labels = [k for k in values if kind_of(values[k]) == kind_of(next(iter(values.values())))]  # other machines are no fair rivals
    first, last = labels[0], labels[-1]
    if len(labels) == 1:
        return f"{first}: {number(middle(values[first]))} {unit}".strip()
    if len(labels) > 2:
        first, last = (pick(labels, key=lambda k: middle(values[k])) for pick in (min, max))
    if not _apart(values[first], values[last]):
        return f"No clear difference between {first} and {last}"
    if not unit or middle(values[first]) <= 0:  # a ratio of losses or accuracies would mean little
        return f"{last}: {number(middle(values[last]))} against {number(middle(values[first]))} for {first}"
    what = {"s": "time", "ms": "time", "µs": "time", "B/s": "rate"}.get(unit, unit or "value")
    return f"{last}: {middle(values[last]) / middle(values[first]):.2g} times the {what} of {first}"


def _drawn(series: Mapping[int, Value], quantity: str) -> dict[int, Value]:
    if quantity == "throughput":
        return dict(series)
    one = middle(series[1]) if 1 in series else 1.0
    drawn: dict[int, Value] = {}
    for n, value in series.items():
        by = one * n if quantity == "efficiency" else one
        drawn[n] = value.map(lambda v, by=by: v / by) if isinstance(value, Samples) else value / by  # type: ignore[misc]
    return drawn


def _ranks(n: int) -> str:
    return "1 rank" if n == 1 else f"{n} ranks"


def _as(quantity: str, value: Value, quartiles: bool = False) -> str:
    def text(v: float) -> str:
        return f"{v:.0%}" if quantity == "efficiency" else number(v)

    low, high = spread(value)
    return text(middle(value)) + (f" ({text(low)} to {text(high)})" if quartiles and high > low else "")


def _scaling_finding(here: Mapping[int, Value], quantity: str, what: str) -> str:
    n = max(here)
    value = here[n]
    if n == 1:
        return "One rank: nothing to compare with yet"
    if quantity == "efficiency":
        return f"{_word(n)} ranks: each does {middle(value):.0%} of the work per second of a rank alone"
    if quantity == "throughput":
        ratio = f", {middle(value) / middle(here[1]):.2g} times one rank" if 1 in here else ""
        return f"{_word(n)} ranks: {number(middle(value))} {what}{ratio}"
    if spread(value)[0] <= 1.0:
        return f"{_word(n)} ranks are not clearly faster than one here"
    return f"{_word(n)} ranks: {middle(value):.2g} times the {what}"


def _word(n: int) -> str:
    return {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six", 7: "Seven", 8: "Eight"}.get(n, str(n))


def _side_by_side(points: Sequence[tuple[float, float]], width: float, height: float) -> list[float]:
    """The x of each point, moved right by `width` for every point that it would hide. To the left it could seem better than ideal."""
    xs: list[float] = []
    for i, (x, y) in enumerate(points):
        while any(abs(xs[k] - x) < width / 2 and abs(points[k][1] - y) < height for k in range(i)):
            x += width
        xs.append(x)
    return xs


def _rank_axis(ax: Axes, most: int, label: str) -> None:
    ticks: list[int] = list(range(1, most + 1)) if most <= 16 else [2**k for k in range(most.bit_length()) if 2**k >= most / 32]
    ax.set_xticks(ticks)
    ax.set_xlim(0, most * 1.04)
    ax.set_xlabel(label)


def _some_markers(points: int, series: int) -> tuple[int, int]:
    """About ten markers a curve, shifted from series to series so that they do not hide each other."""
    step = max(1, points // 10)
    return ((series * step // 2) % step, step)


def _agreement(curves: Sequence[_Curve]) -> float | None:
    """The largest relative gap between the curves in any point; None for one curve, or curves over different x."""
    if len(curves) < 2 or any(c.x != curves[0].x for c in curves):
        return None
    columns = list(zip(*(c.medians for c in curves), strict=True))
    return max((max(at) - min(at)) / (max(abs(v) for v in at) or 1.0) for at in columns)


def _curves_finding(curves: Sequence[_Curve], agreement: float | None, ylabel: str) -> str:
    """Whether the curves agree or how far a prediction is off, otherwise where each ends."""
    if agreement is not None:
        both = "Both curves" if len(curves) == 2 else f"All {len(curves)} curves"
        if agreement == 0:
            return f"{both} are equal in every point"
        if agreement < 1e-3:
            return f"{both} agree to one part in {10 ** math.floor(-math.log10(agreement)):,}"
        if agreement <= 0.05:
            return f"{both} stay within {agreement:.1%} of each other"
        if len(curves) == 2 and {c.kind for c in curves} == {"measured", "predicted"}:
            seen, told = sorted(curves, key=lambda c: c.kind)
            off = max(abs(p - m) / abs(m) if m else 0.0 for m, p in zip(seen.medians, told.medians, strict=True))
            return f"{told.name} is off by up to {off:.0%}"
    what = ylabel.partition(" (")[0]
    return f"{what} ends at " + ", ".join(f"{number(c.medians[-1])} ({c.name})" for c in curves)
