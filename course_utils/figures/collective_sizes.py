"""How long a collective takes over sizes, measured and predicted, and the error of each prediction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from ..predict import bus_bandwidth
from ..results.samples import Samples
from ..show.units import number, readable
from . import canvas
from .canvas import GUESS, KINDS, Figure, Value, errorbars, made_guesses, middle, named_kind, provenance_words, sentence

Points = Sequence[tuple[float, Value]]
Curve = Callable[[float], float] | Sequence[tuple[float, float]]
DASHES: tuple[Any, ...] = (
    "--",
    (0, (6, 1.5, 1, 1.5)),
    (0, (2, 1.2)),
)  # of several predictions, so that not only the shade tells them apart


def sizes(
    measured: Mapping[str, Points],
    predicted: Mapping[str, Curve] | None = None,
    guess: Mapping[float, Any] | None = None,
    ranks: int | Mapping[str, int] | None = None,
    collective: str = "all_reduce",
    quantity: Literal["time", "bus bandwidth"] = "time",
    title: str | None = None,
) -> Figure:
    """Draw what a collective costs over sizes, on logarithmic axes. Below it, draw how far each prediction is off, and
    name the worst point.

    `measured` maps a label to pairs (bytes, seconds). Seconds may be `Samples`: their quartiles are drawn, and their
    provenance sets the look. A label may begin with a kind (`published: H100`). `predicted` maps a label to a function
    of bytes, such as `Link.send_s` or a `SizeSweep`, or to pairs. It's compared with the measurement of the same label,
    or else with the first one. `guess` maps bytes to seconds.

    `quantity="bus bandwidth"` draws the rate on each link instead, as nccl-tests prints it. That needs `ranks`, one
    number for all curves or one for each label. A time that is too long is then a bandwidth that is too low. Raises
    ValueError for an empty curve, sizes or times that aren't above zero, a prediction that shares no size with the
    measurement, or missing ranks.
    """
    if not measured:
        raise ValueError("sizes() needs at least one measured curve")
    if quantity not in ("time", "bus bandwidth"):
        raise ValueError(f"quantity must be 'time' or 'bus bandwidth'; got {quantity!r}")
    as_rate = quantity == "bus bandwidth"
    seen = {label: _seen(label, points) for label, points in measured.items()}
    forecasts = {
        label: _prediction(label, curve, seen.get(label) or next(iter(seen.values())))
        for label, curve in (predicted or {}).items()
    }
    guesses, open_guess = made_guesses(guess, [size for s in seen.values() for size, _ in s.points])

    def drawn(label: str, nbytes: float, seconds: float) -> float:
        """The y coordinate: seconds, or bytes per second on each link."""
        if not as_rate:
            return seconds
        n = ranks.get(label) if isinstance(ranks, Mapping) else ranks
        if n is None or n < 2:
            raise ValueError(
                f"the bus bandwidth of {label!r} needs its number of ranks, 2 or more: sizes(..., ranks=2)"
            )
        return bus_bandwidth(nbytes, seconds, n, collective)

    height = {"height_ratios": [3, 1.35]} if forecasts else {}
    mpl, axes = canvas.new_axes(
        2 if forecasts else 1,
        size=(canvas.SIZE[0], canvas.SIZE[1] + (1.0 if forecasts else 0.0)),
        sharex=True,
        gridspec_kw=height,
    )
    ax = axes[0]
    count: dict[str, int] = {}
    for label, s in seen.items():
        values = [_mapped(value, partial(drawn, label, size)) for size, value in s.points]
        series = count[s.kind] = count.get(s.kind, -1) + 1
        style = KINDS[s.kind].style(series) | ({"linestyle": "-"} if s.kind == "published" else {})
        errorbars(ax, [size for size, _ in s.points], values, s.kind, label=s.legend, **style)
    for i, (label, t) in enumerate(forecasts.items()):
        style = KINDS["predicted"].style(i) | {"linestyle": DASHES[i % len(DASHES)], "zorder": 3.5}
        name = label if isinstance(ranks, Mapping) and label in ranks else t.against.label
        ax.plot([b for b, _ in t.curve], [drawn(name, b, v) for b, v in t.curve], label=f"predicted: {label}", **style)
    first = next(
        (label for label, s in seen.items() if s.kind == "measured"), next(iter(seen))
    )  # the curve that guesses are about
    if guesses:
        ax.plot(list(guesses), [drawn(first, b, v) for b, v in guesses.items()], label="your guess", **GUESS)

    canvas.log_axis(ax, "x", "bytes")
    canvas.log_axis(ax, "y", "B/s" if as_rate else "s")
    axes[-1].set_xlabel("size of the tensor")
    ax.set_ylabel(f"{'bus bandwidth' if as_rate else 'time'} of {collective.replace('_', '-')}")
    ax.grid(color="#E6E6E6", linewidth=0.8)
    if forecasts:
        _errors(axes[1], forecasts)
    canvas.legend_above(ax, columns=3)
    canvas.title(mpl, title or _finding(seen, forecasts, collective))
    return Figure(
        mpl,
        " ".join(
            [
                *_sentences(seen, forecasts, drawn, as_rate),
                *_about_guesses(guesses, seen[first]),
                *["No guess was made."] * open_guess,
            ]
        ),
    )


def _mapped(value: Value, function: Callable[[float], float]) -> Value:
    return value.map(function) if isinstance(value, Samples) else function(value)


class _Miss(NamedTuple):
    """Measured and predicted seconds at one size."""

    nbytes: float
    seen_s: float
    predicted_s: float

    @property
    def apart(self) -> float:
        """How far apart they are, on a scale where twice and half are equally far."""
        return abs(math.log(self.predicted_s / self.seen_s))

    def words(self) -> str:
        ratio = self.predicted_s / self.seen_s
        far = f"{max(ratio, 1 / ratio):.1f} times" if self.apart > math.log(2) else f"{abs(ratio - 1):.0%}"
        return f"{far} too {'much' if ratio > 1 else 'little'} at {readable('bytes', self.nbytes)}"


@dataclass(frozen=True)
class _Seen:
    label: str
    kind: str
    legend: str
    points: list[tuple[float, Value]]


@dataclass(frozen=True)
class _Prediction:
    label: str
    curve: list[tuple[float, float]]
    against: _Seen
    misses: list[_Miss]

    @property
    def worst(self) -> _Miss:
        return max(self.misses, key=lambda m: m.apart)

    @property
    def median_error(self) -> float:
        return statistics.median(abs(m.predicted_s / m.seen_s - 1) for m in self.misses)


def _checked(label: str, points: Sequence[tuple[float, Any]]) -> None:
    if not points:
        raise ValueError(f"the curve {label!r} has no points")
    for size, value in points:
        if not (size > 0 and middle(value) > 0):
            raise ValueError(
                f"a logarithmic axis needs numbers above zero; {label!r} has {middle(value):g} s for {size:g} bytes"
            )


def _seen(label: str, points: Points) -> _Seen:
    ordered = sorted(points, key=lambda p: p[0])
    _checked(label, ordered)
    return _Seen(*named_kind(label, ordered[0][1]), ordered)


def _prediction(label: str, curve: Curve, against: _Seen) -> _Prediction:
    known = [(size, middle(value)) for size, value in against.points]
    if callable(curve):
        low, high = known[0][0], known[-1][0]
        grid = sorted({*(low * (high / low) ** (i / 120) for i in range(121)), *(size for size, _ in known)})
        points = [(size, float(curve(size))) for size in grid]
    else:
        points = sorted((float(size), float(seconds)) for size, seconds in curve)
    _checked(label, points)
    at = dict(points)
    misses = [_Miss(size, seconds, at[size]) for size, seconds in known if size in at]
    if not misses:
        raise ValueError(
            f"the prediction {label!r} has no size in common with {against.label!r}; give it as a function of bytes"
        )
    return _Prediction(label, points, against, misses)


def _errors(ax: Any, forecasts: Mapping[str, _Prediction]) -> None:
    """Draw the error of every prediction in percent of the measurement, whose own spread is drawn around zero."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for s in {id(t.against): t.against for t in forecasts.values()}.values():
        spreads = [canvas.spread(value) for _, value in s.points]
        low, high = ([q[k] / middle(v) - 1 for q, (_, v) in zip(spreads, s.points, strict=True)] for k in (0, 1))
        sizes = [size for size, _ in s.points]
        ax.fill_between(sizes, low, high, color=KINDS[s.kind].color, alpha=0.16, linewidth=0)
    ax.axhline(0, color=KINDS[next(iter(forecasts.values())).against.kind].color, linewidth=1.4, zorder=1)
    worst = max(forecasts.values(), key=lambda t: t.worst.apart)
    for i, t in enumerate(forecasts.values()):
        style = KINDS["predicted"].style(i) | {"linestyle": DASHES[i % len(DASHES)], "linewidth": 1.6}
        # Dots only where something was measured: we don't know the error between them.
        ax.plot(
            [m.nbytes for m in t.misses],
            [m.predicted_s / m.seen_s - 1 for m in t.misses],
            marker=".",
            markersize=7,
            **style,
        )
    errors = [m.predicted_s / m.seen_s - 1 for t in forecasts.values() for m in t.misses]
    top, bottom = max(0.12, *errors), min(-0.12, *errors)
    room = 0.5 * (top - bottom)
    ax.set_ylim(bottom - room, top + room)
    if worst.worst.apart > math.log(1.1):
        error = worst.worst.predicted_s / worst.worst.seen_s - 1
        ends = (
            {worst.misses[0].nbytes: "left", worst.misses[-1].nbytes: "right"} if len(worst.misses) > 1 else {}
        )  # inside the axes
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": ends.get(worst.worst.nbytes, "center"),
            "va": "bottom" if error > 0 else "top",
            "fontsize": 10,
        }
        text = f"{error:+.0%} at {readable('bytes', worst.worst.nbytes)}".replace("-", "−")
        ax.annotate(
            text,
            (worst.worst.nbytes, error),
            (0, 5 if error > 0 else -5),
            color=canvas.INK,
            fontweight="bold",
            zorder=6,
            **place,
        )
    ax.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:+.0%}".replace("-", "−") if v else "0"))
    ax.set_ylabel("error of\nprediction")
    ax.grid(axis="x", color="#E6E6E6", linewidth=0.8)


