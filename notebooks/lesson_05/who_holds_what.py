"""What lesson 05 draws, who holds what: a ring all-reduce step by step, and collectives before and after."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from course_utils.figures import canvas
from course_utils.for_lessons import Figure, listing, number, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = ("#F2F7FB", "#CFE3F2", "#8FBFE0", "#4A97CB", canvas.BLUE)  # from nothing added to everything
NAMES_UP_TO = 4  # ranks; with more, a cell counts them instead of naming each


def ring(held: Sequence[Sequence[Sequence[Collection[int]]]], title: str | None = None) -> Figure:
    """A ring all-reduce, one panel a step: which ranks' numbers are added up in each chunk on each rank.

    `held[step][rank][chunk]` are those ranks, as `predict.ring_held` gives them, or as a real ring reported them; the
    first step is the state before it. A row is a rank, a column a chunk; what came in this step is framed, a chunk in
    which all ranks are added up is dark. Raises ValueError when the steps differ in their ranks or chunks.
    """
    steps = [[[frozenset(chunk) for chunk in rank] for rank in step] for step in held]
    shapes = {(len(step), len(rank)) for step in steps for rank in step}
    if not steps or len(shapes) != 1:
        raise ValueError("ring() needs held[step][rank][chunk] with the same ranks and chunks in every step")
    ((n, chunks),) = shapes
    columns = len(steps) if len(steps) <= 4 else 4 if len(steps) <= 8 else 5
    rows = math.ceil(len(steps) / columns)
    mpl, axes = canvas.new_axes(rows, columns, size=(canvas.SIZE[0], max(2.3, 0.75 + rows * min(2.1, 6.6 / columns))))
    everyone = frozenset(range(n))
    done = None  # the first step after which some chunk is complete
    for i, ax in enumerate(axes):
        if i >= len(steps):
            ax.axis("off")
            continue
        for r, rank in enumerate(steps[i]):
            for c, chunk in enumerate(rank):
                new = i > 0 and chunk != steps[i - 1][r][c]
                _chunk(ax, c, r, chunk, n, new)
        if done is None and any(chunk == everyone for rank in steps[i] for chunk in rank):
            done = i
        what = "before" if i == 0 else f"step {i}: {'add' if i < n else 'copy'}"
        ax.set_title(what, fontsize=9.5, loc="left", color=canvas.INK, pad=3)
        _grid(ax, chunks, n, [f"rank {r}" for r in range(n)] if i % columns == 0 else [""] * n)
    _ring_legend(mpl, n, len(steps) < len(axes))
    last = all(chunk == everyone for rank in steps[-1] for chunk in rank)
    if not last:
        finding = f"After {len(steps) - 1} steps not every rank holds the whole sum"
    elif len(steps) == 1 or done is None:
        finding = "One rank holds the sum from the start"
    else:
        finding = (
            f"{done} step{'s' * (done > 1)} of adding, {len(steps) - 1 - done} of copying, and every rank holds the"
            " whole sum"
        )
    canvas.title(mpl, title or finding)
    parts = [
        f"{n} ranks, {chunks} chunks, {len(steps) - 1} steps, in each of which every rank sends one chunk to the next"
        " rank"
    ]
    if done:
        parts.append(f"after step {done} each rank holds one complete chunk")
    sent = (len(steps) - 1) / chunks
    parts.append(f"in all a rank sends {number(sent)} times its tensor")
    return Figure(mpl, f"{sentence(finding)} {sentence('; '.join(parts))}")


def collectives(exchanges: Mapping[str, tuple[Sequence[Any], Sequence[Any]]], title: str | None = None) -> Figure:
    """What every rank holds before and after each collective: `{"all_reduce": (before, after)}`, where `before[rank]`
    is a number or a list of them.

    What an exchange changed is framed. A rank that holds nothing has an empty list. Raises ValueError without an
    exchange, or when ranks are missing.
    """
    if not exchanges:
        raise ValueError("collectives() needs at least one exchange")
    columns = min(3, len(exchanges))
    rows = math.ceil(len(exchanges) / columns)
    ranks = max(len(before) for before, _ in exchanges.values())
    mpl, axes = canvas.new_axes(rows, columns, size=(canvas.SIZE[0], 0.7 + rows * (0.62 + 0.27 * ranks)))
    told = []
    for ax in axes[len(exchanges) :]:
        ax.axis("off")
    for i, (ax, (name, (before, after))) in enumerate(zip(axes, exchanges.items(), strict=False)):
        if len(before) != len(after):
            raise ValueError(f"{name} has {len(before)} ranks before and {len(after)} after")
        left, right = ([_cells(held) for held in side] for side in (before, after))
        wide = [max(max(map(len, side)), 1) for side in (left, right)]
        for r in range(len(left)):
            for x0, side in ((0.0, left), (wide[0] + 0.9, right)):
                for k, text in enumerate(side[r]):
                    changed = side is right and (
                        k >= len(left[r]) or left[r][k] != text or len(left[r]) != len(right[r])
                    )
                    _box(ax, x0 + k, r, SHADES[1], canvas.INK, text, changed, 10 if max(wide) < 4 else 8.5)
            ax.annotate(
                "",
                (wide[0] + 0.78, r + 0.5),
                (wide[0] + 0.12, r + 0.5),
                arrowprops={"arrowstyle": "-|>", "color": canvas.GREY},
            )
        _grid(
            ax,
            sum(wide) + 0.9,
            len(left),
            [f"rank {r}" for r in range(len(left))] if i % columns == 0 else [""] * len(left),
        )
        ax.set_title(name, fontsize=10.5, loc="left", color=canvas.INK, pad=3)
        told.append(
            f"{name}: "
            + ", ".join(
                f"rank {r} {_words(a)} becomes {_words(b)}" for r, (a, b) in enumerate(zip(left, right, strict=True))
            )
        )
    canvas.title(mpl, title or f"What each rank holds before and after {listing(list(exchanges))}")
    _frame_legend(mpl, "changed by the collective")
    return Figure(mpl, " ".join(sentence(text) for text in told))


def _chunk(ax: Axes, column: int, row: int, ranks: frozenset[int], n: int, new: bool) -> None:
    share = (len(ranks) - 1) / (n - 1) if n > 1 else 1.0
    shade = SHADES[min(len(SHADES) - 1, round(share * (len(SHADES) - 1)))] if ranks else "white"
    whole = len(ranks) == n
    text = _added(ranks, n)
    size = 9.0 if n <= NAMES_UP_TO and len(text) < 6 else 7.0
    _box(ax, column, row, shade, "white" if whole else canvas.INK, text, new, size, bold=whole)


def _added(ranks: frozenset[int], n: int) -> str:
    """The ranks by name, in two lines where there are three; with many ranks, how many."""
    if n > NAMES_UP_TO:
        return str(len(ranks)) if ranks else ""
    if len(ranks) == n and n > 2:
        return "all"
    named = [str(rank) for rank in sorted(ranks)]
    return "+".join(named) if len(named) < 3 else f"{'+'.join(named[:2])}\n+{'+'.join(named[2:])}"


def _box(
    ax: Axes, x: float, y: float, fill: str, ink: str, text: str, framed: bool, size: float, bold: bool = False
) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x + 0.03, y + 0.03), 0.94, 0.94, facecolor=fill, edgecolor="white", linewidth=0.8))
    if framed:
        ax.add_patch(
            Rectangle(
                (x + 0.07, y + 0.07), 0.86, 0.86, facecolor="none", edgecolor=canvas.VERMILION, linewidth=2.0, zorder=4
            )
        )
    ax.text(
        x + 0.5,
        y + 0.52,
        text,
        ha="center",
        va="center",
        fontsize=size,
        color=ink,
        fontweight="bold" if bold else "normal",
        zorder=5,
    )


def _grid(ax: Axes, width: float, height: int, names: Sequence[str]) -> None:
    ax.set_xlim(-0.05, width + 0.05)
    ax.set_ylim(height + 0.05, -0.05)
    ax.set_yticks([r + 0.5 for r in range(height)], list(names), fontsize=8.5 if height <= NAMES_UP_TO else 7)
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)


def _ring_legend(mpl: Any, n: int, room: bool) -> None:
    inside = (
        f"in a cell: the ranks added up there, e.g. 0+1; dark: all {n}"
        if n <= NAMES_UP_TO
        else f"in a cell: how many ranks are added up there; dark: all {n}"
    )
    _frame_legend(mpl, f"came in this step, from the rank above (to rank 0 from rank {n - 1})", inside)


def _frame_legend(mpl: Any, text: str, more: str = "") -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor="white", edgecolor=canvas.VERMILION, linewidth=2.0, label=text)]
    if more:
        handles.append(Patch(facecolor=SHADES[1], edgecolor="none", label=more))
    canvas.legend_below(mpl, handles, fontsize=8.5)


def _cells(held: Any) -> list[str]:
    values = held if isinstance(held, (list, tuple)) else [held]
    return [f"{v:g}" if isinstance(v, (int, float)) else str(v) for v in values]


def _words(cells: Sequence[str]) -> str:
    return f"[{', '.join(cells)}]"
