"""What all figures share: a colour, marker and line for each kind of number, axes, legends, wording, and `Figure`."""

from __future__ import annotations

import base64
import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..results.provenance import KINDS as PROVENANCE_KINDS
from ..results.samples import Samples
from ..show.table import fold
from ..show.units import is_number, number, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

SIZE = (7.0, 4.0)  # inches; shown at 100 pixels an inch
DPI = 200  # stored with twice the pixels, so that it stays sharp on a dense screen
MARGIN = 8  # pixels around a plot, between its edge and that of its card
CARD = f"max-width:100%;height:auto;box-sizing:border-box;padding:{MARGIN}px;background:#fff;border-radius:8px"

# The palette of Okabe and Ito, which readers with any kind of colour vision can tell apart.
BLUE, SKY, VERMILION, ORANGE = "#0072B2", "#56B4E9", "#D55E00", "#E69F00"
GREEN, PURPLE, YELLOW, GREY, INK = "#009E73", "#CC79A7", "#F0E442", "#999999", "#222222"
RUST = "#B34700"  # vermilion, dark enough for words on white


@dataclass(frozen=True)
class Look:
    """How to draw one kind of number. `shades` are for several series of that kind; the first is the kind's own
    colour."""

    marker: str
    line: str
    width: float
    shades: tuple[str, ...]
    hollow: bool = False

    @property
    def color(self) -> str:
        return self.shades[0]

    def style(self, series: int = 0, widen: float = 0.0) -> dict[str, Any]:
        """Keyword arguments for `Axes.plot`. Each later series is `widen` points wider and lies underneath, so that
        curves on top of each other all show."""
        color = self.shades[series % len(self.shades)]
        more = widen * series
        line: Any = (0, (1, 2.5 * series)) if series and self.line == ":" else self.line  # dots further apart
        style: dict[str, Any] = {
            "color": color,
            "linestyle": line,
            "linewidth": self.width + more,
            "zorder": 3 - 0.1 * series,
        }
        if self.marker:
            style |= {
                "marker": self.marker,
                "markersize": 7 + more,
                "markerfacecolor": "white" if self.hollow else color,
                "markeredgecolor": color,
            }
        return style


KINDS = {
    "measured": Look("o", "-", 2.0, (BLUE, SKY, "#004266", "#9AD0F0")),
    "predicted": Look("", "--", 2.2, (ORANGE, "#9C6B00", "#F5C766")),
    "guess": Look("x", "none", 0.0, ("black",)),
    "recorded": Look("s", "-", 1.0, (GREEN, "#006B4F", "#66C9AE")),
    "published": Look("D", "none", 1.0, (PURPLE, "#8C3F68", "#E6B8D0")),
    "emulated": Look("o", ":", 1.8, (BLUE, SKY, "#004266"), hollow=True),
    "mistake": Look("X", "-", 1.6, (VERMILION, "#F2A072")),
    "ideal": Look("", "-", 1.0, (GREY,)),
}
assert set(PROVENANCE_KINDS) <= set(KINDS)
GUESS = {**KINDS["guess"].style(), "markersize": 10, "markeredgewidth": 2.4, "zorder": 5}  # of a reader's own points
Value = Samples | float


class Figure:
    """A plot, and a sentence that says what it shows.

    The title already states the finding, so the sentence isn't repeated in print: it's the alternative text, and
    unfolds below the plot on a click on *describe*, as `sources` do. Terminals and `print` get the sentence.
    `savefig(path)` writes a PNG with the sentence inside. Change `mpl`, the matplotlib figure, as you like.

    The plot lies on a white card with room around it, which is invisible on a light page and has round corners on a
    dark one. Its colours are chosen for white: no grey for axes and words can be read on white and on black alike.
    """

    def __init__(self, mpl: MplFigure, summary: str, sources: Sequence[str] = ()):
        self.mpl = mpl
        self.summary = summary
        self.sources = list(dict.fromkeys(sources))
        self.below: Sequence[Any] = ()  # what a page says under it: `pages.figure_first`

    def png(self, dpi: int = DPI) -> bytes:
        buffer = BytesIO()
        self.mpl.savefig(buffer, format="png", dpi=dpi, metadata={"Description": self.summary})
        return buffer.getvalue()

    def savefig(self, path: str | Path, dpi: int = DPI) -> None:
        """Write the plot as a PNG. Raises ValueError for any other file ending."""
        if Path(path).suffix.lower() != ".png":
            raise ValueError(f"figures are saved as PNG; call it {Path(path).with_suffix('.png').name!r}")
        Path(path).write_bytes(self.png(dpi))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        picture = base64.b64encode(self.png()).decode()
        width, height = (round(100 * inches) for inches in self.mpl.get_size_inches())
        shown = html.escape(self.summary, quote=True)
        folds = fold("describe", shown)
        if self.sources:
            listed = "".join(f"<li>{html.escape(s)}</li>" for s in self.sources)
            folds += fold("sources of the published numbers", f"<ul style='margin:.2em 0'>{listed}</ul>")
        page = (
            f"<figure style='margin:.3em 0'><img alt=\"{shown}\" width='{width + 2 * MARGIN}' style='{CARD}'"
            f" src='data:image/png;base64,{picture}'><figcaption"
            f" style='max-width:{width}px;margin:.2em {MARGIN}px'>{folds}</figcaption></figure>"
        )
        page += "".join(thing._repr_html_() for thing in self.below)
        size = {"width": width, "height": height, "alt": self.summary}
        text = "\n".join([self.summary, *map(str, self.below)])
        return {"text/html": page, "image/png": picture, "text/plain": text}, {"image/png": size}

    def __repr__(self) -> str:
        return self.summary


