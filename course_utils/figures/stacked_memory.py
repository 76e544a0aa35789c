"""What fills the memory of a rank: stacked parts, predicted and measured, and the limit of the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..results.samples import Samples
from ..show.units import number, readable_unit
from . import canvas
from .canvas import (
    GUESS,
    KINDS,
    Figure,
    errorbars,
    kind_of,
    listing,
    made_guesses,
    middle,
    provenance_words,
    sentence,
    spread,
)

Parts = Mapping[str, float]
# Colour and hatch of a part; never colour alone.
_PARTS: dict[str, tuple[str, str]] = {
    "parameters": (canvas.BLUE, ""),
    "gradients": (canvas.SKY, "///"),
    "optimizer": (canvas.PURPLE, "..."),
    "activations": (canvas.YELLOW, "\\\\\\"),
}
_ALIASES = {"weights": "parameters"}
_MORE = ((canvas.GREEN, "xx"), ("#BDBDBD", "++"), (canvas.VERMILION, "---"))
_FRAMES = {kind: (KINDS[kind].color, KINDS[kind].line) for kind in ("predicted", "measured", "emulated")}
EDGE = "#FFFFFFB0"


def memory(
    predicted: Mapping[str, Parts] | None = None,
    measured: Mapping[str, Parts | Samples | float] | None = None,
    limit_bytes: float | None = None,
    guess: Mapping[str, Any] | None = None,
    decimal: bool = False,
    title: str | None = None,
    kind: Literal["measured", "emulated"] = "measured",
) -> Figure:
    """Draw the bytes that a rank or a strategy holds as a stack, and say whether it fits the device.

    `predicted` and `measured` map a label (`DDP`, `rank 0`) to its parts in bytes: parameters, gradients, optimizer,
    activations, or your own names. A label with both gets two stacks, the predicted one in a dashed frame. A measured
    total (a number, or `Samples`) is a point with its quartiles. Stacks of `run.emulated.memory()` are `measured` too;
    with `kind="emulated"` they're marked as what they are. `limit_bytes` is what a device has. Guess the total; `...`
    leaves it open. `decimal` counts in GB as papers do, instead of GiB. Raises ValueError without a stack, or for a
    negative part.
    """
    forecast = {label: _named(label, parts) for label, parts in (predicted or {}).items()}
    seen: dict[str, dict[str, float]] = {}
    totals: dict[str, Samples | float] = {}
    for label, value in (measured or {}).items():
        if isinstance(value, Mapping):
            seen[label] = _named(label, value)
        else:
            totals[label] = value
    labels = list(dict.fromkeys([*forecast, *seen, *totals]))
    if not labels:
        raise ValueError("memory() needs at least one stack")
    guesses, open_guess = made_guesses(guess, labels)
    names = list(dict.fromkeys(name for stack in [*forecast.values(), *seen.values()] for name in stack))
    names.sort(key=lambda n: list(_PARTS).index(n) if n in _PARTS else len(_PARTS))
    looks = _looks(names)

    sums = [sum(stack.values()) for stack in [*forecast.values(), *seen.values()]]
    largest = max([*sums, *(spread(v)[1] for v in totals.values()), *guesses.values(), 0.0])
    factor, unit = _unit(largest, decimal)
    if limit_bytes is not None and limit_bytes < 4 * largest:
        largest = max(largest, limit_bytes)

    mpl, (ax,) = canvas.new_axes()
    both = bool(set(forecast) & set(seen))
    in_legend: set[str] = set()
    for i, label in enumerate(labels):
        pair = label in forecast and label in seen
        width = 0.37 if both else 0.56
        for stack, frame, x in (
            (forecast.get(label), "predicted", i - 0.2 * pair),
            (seen.get(label), kind, i + 0.2 * pair),
        ):
            if stack:
                _stack(ax, x, width, stack, looks, frame, factor, largest)
        if label in totals:
            value = totals[label]
            text = provenance_words(value)
            x = i + (0.0 if label not in forecast else 0.38 * width)
            errorbars(
                ax,
                [x],
                [value],
                kind_of(value),
                factor,
                label=None if text in in_legend else text,
                linestyle="none",
                markeredgecolor="white",
                zorder=5,
            )
            in_legend.add(text)
        if label in guesses:
            ax.plot(
                [i - 0.32],
                [guesses[label] * factor],
                label=None if "your guess" in in_legend else "your guess",
                **GUESS,
            )
            in_legend.add("your guess")
    if limit_bytes is not None and limit_bytes <= largest:  # the text mentions one far above every stack
        ax.axhline(
            limit_bytes * factor,
            color=canvas.INK,
            linewidth=1.6,
            zorder=2,
            label=f"a device has {number(limit_bytes * factor)} {unit}",
        )
    canvas.name_ticks(ax, labels, max(9, 62 // len(labels)))
    ax.set_ylim(0, largest * factor * 1.14 or 1)
    ax.set_ylabel(f"memory per device ({unit})")
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    ax.tick_params(axis="x", length=0)
    _legend(ax, names, looks, [frame for frame, there in (("predicted", forecast), (kind, seen)) if there])

    # The measurement decides whether it fits, or the prediction if there is none.
    size = {label: sum(stack.values()) for label, stack in {**forecast, **seen}.items()} | {
        label: middle(value) for label, value in totals.items()
    }
    size = {label: size[label] for label in labels}
    canvas.title(mpl, title or _finding(size, limit_bytes, factor, unit))
    sentences = []
    for label in labels:
        words = []
        for stack, frame in ((forecast.get(label), "predicted"), (seen.get(label), kind)):
            if stack:
                named = ", ".join(f"{name} {number(v * factor)}" for name, v in stack.items() if v)
                inside = f" ({named})" if frame == "predicted" or label not in forecast else ""
                words.append(f"{frame} {number(sum(stack.values()) * factor)} {unit}{inside}")
        words += (
            [f"{provenance_words(totals[label])} {number(middle(totals[label]) * factor)} {unit}"]
            if label in totals
            else []
        )
        words += [f"guessed {number(guesses[label] * factor)}"] if label in guesses else []
        sentences.append(sentence(f"{label}: {', '.join(words)}"))
    closing = [] if limit_bytes is None else [sentence(f"A device has {number(limit_bytes * factor)} {unit}")]
    return Figure(mpl, " ".join([*sentences, *closing, *["No guess was made."] * open_guess]))


def _named(label: str, parts: Parts) -> dict[str, float]:
    if not parts:
        raise ValueError(f"the stack {label!r} has no parts")
    if low := [name for name, nbytes in parts.items() if not nbytes >= 0]:
        raise ValueError(f"a part must have zero bytes or more; {label!r} has {parts[low[0]]!r} bytes of {low[0]}")
    return {_ALIASES.get(name, name): float(nbytes) for name, nbytes in parts.items()}


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    own = [name for name in names if name not in _PARTS]
    return {**_PARTS, **{name: _MORE[i % len(_MORE)] for i, name in enumerate(own)}}


def _unit(largest: float, decimal: bool) -> tuple[float, str]:
    if not decimal:
        return readable_unit("bytes", largest)
    return next(
        ((1 / size, name) for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= size),
        (1.0, "bytes"),
    )


def _stack(
    ax: Any,
    x: float,
    width: float,
    stack: Mapping[str, float],
    looks: Mapping[str, Any],
    kind: str,
    factor: float,
    largest: float,
) -> None:
    bottom = 0.0
    for name in sorted(stack, key=list(looks).index):
        color, hatch = looks[name]
        height = stack[name] * factor
        ax.bar(x, height, width, bottom, color=color, hatch=hatch, edgecolor=EDGE, linewidth=0.6)
        if stack[name] > 0.065 * largest:
            canvas.write_inside(ax, x, bottom + height / 2, number(height), color, bool(hatch))
        bottom += height
    color, line = _FRAMES[kind]
    if bottom > 0.03 * largest * factor:  # a sliver would be all frame
        ax.bar(x, bottom, width, color="none", edgecolor=color, linestyle=line, linewidth=2.0, zorder=2.5)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}
    total: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "center",
        "fontsize": 10,
        "fontweight": "bold",
        "bbox": box,
        "zorder": 3,
    }
    ax.annotate(number(bottom), (x, bottom), (0, 4), color=canvas.INK, **total)


def _legend(ax: Any, names: Sequence[str], looks: Mapping[str, Any], kinds: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=looks[n][0], hatch=looks[n][1], edgecolor=EDGE, label=n) for n in names]
    handles += [
        Patch(facecolor="none", edgecolor=_FRAMES[k][0], linestyle=_FRAMES[k][1], linewidth=1.8, label=k) for k in kinds
    ]
    points, words = ax.get_legend_handles_labels()
    for handle, text in zip(points, words, strict=True):
        handle.set_label(text)
        handles.append(handle)
    columns = len(handles) if len(handles) < 5 else math.ceil(len(handles) / 2)
    canvas.legend(ax, handles=handles, ncols=columns, **canvas.ABOVE, **canvas.FILLED)


def _finding(size: Mapping[str, float], limit: float | None, factor: float, unit: str) -> str:
    """Say which stacks fit the device, or how the largest compares with the smallest."""
    labels = list(size)
    if limit is not None:
        fits = [label for label in labels if size[label] <= limit]
        room = f"{number(limit * factor)} {unit}"
        if len(fits) == len(labels):
            return (
                f"{'It fits' if len(labels) == 1 else 'All fit'} in {room}; {max(labels, key=lambda k: size[k])} fills"
                f" {max(size.values()) / limit:.0%}"
            )
        if not fits:
            return f"{'It does not fit' if len(labels) == 1 else 'None fits'} in {room}"
        few = fits if len(fits) <= len(labels) / 2 else [label for label in labels if label not in fits]
        does = "fits" if len(few) == 1 else "fit"
        return f"Only {listing(few)} {does} in {room}" if few == fits else f"All but {listing(few)} fit in {room}"
    if len(labels) == 1:
        return f"{labels[0]}: {number(size[labels[0]] * factor)} {unit}"
    low, high = (pick(labels, key=lambda k: size[k]) for pick in (min, max))
    if size[high] < 1.02 * size[low] or not size[low]:
        return f"Every stack holds about {number(size[high] * factor)} {unit}"
    return f"{low} needs {number(size[low] * factor)} {unit}, {high} {number(size[high] / size[low])} times that"
