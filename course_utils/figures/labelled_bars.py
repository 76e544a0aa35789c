"""Bars side by side, each with its prediction and your guess."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..results.samples import Samples
from ..show.units import number, readable_unit, unit_of_name
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


LOW = 0.09  # of the axis: what ends below it would hide a number at its foot


def bars(
    values: Mapping[Any, Value],
    guess: Mapping[Any, Any] | None = None,
    predicted: Mapping[Any, Value] | None = None,
    unit: str | None = None,
    ylabel: str | None = None,
    title: str | None = None,
) -> Figure:
    """Draw one bar for each label, with its prediction and your guess. Samples as a prediction are called what they
    are, such as emulated.

    All numbers are in `unit`, by default the one that the samples' name ends with (`step_s`: seconds). Seconds, bytes
    and B/s are scaled to read well. A guess of `...` draws nothing, and the text says that none was made. Each value
    gets the look of its provenance. A `ylabel` of your own gets the unit in brackets, unless it has some.

    Raises KeyError for a guess or prediction about an unknown label.
    """
    if not values:
        raise ValueError("bars() needs at least one labelled value")
    labels = list(values)
    guesses, open_guess = made_guesses(guess, labels)
    predictions = {key: middle(value) for key, value in (predicted or {}).items()}
    called = {
        key: kind_of(value) if isinstance(value, Samples) else "predicted" for key, value in (predicted or {}).items()
    }
    if unknown := set(predictions) - set(labels):
        raise KeyError(
            f"predicted has {listing([repr(k) for k in unknown])}, but the bars are"
            f" {listing([repr(k) for k in labels])}"
        )
    name = next((v.name for v in values.values() if isinstance(v, Samples)), "")
    base_unit = unit_of_name(name) if unit is None else unit
    largest = max(
        [abs(spread(v)[1]) for v in values.values()] + [abs(v) for v in [*predictions.values(), *guesses.values()]]
    )
    factor, shown_unit = readable_unit(base_unit, largest)

    mpl, (ax,) = canvas.new_axes()
    named: set[str] = set()
    height = largest * factor * 1.12 or 1
    for i, (label, value) in enumerate(values.items()):
        kind = kind_of(value)
        ax.bar(i, middle(value) * factor, width=0.6, color=KINDS[kind].color, alpha=0.22, edgecolor="none")
        words = legend_words(value)
        errorbars(ax, [i], [value], kind, factor, label=None if words in named else words, linestyle="none")
        named.add(words)
        written = number(middle(value) * factor) + (f" {shown_unit}" if len(labels) <= 3 else "")
        tops = [abs(spread(value)[1]), *(found[label] for found in (predictions, guesses) if label in found)]
        top = max(tops) * factor
        place, above = ((i, 0), 5) if top > LOW * height else ((i, top), 8)
        ax.annotate(
            written.strip(), place, (0, above), textcoords="offset points", ha="center", fontsize=10, color=canvas.INK
        )
    for i, label in enumerate(labels):
        if label in predictions:
            _once(
                ax,
                named,
                called[label],
                [i - 0.38, i + 0.38],
                [predictions[label] * factor] * 2,
                **KINDS["predicted"].style(),
            )
        if label in guesses:
            _once(ax, named, "your guess", [i + 0.2], [guesses[label] * factor], **GUESS)
    canvas.name_ticks(ax, labels, max(8, 60 // len(labels)))
    ax.set_ylim(0, height)
    if ylabel and shown_unit and "(" not in ylabel:
        ylabel = f"{ylabel} ({shown_unit})"
    ax.set_ylabel(ylabel or _axis_words(name, base_unit, shown_unit))
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    canvas.legend_above(ax)
    canvas.title(mpl, title or _bars_finding(values, base_unit))

    parts = []
    for label, value in values.items():
        text = f"{label}: {provenance_words(value)} {number(middle(value) * factor)} {shown_unit}".rstrip()
        if label in predictions:
            text += f", {called[label]} {number(predictions[label] * factor)}"
        if label in guesses:
            text += f", guessed {number(guesses[label] * factor)}"
        parts.append(sentence(text))
    return Figure(mpl, " ".join(parts + ["No guess was made."] * open_guess))


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
    labels = [
        k for k in values if kind_of(values[k]) == kind_of(next(iter(values.values())))
    ]  # a comparison with other machines wouldn't be fair
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
