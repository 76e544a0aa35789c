"""The look that all figures share: one colour, marker and line for each kind of number, and a `Figure` that reads itself out."""

from __future__ import annotations

import base64
import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..run import KINDS as PROVENANCE_KINDS
from ..run import Samples
from ..units import number, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

SIZE = (7.0, 4.0)  # inches; shown at 100 pixels an inch
DPI = 200  # stored with twice the pixels, so that it stays sharp on a dense screen

# The palette of Okabe and Ito, which readers with any kind of colour vision can tell apart.
BLUE, SKY, VERMILION, ORANGE = "#0072B2", "#56B4E9", "#D55E00", "#E69F00"
GREEN, PURPLE, YELLOW, GREY, INK = "#009E73", "#CC79A7", "#F0E442", "#999999", "#222222"


@dataclass(frozen=True)
class Look:
    """How one kind of number is drawn; `shades` serve several series of the same kind, the kind's own colour first."""

    marker: str
    line: str
    width: float
    shades: tuple[str, ...]
    hollow: bool = False

    @property
    def color(self) -> str:
        return self.shades[0]

    def style(self, series: int = 0, widen: float = 0.0) -> dict[str, Any]:
        """Keyword arguments for `Axes.plot`. A later series is wider by `widen` points and lies below, so that curves in one place all show."""
        color = self.shades[series % len(self.shades)]
        more = widen * series
        style: dict[str, Any] = {"color": color, "linestyle": self.line, "linewidth": self.width + more, "zorder": 3 - 0.1 * series}
        if self.marker:
            style |= {"marker": self.marker, "markersize": 7 + more, "markerfacecolor": "white" if self.hollow else color, "markeredgecolor": color}
        return style


KINDS = {
    "measured": Look("o", "-", 2.0, (BLUE, SKY, "#004266", "#9AD0F0")),
    "predicted": Look("", "--", 2.2, (ORANGE, "#9C6B00", "#F5C766")),
    "guess": Look("x", "none", 0.0, ("black",)),
    "recorded": Look("s", "-", 1.0, (GREEN, "#006B4F", "#66C9AE")),
    "published": Look("D", "none", 1.0, (PURPLE, "#8C3F68", "#E6B8D0")),
    "emulated": Look("o", ":", 1.8, (BLUE, SKY, "#004266"), hollow=True),
    "ideal": Look("", "-", 1.0, (GREY,)),
}
assert set(PROVENANCE_KINDS) <= set(KINDS)


class Figure:
    """A drawing with the sentence that says what it shows.

    Jupyter shows the picture with the sentence below it; a screen reader, a terminal and `print` get the sentence. `sources`
    are listed folded. `savefig(path)` writes a PNG that carries the sentence; `mpl` is the matplotlib figure, to change by hand.
    """

    def __init__(self, mpl: MplFigure, summary: str, sources: Sequence[str] = ()):
        self.mpl = mpl
        self.summary = summary
        self.sources = list(dict.fromkeys(sources))

    def png(self, dpi: int = DPI) -> bytes:
        buffer = BytesIO()
        self.mpl.savefig(buffer, format="png", dpi=dpi, metadata={"Description": self.summary})
        return buffer.getvalue()

    def savefig(self, path: str | Path, dpi: int = DPI) -> None:
        """Write the picture as PNG. Raises ValueError for another ending."""
        if Path(path).suffix.lower() != ".png":
            raise ValueError(f"figures are saved as PNG; call it {Path(path).with_suffix('.png').name!r}")
        Path(path).write_bytes(self.png(dpi))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        picture = base64.b64encode(self.png()).decode()
        width, height = (round(100 * inches) for inches in self.mpl.get_size_inches())
        shown = html.escape(self.summary, quote=True)
        listed = "".join(f"<li>{html.escape(s)}</li>" for s in self.sources)
        sources = f"<details style='margin-top:.2em'><summary>Sources of the published numbers</summary><ul>{listed}</ul></details>" if listed else ""
        page = (
            f"<figure style='margin:0'><img alt=\"{shown}\" width='{width}' style='max-width:100%;height:auto' src='data:image/png;base64,{picture}'>"
            f"<figcaption style='max-width:{width}px'>{shown}{sources}</figcaption></figure>"
        )
        size = {"width": width, "height": height, "alt": self.summary}
        return {"text/html": page, "image/png": picture, "text/plain": self.summary}, {"image/png": size}

    def __repr__(self) -> str:
        return self.summary


