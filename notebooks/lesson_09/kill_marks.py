"""A figure of lesson 09: what became of saves that were killed at different moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_utils.figures import canvas
from course_utils.for_lessons import Figure, listing, number, readable_unit, sentence, unit_of_name

Tries = Sequence[tuple[float, str]]
# Marker and colour of the outcomes in the order in which they first come; never colour alone.
_STYLES = (
    ("o", canvas.BLUE, "white"),
    ("o", canvas.BLUE, canvas.BLUE),
    ("X", canvas.VERMILION, canvas.VERMILION),
    ("s", canvas.GREEN, "white"),
)
_KNOWN = {"old": 0, "new": 1, "neither": 2}


def outcomes(ways: Mapping[str, Tries], xlabel: str, title: str | None = None) -> Figure:
    """One panel for each way, one lane for each outcome, and a mark for each try at its moment: `outcomes({"in place":
    [(at_s, "neither"), ...]}, ...)`.

    Moments are in seconds, drawn in the size that reads best. An outcome keeps its marker in all panels. The title
    counts the outcomes of each way. Raises ValueError without a way, for a way without tries, or more outcomes than
    there are markers.
    """
    if not ways or not all(ways.values()):
        raise ValueError("outcomes() needs at least one way, and at least one try of each")
    found = {outcome for tries in ways.values() for _, outcome in tries}
    names = [*(name for name in _KNOWN if name in found), *sorted(found - set(_KNOWN))]
    if len(names) > len(_STYLES):
        raise ValueError(f"there are markers for {len(_STYLES)} outcomes; got {listing(names)}")
    factor, unit = readable_unit(unit_of_name("at_s"), max(at for tries in ways.values() for at, _ in tries) or 1.0)
    mpl, axes = canvas.new_axes(
        rows=len(ways), size=(canvas.SIZE[0], 1.1 + (0.5 + 0.3 * len(names)) * len(ways)), sharex=True
    )
    for ax, (way, tries) in zip(axes, ways.items(), strict=True):
        for lane, name in enumerate(names):
            marker, edge, face = _STYLES[_KNOWN.get(name, 3)]
            moments = [at * factor for at, outcome in tries if outcome == name]
            ax.plot(
                moments,
                [lane] * len(moments),
                linestyle="none",
                marker=marker,
                markersize=7,
                markeredgecolor=edge,
                markerfacecolor=face,
                alpha=0.8,
            )
        ax.set_yticks(range(len(names)), [f"{name} ({sum(outcome == name for _, outcome in tries)})" for name in names])
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.set_title(way, loc="left", fontsize=10, color=canvas.INK)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", color="#E4E4E4")
    # Once for all panels, which share the axis: a limit set in the first would stop it from growing with the later
    # ones.
    axes[-1].set_xlim(0, 1.04 * factor * max(at for tries in ways.values() for at, _ in tries) or 1.0)
    axes[-1].set_xlabel(f"{xlabel} ({unit})")
    counts = {
        way: listing([f"{sum(outcome == name for _, outcome in tries)} {name}" for name in names])
        for way, tries in ways.items()
    }
    finding = "; ".join(f"{way}: {count}" for way, count in counts.items())
    canvas.title(mpl, title or finding)
    spans = []
    for way, tries in ways.items():
        for name in names:
            if moments := [at * factor for at, outcome in tries if outcome == name]:
                spans.append(f"{way}, {name}: between {number(min(moments))} and {number(max(moments))} {unit}")
    return Figure(mpl, f"{sentence(finding)} {sentence('; '.join(spans))}")
