"""A histogram of magnitudes on a logarithmic axis, with the zones that a number format cannot hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..predict.number_formats import Format
from . import look
from .look import GREY, KINDS, VERMILION, Figure, sentence


def histogram(counts: Mapping[str, Mapping[int, float]], held: Format, xlabel: str = "size of a gradient", title: str | None = None) -> Figure:
    """Shares of numbers by their size, in bins of one power of two, and the zones in which `held` makes them zero or infinite.

    `counts` maps a label to counts by exponent: `{-20: 7}` are 7 numbers from 2**-20 to below 2**-19. Each row is divided by its sum. Raises ValueError
    without a count.
    """
    totals = {label: sum(row.values()) for label, row in counts.items()}
    if not totals or min(totals.values()) <= 0:
        raise ValueError("histogram() needs at least one row, and a count above zero in each")
    low_end, high_end = held.smallest / 2, held.max
    mpl, axes = look.new_axes(len(counts), size=(look.SIZE[0], 1.3 + 1.25 * len(counts)), sharex=True, sharey=True)
    exponents = [e for row in counts.values() for e, n in row.items() if n]
    first = min(min(exponents), math.frexp(low_end)[1] - 4)
    last = max(max(exponents) + 1, math.frexp(high_end)[1] + 2)
    parts = []
    for ax, (label, row) in zip(axes, counts.items(), strict=True):
        for e, n in row.items():
            middle = 2.0 ** (e + 0.5)
            color = KINDS["measured"].color if low_end <= middle <= high_end else VERMILION
            ax.bar(2.0**e, n / totals[label], width=2.0**e * 0.92, align="edge", color=color, hatch="" if color != VERMILION else "///", edgecolor="white")
        ax.axvspan(2.0**first, low_end, color=GREY, alpha=0.22, linewidth=0)
        ax.axvspan(high_end, 2.0**last, color=GREY, alpha=0.22, linewidth=0)
        lost, over = lost_shares(row, held)
        ax.set_ylabel("share")
        ax.set_title(label, fontsize=10, fontweight="bold", pad=3)
        if lost:
            ax.text(2.0**first * 1.3, 0.97, f"become 0: {lost:.2%}", transform=ax.get_xaxis_transform(), ha="left", va="top", fontsize=9)
        if over:
            ax.text(2.0**last / 1.3, 0.97, f"overflow: {over:.2%}", transform=ax.get_xaxis_transform(), ha="right", va="top", fontsize=9)
        parts.append(f"{label}: {lost:.2%} become 0" + (f", {over:.2%} overflow" if over else ""))
    axes[-1].set_ylim(top=1.3 * max(n / totals[label] for label, row in counts.items() for n in row.values()))
    axes[-1].set_xscale("log", base=2)
    axes[-1].set_xlim(2.0**first, 2.0**last)
    axes[-1].set_xlabel(f"{xlabel} (grey: not in {held.name})")
    look.title(mpl, title or f"What {held.name} makes of them")
    return Figure(mpl, sentence(f"{xlabel}, in {held.name}; " + "; ".join(parts)))


def lost_shares(row: Mapping[int, float], held: Format) -> tuple[float, float]:
    """The shares that become zero and that overflow, by the middle of their bins."""
    total = sum(row.values())
    low = sum(n for e, n in row.items() if 2.0 ** (e + 0.5) < held.smallest / 2)
    return low / total, sum(n for e, n in row.items() if 2.0 ** (e + 0.5) > held.max) / total