def new_axes(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = SIZE, **subplots: Any
) -> tuple[MplFigure, list[Axes]]:
    """A figure of the course's size and its axes, row by row. pyplot doesn't know about it, so it's shown only once."""
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
    """Write the finding above everything, in at most two lines, neither of which is left with a word or two."""
    text = text[:1].upper() + text[1:]
    even = (width for width in range(len(text) // 2, 68) if len(textwrap.wrap(text, width)) <= 2)
    shown = textwrap.wrap(text, 68 if len(text) <= 68 else next(even, 68), max_lines=2, placeholder=" …")
    mpl.suptitle("\n".join(shown), x=0.012, ha="left", fontsize=12, fontweight="bold", color=INK)


_LEGEND_ORDER = {
    "measured": 0,
    "emulated": 0.5,
    "predicted": 1,
    "your": 2,
    "recorded": 3,
    "published": 4,
    "mistake": 4.5,
    "ideal": 5,
}


def legend(ax: Axes, **options: Any) -> None:
    """A legend of everything labelled, starting with what was measured here."""
    if "handles" not in options:
        entries = sorted(
            zip(*ax.get_legend_handles_labels(), strict=True),
            key=lambda e: _LEGEND_ORDER.get(e[1].split()[0].rstrip(":"), 3),
        )
        options |= {"handles": [h for h, _ in entries], "labels": [text for _, text in entries]}
    ax.legend(
        **{"frameon": True, "framealpha": 0.9, "edgecolor": "none", "fontsize": 9, "handlelength": 2.4, **options}
    )


# Places a legend between title and axes, where it hides no data.
ABOVE: dict[str, Any] = {
    "loc": "lower left",
    "bbox_to_anchor": (-0.01, 1.0),
    "borderaxespad": 0.2,
    "columnspacing": 1.6,
    "borderpad": 0.2,
}
FILLED: dict[str, Any] = {"handlelength": 1.8, "handleheight": 1.1}  # for legends of filled areas


def legend_above(ax: Axes, columns: int = 4, **options: Any) -> None:
    """A legend between title and axes, in two columns if more wouldn't fit."""
    labels = [h.get_label() for h in options["handles"]] if "handles" in options else ax.get_legend_handles_labels()[1]
    if sum(map(len, labels)) + 8 * len(labels) > 88:
        columns = 2
    columns = min(columns, max(1, len(labels)))
    legend(ax, ncols=columns, **ABOVE, **options)


def legend_below(mpl: MplFigure, handles: Sequence[Any], columns: int = 1, **options: Any) -> None:
    """A legend under all axes of a figure, without a frame."""
    place = {"loc": "outside lower left", "borderaxespad": 0, "fontsize": 9}
    mpl.legend(handles=list(handles), ncols=columns, frameon=False, **{**place, **options})


def name_ticks(ax: Axes, labels: Sequence[Any], width: int) -> None:
    """A tick for each label, in lines of at most `width` characters."""
    words = ["\n".join(textwrap.wrap(str(label), width)) or str(label) for label in labels]
    ax.set_xticks(range(len(labels)), words, fontsize=10)
    ax.set_xlim(-0.6, max(len(labels), 2) - 0.4)


def ink_on(fill: str) -> str:
    """White or our ink, whichever can be read better on `fill`."""
    from matplotlib.colors import to_rgb

    def light(color: str) -> float:  # relative luminance, as WCAG defines it
        linear = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color))
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05

    return "white" if 1.05 / light(fill) > light(fill) / light(INK) else INK