def new_axes(rows: int = 1, columns: int = 1, size: tuple[float, float] = SIZE, **subplots: Any) -> tuple[MplFigure, list[Axes]]:
    """A figure of the course's size and its axes, row by row. pyplot keeps no hold of it, so it is shown once."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Mpl

    mpl = Mpl(figsize=size, facecolor="white")
    mpl.set_layout_engine("constrained", w_pad=0.07, h_pad=0.07)
    FigureCanvasAgg(mpl)
    axes = list(mpl.subplots(rows, columns, squeeze=False, **subplots).flat)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color("#888888")
        ax.tick_params(color="#888888", labelcolor=INK, labelsize=9.5)
        ax.set_axisbelow(True)
    return mpl, axes


def title(mpl: MplFigure, text: str) -> None:
    """The finding, above everything, in at most two lines."""
    text = text[:1].upper() + text[1:]
    lines = textwrap.wrap(text, 68)
    shown = lines if len(lines) <= 2 else textwrap.wrap(text, 68, max_lines=2, placeholder=" …")
    mpl.suptitle("\n".join(shown), x=0.012, ha="left", fontsize=12, fontweight="bold", color=INK)


_LEGEND_ORDER = {"measured": 0, "emulated": 0, "predicted": 1, "your": 2, "recorded": 3, "published": 4, "ideal": 5}


def legend(ax: Axes, **options: Any) -> None:
    """The legend of what was labelled, what was seen here first."""
    if "handles" not in options:
        entries = sorted(zip(*ax.get_legend_handles_labels(), strict=True), key=lambda e: _LEGEND_ORDER.get(e[1].split()[0].rstrip(":"), 3))
        options |= {"handles": [h for h, _ in entries], "labels": [text for _, text in entries]}
    ax.legend(**{"frameon": True, "framealpha": 0.9, "edgecolor": "none", "fontsize": 9, "handlelength": 2.4, **options})


def legend_above(ax: Axes, columns: int = 4, **options: Any) -> None:
    """A legend between title and axes, where it hides no data."""
    labels = [h.get_label() for h in options["handles"]] if "handles" in options else ax.get_legend_handles_labels()[1]
    if sum(map(len, labels)) + 8 * len(labels) > 88:  # wider than the axes
        columns = 2
    columns = min(columns, max(1, len(labels)))
    legend(ax, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderaxespad=0.2, columnspacing=1.6, borderpad=0.2, **options)


def kind_of(value: Samples | float) -> str:
    return value.provenance.kind if isinstance(value, Samples) else "measured"


def provenance_words(value: Samples | float) -> str:
    """The kind, and for what was not measured here the machine."""
    if not isinstance(value, Samples) or value.provenance.kind in ("measured", "predicted"):
        return kind_of(value)
    return f"{value.provenance.kind} on {value.provenance.machine}"


def middle(value: Samples | float) -> float:
    return value.median if isinstance(value, Samples) else float(value)


def spread(value: Samples | float) -> tuple[float, float]:
    """The lower and the upper quartile; a plain number has no spread."""
    return (value.q1, value.q3) if isinstance(value, Samples) else (float(value), float(value))


def errorbars(ax: Axes, x: Sequence[float], values: Sequence[Samples | float], kind: str, factor: float = 1.0, **style: Any) -> None:
    """Medians in the look of their kind, with error bars from 25% to 75%. `style` is added to that look."""
    y = [middle(v) * factor for v in values]
    ends = [spread(v) for v in values]
    err = [[m - low * factor for m, (low, _) in zip(y, ends, strict=True)], [high * factor - m for m, (_, high) in zip(y, ends, strict=True)]]
    ax.errorbar(x, y, yerr=err, **{**KINDS[kind].style(), "capsize": 4, "elinewidth": 1.4, **style})


def made_guesses(guess: Mapping[Any, Any] | None, known: Sequence[Any]) -> tuple[dict[Any, float], bool]:
    """The guesses that were filled in, and whether one was asked for and left open (`...` or None).

    Raises KeyError for a guess about something that is not drawn, TypeError for one that is no number.
    """
    made: dict[Any, float] = {}
    for key, value in (guess or {}).items():
        if key not in known:
            raise KeyError(f"guess is about {key!r}, which this figure does not show; it shows {', '.join(map(repr, known))}")
        if value is ... or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"write your guess for {key!r} as a number; got {value!r}")
        made[key] = float(value)
    return made, guess is not None and not made


def log_axis(ax: Axes, which: Literal["x", "y"], unit: str) -> None:
    """A logarithmic axis; in bytes it goes by powers of 2 and its ticks read KiB and MiB, in seconds and B/s each tick has the unit that fits it.

    Without a unit ticks are plain numbers where one would write them so."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    set_scale, axis = (ax.set_xscale, ax.xaxis) if which == "x" else (ax.set_yscale, ax.yaxis)
    if unit == "bytes":
        set_scale("log", base=2)
        axis.set_major_locator(LogLocator(base=4.0, numticks=10))
        axis.set_minor_locator(NullLocator())
    else:
        set_scale("log")
    if unit:
        axis.set_major_formatter(FuncFormatter(lambda value, _: readable(unit, value).replace("bytes", "B")))
    else:
        powers = axis.get_major_formatter()  # only very small and very large numbers are easier to read as powers of ten
        axis.set_major_formatter(FuncFormatter(lambda value, at: number(value) if 1e-2 <= value < 1e5 else powers(value, at)))


def listing(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def sentence(text: str) -> str:
    """With a capital at the start and a full stop at the end."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
