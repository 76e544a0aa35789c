"""What the operating system does with a copy to the GPU: from pageable memory by way of a staging buffer, from page-locked memory straight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..units import readable
from . import look
from .look import Figure, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = 0.42  # the side of a page, in the units of the drawing, which is 14 wide
FREE: dict[str, Any] = {"facecolor": "#F3F3F3", "edgecolor": "#666666", "linestyle": (0, (3, 2)), "linewidth": 1.2}
LOCKED: dict[str, Any] = {"facecolor": look.SKY, "edgecolor": look.INK, "linestyle": "-", "linewidth": 2.2}
ABSENT: dict[str, Any] = {**FREE, "facecolor": "white", "hatch": "xxx", "edgecolor": "#8C8C8C"}


def pages(pageable_Bps: float | None = None, pinned_Bps: float | None = None, title: str | None = None) -> Figure:
    """How a tensor gets from host to GPU, pageable above and page-locked (pinned) below.

    The rates, where they are given, are those of whole copies and stand at the right. Raises ValueError for a rate that is not above zero.
    """
    for name, rate in (("pageable_Bps", pageable_Bps), ("pinned_Bps", pinned_Bps)):
        if rate is not None and not rate > 0:
            raise ValueError(f"{name} is in bytes per second, above zero; got {rate!r}")
    mpl, (ax,) = look.new_axes()
    ax.axis("off")
    ax.set_xlim(0, 14)
    ax.set_ylim(7.55, 0.2)

    _words(ax, 0, 0.55, "pageable memory (the default)", weight="bold")
    _block(ax, 0.1, 1.15, "the tensor's pages", [FREE, FREE, ABSENT, FREE, FREE, FREE, ABSENT, FREE])
    _arrow(ax, 2.2, 5.15, 1.65, look.VERMILION, "1. the CPU copies,", "piece by piece")
    _block(ax, 5.45, 1.15, "staging buffer", [LOCKED] * 4)
    _arrow(ax, 6.75, 10.6, 1.65, look.BLUE, "2. the copy engine", "of the GPU fetches (DMA)")
    _device(ax, 10.9, 1.05, pageable_Bps)

    ax.plot([0, 14], [3.35, 3.35], color="#DDDDDD", linewidth=1)
    _words(ax, 0, 3.75, "page-locked memory (pinned)", weight="bold")
    _block(ax, 0.1, 4.35, "the tensor's pages", [LOCKED] * 8)
    _arrow(ax, 2.2, 10.6, 4.85, look.BLUE, "the copy engine of the GPU fetches (DMA)", "while the CPU does something else")
    _device(ax, 10.9, 4.25, pinned_Bps)

    for x, style, text in ((0.1, FREE, "may be moved or swapped"), (4.9, ABSENT, "not in memory just now"), (9.5, LOCKED, "locked: stays where it is")):
        _page(ax, x, 6.75, style)
        _words(ax, x + 0.62, 6.96, text)
    look.title(mpl, title or "Pageable memory is copied twice, pinned memory once")
    told = [
        "Above: the pages of a pageable tensor may move or be swapped out, so the CPU first copies them to a page-locked staging buffer, "
        "from which the GPU's copy engine fetches them.",
        "Below: the pages of a pinned tensor stay where they are, so the copy engine fetches them itself and the CPU is free.",
    ]
    rates = [f"{name} {readable('B/s', rate)}" for name, rate in (("pageable", pageable_Bps), ("pinned", pinned_Bps)) if rate is not None]
    return Figure(mpl, " ".join(told + ([sentence(f"Whole copies: {', '.join(rates)}")] if rates else [])))


def _words(ax: Axes, x: float, y: float, text: str, **style: Any) -> None:
    ax.text(x, y, text, **{"fontsize": 9.5, "va": "center", "ha": "left", "color": look.INK, **style})


def _page(ax: Axes, x: float, y: float, style: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), PAGE, PAGE, **style))


def _block(ax: Axes, x: float, y: float, name: str, styles: list[dict[str, Any]]) -> None:
    """Pages in two rows, with a name below."""
    across = len(styles) // 2
    for i, style in enumerate(styles):
        _page(ax, x + (i % across) * (PAGE + 0.08), y + (i // across) * (PAGE + 0.12), style)
    _words(ax, x, y + 2 * PAGE + 0.5, name)


def _arrow(ax: Axes, start: float, end: float, y: float, color: str, above: str, below: str) -> None:
    line = {"arrowstyle": "-|>", "color": color, "linewidth": 2.6, "mutation_scale": 16, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (end, y), (start, y), arrowprops=line)
    middle = (start + end) / 2
    _words(ax, middle, y - 0.35, above, ha="center", color=color)
    _words(ax, middle, y + 0.38, below, ha="center", color=color)


def _device(ax: Axes, x: float, y: float, rate: float | None) -> None:
    from matplotlib.patches import FancyBboxPatch

    ax.add_patch(FancyBboxPatch((x, y), 2.7, 1.1, boxstyle="round,pad=0.05,rounding_size=0.15", facecolor="#EAF3FA", edgecolor=look.BLUE, linewidth=1.6))
    _words(ax, x + 1.35, y + 0.55, "GPU memory", ha="center")
    if rate is not None:
        _words(ax, x + 1.35, y + 1.55, readable("B/s", rate), ha="center", weight="bold")
