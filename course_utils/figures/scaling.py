"""How the rate grows with the number of ranks: measured, predicted, recorded and published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..results.published import Point
from ..results.samples import Samples
from ..show.units import number
from . import canvas
from .canvas import (
    GUESS,
    KINDS,
    Figure,
    Value,
    errorbars,
    kind_of,
    legend_words,
    listing,
    made_guesses,
    middle,
    provenance_words,
    sentence,
    spread,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def speedup(
    measured: Mapping[int, Value],
    predicted: Mapping[int, float] | None = None,
    guess: Mapping[int, Any] | None = None,
    recorded: Sequence[Mapping[int, Value]] = (),
    published: Sequence[Point] = (),
    emulated: Sequence[Mapping[int, Value]] = (),
    ideal: bool = True,
    quantity: Literal["speed-up", "efficiency", "throughput"] = "speed-up",
    what: str = "images per second",
    title: str | None = None,
) -> Figure:
    """Draw how the rate grows with the number of ranks, from 1 to at least 8.

    Every series maps a number of ranks to the rate of all of them together. It's divided by its value for 1 rank, if it
    has one; so you can also give speed-ups. `quantity` says what to draw: that "speed-up"; the "efficiency", which is
    the speed-up over the number of ranks; or the "throughput", the rate itself in `what`. Guesses are in the same
    quantity. `recorded` and `emulated` series have their machine or cluster in the provenance of their samples, and
    `published` takes the points of `published.ddp_scaling()`. Raises ValueError for an empty series, or for published
    speed-ups with throughput.
    """
    if quantity not in ("speed-up", "efficiency", "throughput"):
        raise ValueError(f"quantity must be 'speed-up', 'efficiency' or 'throughput'; got {quantity!r}")
    if not measured or any(n < 1 for n in measured):
        raise ValueError(
            "measured must map numbers of ranks, 1 or more, to samples; it is empty or has a smaller number"
        )
    if published and quantity == "throughput":
        raise ValueError(
            "published points are speed-ups of other machines; draw them with quantity='speed-up' or 'efficiency'"
        )
    here = _drawn(measured, quantity)
    forecast = {n: middle(v) for n, v in _drawn(predicted or {}, quantity).items()}
    others = [
        (provenance_words(next(iter(series.values()))), _drawn(series, quantity), KINDS[kind].style(i))
        for kind, group in (("recorded", recorded), ("emulated", emulated))
        for i, series in enumerate(group)
    ]
    points = [p._replace(speedup=p.speedup / p.n) if quantity == "efficiency" else p for p in published]
    guesses, open_guess = made_guesses(guess, sorted({*range(1, 9), *here, *forecast}))

    most = max([8, *here, *forecast, *guesses, *(p.n for p in points), *(n for _, series, _ in others for n in series)])
    tops = [spread(v)[1] for series in [here, *(s for _, s, _ in others)] for v in series.values()]
    tops += [*forecast.values(), *guesses.values(), *(p.speedup for p in points)]
    mpl, (ax,) = canvas.new_axes()
    if ideal and (quantity != "throughput" or 1 in here):
        one = middle(here[1]) if quantity == "throughput" else 1.0
        ends = [1.0, 1.0] if quantity == "efficiency" else [0.0, most * one]
        ax.plot([0, most], ends, label="ideal", **KINDS["ideal"].style())
        tops.append(ends[1])
    if forecast:
        order = sorted(forecast)
        ax.plot(order, [forecast[n] for n in order], label="predicted", **KINDS["predicted"].style())
    for name, series, style in others:
        order = sorted(series)
        errorbars(ax, order, [series[n] for n in order], name.split()[0], label=name, **style)
    if points:
        sources = ", ".join(dict.fromkeys(p.source.split("/")[0].replace("tensorflow", "TensorFlow") for p in points))
        name = f"published: {points[0].label}" if len(points) == 1 else f"published: {len(points)} results"
        ax.plot(
            [p.n for p in points],
            [p.speedup for p in points],
            label=f"{name} ({sources})",
            **{**KINDS["published"].style(), "alpha": 0.6},  # several lie nearly on one spot
        )
    order = sorted(here)
    errorbars(
        ax, order, [here[n] for n in order], kind_of(here[order[0]]), label=legend_words(here[order[0]]), zorder=4
    )
    if order[-1] > 1:
        words = _as(quantity, here[order[-1]])
        ax.annotate(
            words,
            (order[-1], middle(here[order[-1]])),
            (6, -13),
            textcoords="offset points",
            fontsize=11,
            fontweight="bold",
            color=canvas.BLUE,
        )
    if guesses:
        ax.plot(list(guesses), list(guesses.values()), label="your guess", **GUESS)

    _rank_axis(ax, most, "GPUs or ranks" if points else "ranks")
    ax.set_ylim(0, max(tops) * 1.06)
    if quantity == "efficiency":
        from matplotlib.ticker import PercentFormatter

        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylabel(
        {"speed-up": "speed-up (times one rank)", "efficiency": "efficiency (speed-up over ranks)", "throughput": what}[
            quantity
        ]
    )
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    # Rising curves leave the upper left free, high efficiencies the lower left.
    if (
        quantity == "efficiency"
        and min([middle(v) for v in here.values()] + [*forecast.values(), *guesses.values()]) < 0.6
    ):
        canvas.legend_above(ax)
    else:
        canvas.legend(ax, loc="lower left" if quantity == "efficiency" else "upper left")
    finding = _scaling_finding(here, quantity, what)
    if kind_of(here[order[-1]]) == "emulated":
        finding = f"Emulated, {finding[:1].lower()}{finding[1:]}"
    canvas.title(mpl, title or finding)

    parts = []
    for n in order if len(order) == 1 else [n for n in order if n > 1]:
        text = f"{_ranks(n)} {provenance_words(here[n])} {_as(quantity, here[n], True)}"
        text += f", predicted {_as(quantity, forecast[n])}" if n in forecast else ""
        parts.append(text + (f", guessed {_as(quantity, guesses[n])}" if n in guesses else ""))
    beyond = [n for n in sorted(forecast) if n > max(order)]
    parts += [f"predicted for {_ranks(beyond[-1])} {_as(quantity, forecast[beyond[-1]])}"] if beyond else []
    parts += [f"guessed for {_ranks(n)} {_as(quantity, g)}" for n, g in guesses.items() if n not in here]
    parts += [f"{name}, {_ranks(max(series))} {_as(quantity, series[max(series)])}" for name, series, _ in others]
    if points:
        low, high = min(p.speedup for p in points), max(p.speedup for p in points)
        counts = sorted({p.n for p in points})
        parts.append(
            f"published for {listing([str(n) for n in counts])} GPUs {_as(quantity, low)}"
            + (f" to {_as(quantity, high)}" if high > low else "")
        )
    head = what if quantity == "throughput" else quantity
    summary = " ".join([sentence(f"{head}: {'; '.join(parts)}"), *["No guess was made."] * open_guess])
    return Figure(mpl, summary, [f"{p.label}: {p.speedup:.3g} on {p.n} GPUs. {p.source}" for p in points])


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
        return f"{_word(n)} ranks: each works at {middle(value):.0%} of the speed of a rank alone"
    if quantity == "throughput":
        ratio = f", {middle(value) / middle(here[1]):.2g} times one rank" if 1 in here else ""
        return f"{_word(n)} ranks: {number(middle(value))} {what}{ratio}"
    if spread(value)[0] <= 1.0:
        return f"{_word(n)} ranks are not clearly faster than one here"
    return f"{_word(n)} ranks: {middle(value):.2g} times the {what}"


def _word(n: int) -> str:
    return {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six", 7: "Seven", 8: "Eight"}.get(n, str(n))


def _rank_axis(ax: Axes, most: int, label: str) -> None:
    ticks: list[int] = (
        list(range(1, most + 1)) if most <= 16 else [2**k for k in range(most.bit_length()) if 2**k >= most / 32]
    )
    ax.set_xticks(ticks)
    ax.set_xlim(0, most * 1.04)
    ax.set_xlabel(label)
