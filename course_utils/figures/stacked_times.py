"""Where the time goes: one bar for each run, split into its parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ..results.samples import Samples
from ..show.units import number, readable_unit
from . import canvas
from .canvas import KINDS, Figure, listing, middle, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Parts = Mapping[str, Samples | float]
# Colour and hatch of a part; never colour alone.
_PARTS: dict[str, tuple[str, str]] = {
    "load": (canvas.YELLOW, "\\\\\\"),
    "move": (canvas.PURPLE, "..."),
    "forward": (canvas.SKY, ""),
    "backward": (canvas.BLUE, ""),
    "optimizer": (canvas.GREEN, "xx"),
    "train": (canvas.BLUE, ""),
    "test": (canvas.GREEN, "xx"),
    "queue": ("#BDBDBD", "..."),
    "run": (canvas.BLUE, ""),
}
_MORE = ((canvas.SKY, "///"), (canvas.VERMILION, "---"), ("#BDBDBD", "++"), (canvas.PURPLE, "oo"))
EDGE = "#FFFFFFB0"


def parts(
    rows: Mapping[str, Parts], unit: str | None = None, predicted: Collection[str] = (), title: str | None = None
) -> Figure:
    """Draw a bar for each row, split into its parts from left to right: `parts({"one step": {"load": load_s, "forward":
    forward_s}})`.

    Values are numbers or `Samples` (their median is drawn), all in `unit` (default: seconds, scaled to read well). A
    part keeps its colour and hatching in all rows. `predicted` names rows that are predictions: they're pale, in a
    dashed frame. The title names the largest part of a single row, or the totals of several. Raises ValueError without
    a row or a part, or for a negative part; KeyError for an unknown predicted row.
    """
    found = {label: {name: middle(value) for name, value in row.items()} for label, row in rows.items()}
    if not found or not all(found.values()):
        raise ValueError("parts() needs at least one row, and at least one part in each")
    if unknown := set(predicted) - set(found):
        raise KeyError(
            f"predicted names {listing(sorted(map(repr, unknown)))}; the rows are"
            f" {listing([repr(label) for label in found])}"
        )
    for label, row in found.items():
        for name, value in row.items():
            if not value >= 0:
                raise ValueError(f"{name} of {label} is {value:g}; a part of a time cannot be negative")
    totals = {label: sum(row.values()) for label, row in found.items()}
    base_unit = "s" if unit is None else unit
    factor, shown_unit = readable_unit(base_unit, max(totals.values()))
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    styles = dict(zip(names, _styles(names), strict=True))

    mpl, (ax,) = canvas.new_axes(size=(canvas.SIZE[0], 1.7 + 0.62 * len(found)))
    widest = max(totals.values()) * factor or 1.0
    for i, (label, row) in enumerate(found.items()):
        _bar(ax, i, row, styles, factor, widest, label in predicted)
        ax.text(
            totals[label] * factor + 0.012 * widest,
            i,
            f"{number(totals[label] * factor)} {shown_unit}",
            va="center",
            fontsize=9.5,
            color=canvas.INK,
        )
    ax.set_yticks(range(len(found)), list(found))
    ax.set_ylim(len(found) - 0.45, -0.55)
    ax.set_xlim(0, widest * 1.13)
    ax.set_xlabel(f"time ({shown_unit})")
    ax.tick_params(axis="y", length=0)
    _legend(ax, found, names, styles, factor, shown_unit, bool(predicted))
    finding = _finding(found, totals, predicted, factor, shown_unit)
    canvas.title(mpl, title or finding)

    sentences = []
    for label, row in found.items():
        kind = "predicted " if label in predicted else ""
        shares = ", ".join(f"{name} {number(value * factor)}" for name, value in row.items())
        sentences.append(sentence(f"{label}: {kind}{number(totals[label] * factor)} {shown_unit} ({shares})"))
    return Figure(mpl, f"{sentence(title or finding)} {' '.join(sentences)}")


def _styles(names: list[str]) -> list[tuple[str, str]]:
    more = iter(_MORE * (1 + len(names) // len(_MORE)))
    return [_PARTS[name] if name in _PARTS else next(more) for name in names]


def _bar(
    ax: Axes,
    y: int,
    row: Mapping[str, float],
    styles: Mapping[str, tuple[str, str]],
    factor: float,
    widest: float,
    predicted: bool,
) -> None:
    from matplotlib.patches import Rectangle

    left = 0.0
    for name, value in row.items():
        color, hatch = styles[name]
        width = value * factor
        alpha = 0.4 if predicted else 1.0
        ax.barh(y, width, left=left, height=0.6, color=color, hatch=hatch, edgecolor=EDGE, linewidth=0.0, alpha=alpha)
        words = f"{name} {number(width)}"
        if width > 0.0135 * len(words) * widest:
            canvas.write_inside(ax, left + width / 2, y, words, color, bool(hatch) or predicted)
        left += width
    if predicted:
        frame: dict[str, Any] = {
            "fill": False,
            "edgecolor": KINDS["predicted"].color,
            "linestyle": "--",
            "linewidth": 2.0,
            "zorder": 4,
        }
        ax.add_patch(Rectangle((0, y - 0.3), left, 0.6, **frame))


def _legend(
    ax: Axes,
    found: Mapping[str, Mapping[str, float]],
    names: list[str],
    styles: Mapping[str, tuple[str, str]],
    factor: float,
    unit: str,
    framed: bool,
) -> None:
    """With a single row the values are in the legend, since a sliver of a bar couldn't hold them."""
    from matplotlib.patches import Patch

    only = next(iter(found.values())) if len(found) == 1 else None
    handles = []
    for name in names:
        words = name
        if only is not None:
            words = f"{name} {number(only[name] * factor)} {unit}"
        handles.append(Patch(facecolor=styles[name][0], hatch=styles[name][1], edgecolor=EDGE, label=words))
    if framed:
        handles.append(
            Patch(fill=False, edgecolor=KINDS["predicted"].color, linestyle="--", linewidth=2.0, label="predicted")
        )
    columns = 3 if only is not None and len(handles) > 3 else 5
    canvas.legend(ax, handles=handles, ncols=columns, **canvas.ABOVE, **canvas.FILLED)


def _finding(
    found: Mapping[str, Mapping[str, float]],
    totals: Mapping[str, float],
    predicted: Collection[str],
    factor: float,
    unit: str,
) -> str:
    if len(found) == 1:
        label, row = next(iter(found.items()))
        name = max(row, key=lambda k: row[k])
        share = row[name] / totals[label] if totals[label] else 0.0
        return f"{name} takes {share:.0%} of {label}"
    measured = [f"{label} {number(total * factor)} {unit}" for label, total in totals.items() if label not in predicted]
    return "; ".join(measured or [f"{label} {number(total * factor)} {unit}" for label, total in totals.items()])
