"""Figures of what ranks do: a timeline of all ranks, and which samples each of them sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..spans import Interval, Span, common, covered, of
from ..units import number, readable_unit
from . import look
from .look import Figure, listing, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHAT = {  # colour, hatch: never colour alone
    "compute": (look.BLUE, ""),
    "communication": (look.VERMILION, "///"),
    "waiting": ("#BDBDBD", "..."),
    "loading": (look.YELLOW, "\\\\\\"),
}
EDGE = "#FFFFFF99"  # also the colour of the hatching: light, so that the colours stay
Order = Sequence[Sequence[Sequence[int]]]


def rank_timeline(spans: Iterable[Span], title: str | None = None, kind: str = "", names: Mapping[int, str] | None = None) -> Figure:
    """What every rank does when, ranks from top to bottom.

    A span is (rank, start_s, end_s, what, label): times in seconds on a common clock, drawn from the first start on; `what` is compute,
    communication, waiting or loading; the label is written where it fits. Communication that runs beside something else is drawn
    below it, so that hiding it can be seen; collectives that run at once share their line. `kind`
    is where the times come from, for example `predicted`, and stands beside their unit. `names` are of rows that are no ranks, for example of the
    workers of a loader. Raises ValueError for an unknown `what`, a span that
    ends before it starts, or no span.
    """
    rows = sorted(spans, key=lambda s: (s[0], s[1]))
    named = {rank: (names or {}).get(rank, f"rank {rank}") for rank, *_ in rows}
    if not rows:
        raise ValueError("rank_timeline() needs at least one span")
    for rank, start, end, what, _ in rows:
        if what not in WHAT:
            raise ValueError(f"a span is {listing(list(WHAT))}; rank {rank} has {what!r}")
        if end < start:
            raise ValueError(f"a span of rank {rank} ends at {end} s, before it starts at {start} s")
    ranks = sorted({s[0] for s in rows})
    zero, last = min(s[1] for s in rows), max(s[2] for s in rows)
    length = last - zero
    factor, unit = readable_unit("s", length)
    split = {r: bool(_hidden(rows, r, *(w for w in WHAT if w != "communication"))) for r in ranks}

    mpl, (ax,) = look.new_axes(size=(look.SIZE[0], max(look.SIZE[1], 0.9 + 0.45 * len(ranks))))
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
        ax.broken_barh([((start - zero) * factor, (end - start) * factor)], (y, height), facecolor=color, hatch=hatch, edgecolor=EDGE, linewidth=edge)
        if label and places < 3 and (end - start) / length > 0.0115 * len(label):
            dark = what in ("compute", "communication")
            box = {"facecolor": color, "edgecolor": "none", "pad": 1.0} if hatch else None
            middle = ((start + end) / 2 - zero) * factor
            ax.text(middle, y + height / 2, label, ha="center", va="center", fontsize=8.5, color="white" if dark else look.INK, bbox=box, clip_on=True)
    ax.set_yticks(range(len(ranks)), [named[r] for r in ranks])
    ax.set_ylim(len(ranks) - 0.5, -0.5)
    ax.set_xlim(0, length * factor * 1.005 or 1)
    ax.set_xlabel(f"{kind} time ({unit})".strip())
    ax.tick_params(axis="y", length=0)
    _what_legend(ax, [what for what in WHAT if any(s[3] == what for s in rows)])
    finding = _timeline_finding(rows, named, length)
    look.title(mpl, title or finding)

    parts = []
    for rank in ranks:
        mine = [s for s in rows if s[0] == rank]
        told = [f"{what} {covered(of(mine, rank, what)) / length:.0%}" if length else what for what in WHAT if any(s[3] == what for s in mine)]
        parts.append(f"{named[rank]} {', '.join(told)}")
    whole = f"Of {number(length * factor)} {unit} {kind}".strip()
    return Figure(mpl, f"{sentence(finding)} {sentence(f'{whole}: ' + '; '.join(parts))}")


def who_has_what(order: Order | Mapping[str, Order], n_samples: int | None = None, title: str | None = None, row: str = "rank") -> Figure:
    """Which samples each rank sees, in which order, in each epoch.

    `order[epoch][rank]` lists the indices of the samples in the order in which that rank met them. A mapping draws one panel for each of its
    names, for example without and with `set_epoch`. The number in a cell is the sample's index and its colour follows the number, so two equal epochs
    look equal. A sample that is seen a second time in an epoch, as the sampler's padding is, gets a thick frame. With
    `n_samples`, the size of the data set, the text also says which samples nobody saw. `row` is what a row is, if no rank, for example a worker.
    """
    panels: dict[str, Order] = dict(order) if isinstance(order, Mapping) else {"": order}
    if not panels or not all(epochs and all(any(len(seen) for seen in ranks) for ranks in epochs) for epochs in panels.values()):
        raise ValueError("who_has_what() needs order[epoch][rank] = indices, with at least one sample in each epoch")
    from matplotlib import colormaps

    biggest = max(int(i) for epochs in panels.values() for ranks in epochs for seen in ranks for i in seen)
    rows = max(sum(len(ranks) for ranks in epochs) for epochs in panels.values())
    mpl, axes = look.new_axes(1, len(panels), size=(look.SIZE[0], max(look.SIZE[1], 1.2 + 0.3 * rows)))
    findings, summaries = [], []
    for i, (ax, (name, epochs)) in enumerate(zip(axes, panels.items(), strict=True)):
        width = max(len(seen) for ranks in epochs for seen in ranks)
        size = min(11.0, 210.0 / len(panels) / width)  # of the numbers; where they would be too small to read, colours alone stay
        y = 0.0
        ticks, names = [], []
        for e, ranks in enumerate(epochs):
            met: set[int] = set()
            # Step by step over the ranks, so that the copy that is framed is the later one: the padding.
            again = set()
            for step in range(width):
                for r, seen in enumerate(ranks):
                    if step < len(seen):
                        if int(seen[step]) in met:
                            again.add((r, step))
                        met.add(int(seen[step]))
            if i == 0:
                place: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center", "ha": "center"}
                ax.annotate(f"epoch {e}", (0, y + len(ranks) / 2), (-52, 0), rotation=90, fontsize=9.5, **place)
            for r, seen in enumerate(ranks):
                for step, index in enumerate(int(v) for v in seen):
                    red, green, blue, _ = colormaps["cividis"](0.12 + 0.88 * index / max(1, biggest))
                    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.52
                    ax.add_patch(_cell(step, y, (red, green, blue)))
                    weight = "bold" if (r, step) in again else "normal"
                    if size < 5.0:
                        continue
                    ax.text(step + 0.5, y + 0.5, str(index), ha="center", va="center", fontsize=size, color="white" if dark else "black", fontweight=weight)
                for step in [s for rank, s in again if rank == r]:
                    ax.add_patch(_cell(step, y, None))
                ticks.append(y + 0.5)
                names.append(f"{row} {r}")
                y += 1
            y += 0.45
        ax.set_xlim(-0.05, width + 0.05)
        ax.set_ylim(y - 0.4, -0.1)
        ax.set_yticks(ticks, names if i == 0 else [""] * len(ticks))
        ax.set_xticks([0.5, width - 0.5] if width > 1 else [0.5], ["first", "last"] if width > 1 else ["first"])
        ax.tick_params(length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
        if name:
            ax.set_title(name, fontsize=10.5, loc="left", color=look.INK)
        finding, summary = _sampling(epochs, n_samples, row)
        findings.append(f"{name}: {finding}" if name else finding)
        summaries.append(sentence(f"{name}: {summary}" if name else summary))
    if any(_repeats(ranks) for epochs in panels.values() for ranks in epochs):
        from matplotlib.patches import Patch

        framed = Patch(facecolor="white", edgecolor=look.VERMILION, linewidth=2.2, label="seen again in this epoch" + " (padding)" * (row == "rank"))
        mpl.legend(handles=[framed], loc="outside lower right", frameon=False, fontsize=9, borderaxespad=0)
    axes[0].set_xlabel(f"position in the {row}'s epoch" + ("; the number is the sample's index" if len(panels) == 1 else ""), loc="left")
    look.title(mpl, title or "; ".join(findings))
    return Figure(mpl, " ".join(summaries))


def _cell(step: int, y: float, color: tuple[float, float, float] | None) -> Any:
    from matplotlib.patches import Rectangle

    if color is None:
        return Rectangle((step + 0.06, y + 0.06), 0.88, 0.88, facecolor="none", edgecolor=look.VERMILION, linewidth=2.4, zorder=4)
    return Rectangle((step, y), 1, 1, facecolor=color, edgecolor="white", linewidth=0.8)


def _repeats(ranks: Sequence[Sequence[int]]) -> int:
    seen = Counter(int(i) for indices in ranks for i in indices)
    return sum(n - 1 for n in seen.values())


def _sampling(epochs: Order, n_samples: int | None, row: str) -> tuple[str, str]:
    """What to read off one panel, in short and in full."""
    plain = [tuple(tuple(int(i) for i in seen) for seen in ranks) for ranks in epochs]
    different = len(set(plain))
    if len(plain) == 1:
        finding = f"every sample goes to one {row}" if not _repeats(epochs[0]) else f"some samples go to two {row}s"
    elif different == 1:
        finding = "every epoch repeats the same order"
    elif different == len(plain):
        finding = "every epoch has a new order"
    else:
        finding = f"{different} different orders in {len(plain)} epochs"
    text = finding
    repeats = sorted({_repeats(ranks) for ranks in epochs})
    if repeats[-1]:
        many = "1 sample is" if repeats[-1] == 1 else f"{repeats[-1]} samples are"
        text += f"; {'' if len(repeats) == 1 else 'up to '}{many} seen again in an epoch"
    if n_samples is not None:
        missing = [sorted(set(range(n_samples)) - {i for seen in ranks for i in seen}) for ranks in plain]
        most = max(missing, key=len)
        if most:
            named = listing([str(i) for i in most[:8]]) + (", …" if len(most) > 8 else "")
            text += f"; in an epoch nobody saw {len(most)} of {n_samples} ({named})"
            finding += f", {len(most)} of {n_samples} are missed"
        else:
            text += f"; all {n_samples} are seen in each epoch"
    return finding, text


def _what_legend(ax: Axes, present: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=WHAT[w][0], hatch=WHAT[w][1], edgecolor=EDGE, label=w) for w in present]
    look.legend_above(ax, handles=handles, handlelength=1.8, handleheight=1.1)


def _hidden(rows: Sequence[Span], rank: int, *behind: str) -> list[Interval]:
    """The time in which a rank communicates and does something else."""
    return common(of(rows, rank, "communication"), of(rows, rank, *behind))


def _shares(rows: Sequence[Span]) -> list[tuple[int, int]]:
    """For each span its place among those that share a line with it at one time, and how many places there are: (0, 1) for one that is alone."""
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
    waits = {r: covered(of(rows, r, "waiting")) for r in ranks}
    longest = max(waits, key=lambda r: waits[r])
    sent = sum(covered(of(rows, r, "communication")) for r in ranks)
    hidden = sum(covered(_hidden(rows, r, "compute")) for r in ranks)
    if sent and hidden > 0.01 * sent:
        return f"{hidden / sent:.0%} of the communication is hidden behind compute"
    if waits[longest] and length:
        return f"{ranks[longest][:1].upper()}{ranks[longest][1:]} waits {waits[longest] / length:.0%} of the time"
    if sent and length:
        return f"Communication takes {sent / len(ranks) / length:.0%} of the time, none of it hidden"
    computed = sum(covered(of(rows, r, "compute")) for r in ranks)
    return f"Ranks compute {computed / len(ranks) / length:.0%} of the time" if length else "Nothing took any time"