def _finding(seen: Mapping[str, _Seen], forecasts: Mapping[str, _Prediction], collective: str) -> str:
    if forecasts:
        worst = max(forecasts.values(), key=lambda t: t.worst.apart)
        if worst.worst.apart <= math.log(1.1):
            return "Every prediction stays within 10% of the measurement"
        best = min(forecasts.values(), key=lambda t: t.worst.apart)
        text = f"{worst.label} predicts {worst.worst.words()}"
        if best is not worst and best.against is worst.against:
            error = abs(best.worst.predicted_s / best.worst.seen_s - 1)
            text += f"; {best.label} {'fits every size' if error < 0.005 else f'is off by {error:.0%} at most'}"
        return text
    first = next((s for s in seen.values() if s.kind == "measured"), next(iter(seen.values())))
    (size0, t0), (size1, t1) = first.points[0], first.points[-1]
    many, longer = size1 / size0, middle(t1) / middle(t0)
    if len(first.points) < 2:
        return f"{collective.replace('_', '-')} of {readable('bytes', size0)}: {readable('s', middle(t0))}"
    return f"{number(many)} times the bytes take {number(longer)} times as long ({first.label})"


def _sentences(
    seen: Mapping[str, _Seen],
    forecasts: Mapping[str, _Prediction],
    drawn: Callable[[str, float, float], float],
    as_rate: bool,
) -> list[str]:
    unit = "B/s" if as_rate else "s"
    parts = []
    for label, s in seen.items():
        ends = [
            f"{readable('bytes', b)} {readable(unit, drawn(label, b, middle(v)))}"
            for b, v in dict.fromkeys((s.points[0], s.points[-1]))
        ]
        parts.append(sentence(f"{s.legend}: {' to '.join(ends)}"))
    for label, t in forecasts.items():
        worst = (
            f"median error {t.median_error:.0%}, the worst time is {t.worst.words()}"
            if t.worst.apart > 0.01
            else "within 1% at every size"
        )
        parts.append(sentence(f"Predicted by {label}: {worst}"))
    return parts


def _about_guesses(guesses: Mapping[float, float], seen: _Seen) -> list[str]:
    known = {size: middle(value) for size, value in seen.points}
    return [
        sentence(
            f"You guessed {readable('s', value)} for {readable('bytes', size)};"
            f" {provenance_words(dict(seen.points)[size])}: {readable('s', known[size])}"
        )
        for size, value in guesses.items()
        if size in known
    ]
