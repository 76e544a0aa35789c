"""What lesson 06 draws, what every stage of a pipeline does when: forwards, backwards, and the bubble between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from course_utils.figures import canvas
from course_utils.for_lessons import Figure, Span, covered, intervals, listing, number, readable_unit, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What a label begins with: colour, hatch and the word for it. Never colour alone.
KINDS: Mapping[str, tuple[str, str, str]] = {
    "F": (canvas.BLUE, "", "forward"),
    "B": (canvas.GREEN, "///", "backward"),
    "I": (canvas.YELLOW, "\\\\\\", "backward: input"),
    "W": (canvas.PURPLE, "...", "backward: weights"),
}
IDLE = "#E4E4E4"
_LABEL = re.compile(r"([FBIW])(\d+)$")


def schedule(
    spans: Iterable[Span] | Mapping[str, Iterable[Span]], title: str | None = None, kind: str = "", row: str = "stage"
) -> Figure:
    """Stages from top to bottom, time from left to right; each box is a micro-batch, with its number where it fits, and
    grey is the bubble.

    `spans` are those of `predict.simulate_pipeline(...).spans`, or measured: (stage, start_s, end_s, "compute", label),
    a label being F, B, I or W and the number of the micro-batch. Spans that are no compute are left out. A mapping
    draws one panel below another for each of its names, on one scale of time, each from its own first start on. `kind`
    is where the times come from, for example `predicted`. Raises ValueError without spans, and for another label.
    """
    given: Mapping[str, Iterable[Span]] = spans if isinstance(spans, Mapping) else {"": spans}
    panels = {name: _computed(name, rows) for name, rows in given.items()}
    if not panels:
        raise ValueError("schedule() needs at least one span")
    lengths = {name: _length(rows) for name, rows in panels.items()}
    longest = max(lengths.values())
    factor, unit = readable_unit("s", longest)
    stages = {name: sorted({s[0] for s in rows}) for name, rows in panels.items()}

    heights = [0.42 * len(stages[name]) + 0.55 for name in panels]
    size = (canvas.SIZE[0], max(canvas.SIZE[1] if len(panels) > 1 else 2.6, sum(heights) + 1.0))
    mpl, axes = canvas.new_axes(len(panels), size=size, sharex=True, gridspec_kw={"height_ratios": heights})
    for ax, (name, rows) in zip(axes, panels.items(), strict=True):
        _panel(ax, rows, stages[name], lengths[name], factor, longest, row)
        ax.set_title(_words(name, rows, lengths[name], factor, unit), fontsize=10.5, loc="left", color=canvas.INK)
    axes[-1].set_xlabel(f"{kind} time ({unit})".strip())
    axes[-1].set_xlim(0, longest * factor * 1.005 or 1)
    _legend(mpl, [k for k in KINDS if any(s[4][0] == k for rows in panels.values() for s in rows)])
    finding = _finding(panels, lengths)
    canvas.title(mpl, title or finding)
    told = [
        f"{_words(name, rows, lengths[name], factor, unit)} on {len(stages[name])} {row}s"
        for name, rows in panels.items()
    ]
    return Figure(mpl, f"{sentence(finding)} {sentence(f'{kind} '.lstrip() + '; '.join(told))}")


def _computed(name: str, spans: Iterable[Span]) -> list[Span]:
    rows = sorted((s for s in spans if s[3] == "compute"), key=lambda s: (s[0], s[1]))
    if not rows:
        raise ValueError(f"schedule() needs at least one span that computes{f' in {name!r}' if name else ''}")
    for _, _, _, _, label in rows:
        if not _LABEL.match(label):
            raise ValueError(f"a label is F, B, I or W and the number of the micro-batch, as in 'F0'; got {label!r}")
    zero = min(s[1] for s in rows)
    return [(stage, start - zero, end - zero, what, label) for stage, start, end, what, label in rows]


def _length(rows: Sequence[Span]) -> float:
    return max(s[2] for s in rows)


def _bubble(rows: Sequence[Span], length: float) -> float:
    stages = {s[0] for s in rows}
    return 1 - sum(covered(intervals(rows, stage)) for stage in stages) / (len(stages) * length) if length else 0.0


def _panel(
    ax: Axes, rows: Sequence[Span], stages: Sequence[int], length: float, factor: float, longest: float, row: str
) -> None:
    for y in range(len(stages)):
        ax.broken_barh([(0, length * factor)], (y - 0.4, 0.8), facecolor=IDLE, linewidth=0)
    for stage, start, end, _, label in rows:
        color, hatch, _ = KINDS[label[0]]
        y = stages.index(stage)
        edge = 0.7 if end - start > 0.006 * longest else 0.0
        ax.broken_barh(
            [(start * factor, (end - start) * factor)],
            (y - 0.4, 0.8),
            facecolor=color,
            hatch=hatch,
            edgecolor="#FFFFFFB0",
            linewidth=edge,
        )
        if (end - start) / longest > 0.011 * len(label[1:]) + 0.006:
            canvas.write_inside(ax, (start + end) / 2 * factor, y, label[1:], color, bool(hatch))
    ax.set_yticks(range(len(stages)), [f"{row} {s}" for s in stages])
    ax.set_ylim(len(stages) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _words(name: str, rows: Sequence[Span], length: float, factor: float, unit: str) -> str:
    return f"{f'{name}: ' if name else ''}{number(length * factor)} {unit}, bubble {_bubble(rows, length):.0%}"


def _finding(panels: Mapping[str, Sequence[Span]], lengths: Mapping[str, float]) -> str:
    names = list(panels)
    bubbles = {name: _bubble(panels[name], lengths[name]) for name in names}
    if len(names) == 1:
        return f"{bubbles[names[0]]:.0%} of the stages' time is bubble"
    low, high = (pick(names, key=lambda n: lengths[n]) for pick in (min, max))
    if lengths[high] < 1.02 * lengths[low]:
        return f"{listing(names)} take the same time"
    return f"{low} needs {lengths[low] / lengths[high]:.0%} of the time of {high}"


def _legend(mpl: Any, present: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=KINDS[k][0], hatch=KINDS[k][1], edgecolor="#FFFFFFB0", label=KINDS[k][2]) for k in present
    ]
    handles.append(Patch(facecolor=IDLE, label="bubble"))
    canvas.legend_below(mpl, handles, len(handles), borderaxespad=0.2, **canvas.FILLED)
