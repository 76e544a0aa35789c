"""A timeline of what every rank does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..results.spans import Interval, Span, covered, intersection, intervals
from ..show.units import number, readable_unit
from . import canvas
from .canvas import Figure, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHAT = {  # colour, hatch: never colour alone
    "compute": (canvas.BLUE, ""),
    "communication": (canvas.VERMILION, "///"),
    "waiting": ("#BDBDBD", "..."),
    "loading": (canvas.YELLOW, "\\\\\\"),
}
EDGE = "#FFFFFF99"  # also the colour of the hatching: light, so that the colours stay


def rank_timeline(
    spans: Iterable[Span], title: str | None = None, kind: str = "", names: Mapping[int, str] | None = None
) -> Figure:
    """Draw what every rank does over time, rank 0 at the top.

    A span is (rank, start_s, end_s, what, label). Times are in seconds on a common clock, and the axis begins at the
    first start. `what` is compute, communication, waiting or loading. The label is written where it fits. Communication
    during something else is drawn below it, so that you see what hides it; simultaneous collectives share that line.
    `kind` says where the times come from, for example `predicted`, and appears next to their unit. `names` are for rows
    that aren't ranks, for example the workers of a loader. Raises ValueError for an unknown `what`, a span that ends
    before it starts, or no span.
    """
    rows = sorted(spans, key=lambda s: (s[0], s[1]))
    named = {rank: (names or {}).get(rank, f"rank {rank}") for rank, *_ in rows}
    if not rows:
        raise ValueError("rank_timeline() needs at least one span")
    for rank, start, end, what, _ in rows:
        if what not in WHAT:
            raise ValueError(f"a span can be {', '.join([*WHAT][:-1])} or {[*WHAT][-1]}; rank {rank} has {what!r}")
        if end < start:
            raise ValueError(f"a span of rank {rank} ends at {end} s, before it starts at {start} s")
    ranks = sorted({s[0] for s in rows})
    zero, last = min(s[1] for s in rows), max(s[2] for s in rows)
    length = last - zero
    factor, unit = readable_unit("s", length)
    split = {r: bool(_hidden(rows, r, *(w for w in WHAT if w != "communication"))) for r in ranks}

    mpl, (ax,) = canvas.new_axes(size=(canvas.SIZE[0], max(canvas.SIZE[1], 0.9 + 0.45 * len(ranks))))
    for i in range(0, len(ranks), 2):  # a band behind every other rank, so that its two lines are seen as one
        ax.axhspan(i - 0.5, i + 0.5, color="#F5F5F5", zorder=0, linewidth=0)
    shares = _shares(rows)
    for (rank, start, end, what, label), (place, places) in zip(rows, shares, strict=True):
        y, height = ranks.index(rank) - 0.38, 0.76
        if split[rank]:
            height = 0.37
            y += 0.39 if what == "communication" else 0.0
        height /= places
        y += place * height
        color, hatch = WHAT[what]
        edge = 0.6 if end - start > 0.006 * length else 0.0  # a sliver would be all edge
        ax.broken_barh(
            [((start - zero) * factor, (end - start) * factor)],
            (y, height),
            facecolor=color,
            hatch=hatch,
            edgecolor=EDGE,
            linewidth=edge,
        )
        if label and places < 3 and (end - start) / length > 0.0115 * len(label):
            middle = ((start + end) / 2 - zero) * factor
            canvas.write_inside(ax, middle, y + height / 2, label, color, bool(hatch))
    ax.set_yticks(range(len(ranks)), [named[r] for r in ranks])
    ax.set_ylim(len(ranks) - 0.5, -0.5)
    ax.set_xlim(0, length * factor * 1.005 or 1)
    ax.set_xlabel(f"{kind} time ({unit})".strip())
    ax.tick_params(axis="y", length=0)
    _what_legend(ax, [what for what in WHAT if any(s[3] == what for s in rows)])
    finding = _timeline_finding(rows, named, length)
    canvas.title(mpl, title or finding)

    parts = []
    for rank in ranks:
        mine = [s for s in rows if s[0] == rank]
        doing = [
            f"{what} {covered(intervals(mine, rank, what)) / length:.0%}" if length else what
            for what in WHAT
            if any(s[3] == what for s in mine)
        ]
        parts.append(f"{named[rank]} {', '.join(doing)}")
    whole = f"Of {number(length * factor)} {unit} {kind}".strip()
    return Figure(mpl, f"{sentence(finding)} {sentence(f'{whole}: ' + '; '.join(parts))}")


def _what_legend(ax: Axes, present: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=WHAT[w][0], hatch=WHAT[w][1], edgecolor=EDGE, label=w) for w in present]
    canvas.legend_above(ax, handles=handles, **canvas.FILLED)


def _hidden(rows: Sequence[Span], rank: int, *behind: str) -> list[Interval]:
    """The time during which a rank communicates and does something else."""
    return intersection(intervals(rows, rank, "communication"), intervals(rows, rank, *behind))


def _shares(rows: Sequence[Span]) -> list[tuple[int, int]]:
    """For each span, its place among those that share its line at the same time, and the number of places. A span alone
    has (0, 1)."""
    found: list[tuple[int, int]] = [(0, 1)] * len(rows)
    lines: dict[tuple[int, bool], list[int]] = {}
    for i, (rank, _, _, what, _) in enumerate(rows):
        lines.setdefault((rank, what == "communication"), []).append(i)
    for members in lines.values():
        together: list[int] = []
        ends: list[float] = []  # of the last span in each place
        for i in sorted(members, key=lambda i: rows[i][1]):
            _, start, end, _, _ = rows[i]
            tiny = 1e-9 * max(1.0, abs(end))  # a schedule's times are sums, and touch within rounding
            if ends and start >= max(ends) - tiny:
                together, ends = [], []
            place = next((k for k, busy in enumerate(ends) if busy <= start + tiny), len(ends))
            ends[place : place + 1] = [end]
            together.append(i)
            found[i] = (place, 1)
            for k in together:
                found[k] = (found[k][0], len(ends))
    return found


def _timeline_finding(rows: Sequence[Span], ranks: Mapping[int, str], length: float) -> str:
    waits = {r: covered(intervals(rows, r, "waiting")) for r in ranks}
    longest = max(waits, key=lambda r: waits[r])
    sent = sum(covered(intervals(rows, r, "communication")) for r in ranks)
    hidden = sum(covered(_hidden(rows, r, "compute")) for r in ranks)
    if sent and hidden > 0.01 * sent:
        return f"{hidden / sent:.0%} of the communication is hidden behind compute"
    if waits[longest] and length:
        return f"{ranks[longest][:1].upper()}{ranks[longest][1:]} waits {waits[longest] / length:.0%} of the time"
    if sent and length:
        return f"Communication takes {sent / len(ranks) / length:.0%} of the time, none of it hidden"
    computed = sum(covered(intervals(rows, r, "compute")) for r in ranks)
    return f"Ranks compute {computed / len(ranks) / length:.0%} of the time" if length else "Nothing took any time"