def write_inside(ax: Axes, x: float, y: float, text: str, fill: str, boxed: bool) -> None:
    """Write text in the middle of a filled area. Where it's hatched or pale, the text is `boxed`: on a light tint of
    its fill, so that a narrow area keeps its colour."""
    from matplotlib.colors import to_rgb

    tint = tuple(0.45 * channel + 0.55 for channel in to_rgb(fill))
    box = {"facecolor": tint, "edgecolor": "none", "pad": 1.0} if boxed else None
    place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5, "bbox": box, "clip_on": True}
    ax.text(x, y, text, color=INK if boxed else ink_on(fill), **place)


def kind_of(value: Value) -> str:
    return value.provenance.kind if isinstance(value, Samples) else "measured"


def provenance_words(value: Value) -> str:
    """The kind, and the machine if it wasn't measured here."""
    if not isinstance(value, Samples) or value.provenance.kind in ("measured", "predicted"):
        return kind_of(value)
    return f"{value.provenance.kind} on {value.provenance.machine}"


def legend_words(value: Value) -> str:
    """The provenance, and what is drawn of repeated measurements. (Emulated steps repeat to the last digits.)"""
    repeated = isinstance(value, Samples) and len(value) > 1 and kind_of(value) == "measured"
    return provenance_words(value) + " (median, 25% to 75%)" * repeated


def named_kind(label: str, value: Value) -> tuple[str, str, str]:
    """A curve's name, kind and legend. The kind is the start of the label (`published: H100`), or else that of
    `value`."""
    head, _, rest = label.partition(":")
    if rest and head in KINDS:
        return rest.strip(), head, f"{head}: {rest.strip()}"
    return label, kind_of(value), f"{provenance_words(value)}: {label}"


def middle(value: Value) -> float:
    return value.median if isinstance(value, Samples) else float(value)


def spread(value: Value) -> tuple[float, float]:
    """The lower and the upper quartile; a plain number has no spread."""
    return (value.q1, value.q3) if isinstance(value, Samples) else (float(value), float(value))


def errorbars(
    ax: Axes, x: Sequence[float], values: Sequence[Value], kind: str, factor: float = 1.0, **style: Any
) -> None:
    """Draw medians in the look of their kind, with error bars from 25% to 75%. `style` overrides that look."""
    y = [middle(v) * factor for v in values]
    ends = [spread(v) for v in values]
    err = [
        [m - low * factor for m, (low, _) in zip(y, ends, strict=True)],
        [high * factor - m for m, (_, high) in zip(y, ends, strict=True)],
    ]
    ax.errorbar(x, y, yerr=err, **{**KINDS[kind].style(), "capsize": 4, "elinewidth": 1.4, **style})


def made_guesses(guess: Mapping[Any, Any] | None, known: Sequence[Any]) -> tuple[dict[Any, float], bool]:
    """The guesses that the reader filled in, and whether they were asked but left all of them open (`...` or None).

    Raises KeyError for a guess about something that isn't drawn, and TypeError for one that isn't a number.
    """
    made: dict[Any, float] = {}
    for key, value in (guess or {}).items():
        if key not in known:
            raise KeyError(
                f"your guess is about {key!r}, which this figure does not show; it shows {', '.join(map(repr, known))}"
            )
        if value is ... or value is None:
            continue
        if not is_number(value):
            raise TypeError(f"write your guess for {key!r} as a number; got {value!r}")
        made[key] = float(value)
    return made, guess is not None and not made


def log_axis(ax: Axes, which: Literal["x", "y"], unit: str) -> None:
    """Make an axis logarithmic. Bytes go by powers of 2, in KiB and MiB. In seconds or B/s each tick gets the unit that
    suits it. Without a unit, ticks are plain numbers unless they're very small or very large."""
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
        powers = (
            axis.get_major_formatter()
        )  # only very small and very large numbers are easier to read as powers of ten
        axis.set_major_formatter(
            FuncFormatter(lambda value, at: number(value) if 1e-2 <= value < 1e5 else powers(value, at))
        )


RATIO_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def ratio_axes(
    ax: Axes, rows: Sequence[str], ends: Sequence[float], room: float, more_ticks: Sequence[float] = ()
) -> None:
    """Named rows over a logarithmic axis around 1, where twice as fast and half as fast lie equally far from it. It
    reaches `room` times beyond the lowest and the highest of `ends`."""
    low, high = min(ends) / room, max(ends) * room
    ax.axvline(1, color=INK, linewidth=1)
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    shown = [t for t in (*RATIO_TICKS, *more_ticks) if low <= t <= high]
    ax.set_xticks(shown, [f"{t:g}" for t in shown])
    ax.minorticks_off()
    ax.set_yticks(range(len(rows)), rows, fontsize=10)
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    legend_above(ax)


def listing(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def sentence(text: str) -> str:
    """`text` with a capital at the start and a full stop at the end."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
