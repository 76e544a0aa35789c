"""What lesson 08 draws: speed-ups in their brackets, the sizes of gradients, the life of a loss scale, and where fp16
learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from course_utils import Samples
from course_utils.figures import canvas
from course_utils.figures.canvas import (
    GREY,
    GUESS,
    KINDS,
    VERMILION,
    Figure,
    kind_of,
    made_guesses,
    middle,
    provenance_words,
    sentence,
    spread,
)
from course_utils.predict import Bracket, Format
from course_utils.units import number


def brackets(
    predicted: Mapping[str, Bracket],
    measured: Mapping[str, Samples | float],
    guess: Mapping[str, Any] | None = None,
    title: str | None = None,
) -> Figure:
    """One row a case: the predicted bracket as a dashed frame from its low to its high end, what was measured as a
    point, a guess as a cross.

    The look of a point is that of its provenance (measured here, recorded, published). Raises ValueError without a
    case, KeyError for a case that was predicted and not measured.
    """
    if not predicted:
        raise ValueError("brackets() needs at least one prediction")
    rows = list(predicted)
    guesses, open_guess = made_guesses(guess, rows)
    mpl, (ax,) = canvas.new_axes(size=(canvas.SIZE[0], 1.6 + 0.5 * len(rows)))
    ends = [
        1.0,
        *guesses.values(),
        *(e for b in predicted.values() for e in (b.low, b.high)),
        *(e for r in rows for e in spread(measured[r])),
    ]
    named: set[str] = set()
    orange, parts, inside = KINDS["predicted"].color, [], 0
    for y, row in enumerate(rows):
        bracket, value = predicted[row], measured[row]
        told = "" if "bracket" in named else "predicted bracket"
        frame: dict[str, Any] = {
            "facecolor": orange + "33",
            "edgecolor": orange,
            "linestyle": "--",
            "linewidth": 1.6,
            "label": told or None,
        }
        # A bracket of one point still shows as a line.
        ax.barh(y, max(bracket.high - bracket.low, 0.004 * bracket.high), left=bracket.low, height=0.5, **frame)
        named.add("bracket")
        words, kind, at = provenance_words(value), kind_of(value), middle(value)
        low, high = spread(value)
        style = {**KINDS[kind].style(), "linestyle": "none", "capsize": 4, "elinewidth": 1.4}
        ax.errorbar([at], [y], xerr=[[at - low], [high - at]], label=None if words in named else words, **style)
        named.add(words)
        ax.annotate(number(at), (at, y), (0, -15), textcoords="offset points", ha="center", fontsize=9)
        inside += bracket.outside(at) == 0
        guessed = f", guessed {number(guesses[row])}" if row in guesses else ""
        parts.append(f"{row}: {number(at)}, predicted {number(bracket.low)} to {number(bracket.high)}{guessed}")
    if guesses:
        ax.plot(list(guesses.values()), [rows.index(row) for row in guesses], label="your guess", **GUESS)
    canvas.ratio_axes(ax, rows, ends, 1.3, more_ticks=(3, 4, 8, 16))
    ax.set_xlabel("times as fast as in float32")
    canvas.title(mpl, title or f"{inside} of {len(rows)} speed-ups lie in their bracket")
    sources = [
        f"{row}: {v.provenance.machine}"
        for row, v in measured.items()
        if isinstance(v, Samples) and v.provenance.kind == "published"
    ]
    return Figure(
        mpl, sentence("times as fast as in float32; " + "; ".join(parts)) + " No guess was made." * open_guess, sources
    )


def histogram(
    counts: Mapping[str, Mapping[int, float]],
    held: Format,
    xlabel: str = "size of a gradient",
    title: str | None = None,
) -> Figure:
    """Shares of numbers by their size, in bins of one power of two, and the zones in which `held` makes them zero or
    infinite.

    `counts` maps a label to counts by exponent: `{-20: 7}` are 7 numbers from 2**-20 to below 2**-19. Each row is
    divided by its sum. Raises ValueError without a count.
    """
    totals = {label: sum(row.values()) for label, row in counts.items()}
    if not totals or min(totals.values()) <= 0:
        raise ValueError("histogram() needs at least one row, and a count above zero in each")
    low_end, high_end = held.smallest / 2, held.max
    mpl, axes = canvas.new_axes(len(counts), size=(canvas.SIZE[0], 1.3 + 1.25 * len(counts)), sharex=True, sharey=True)
    exponents = [e for row in counts.values() for e, n in row.items() if n]
    first = min(min(exponents), math.frexp(low_end)[1] - 4)
    last = max(max(exponents) + 1, math.frexp(high_end)[1] + 2)
    parts = []
    for ax, (label, row) in zip(axes, counts.items(), strict=True):
        for e, n in row.items():
            center = 2.0 ** (e + 0.5)
            color = KINDS["measured"].color if low_end <= center <= high_end else VERMILION
            ax.bar(
                2.0**e,
                n / totals[label],
                width=2.0**e * 0.92,
                align="edge",
                color=color,
                hatch="" if color != VERMILION else "///",
                edgecolor="white",
            )
        ax.axvspan(2.0**first, low_end, color=GREY, alpha=0.22, linewidth=0)
        ax.axvspan(high_end, 2.0**last, color=GREY, alpha=0.22, linewidth=0)
        lost, over = lost_shares(row, held)
        ax.set_ylabel("share")
        ax.set_title(label, fontsize=10, fontweight="bold", pad=3)
        for share, what, x, side in (
            (lost, "become 0", 2.0**first * 1.3, "left"),
            (over, "overflow", 2.0**last / 1.3, "right"),
        ):
            if share:
                words = f"{what}: {share:.2%}"
                ax.text(x, 0.97, words, transform=ax.get_xaxis_transform(), ha=side, va="top", fontsize=9)
        parts.append(f"{label}: {lost:.2%} become 0" + (f", {over:.2%} overflow" if over else ""))
    axes[-1].set_ylim(top=1.3 * max(n / totals[label] for label, row in counts.items() for n in row.values()))
    axes[-1].set_xscale("log", base=2)
    axes[-1].set_xlim(2.0**first, 2.0**last)
    axes[-1].set_xlabel(f"{xlabel} (grey: not in {held.name})")
    canvas.title(mpl, title or f"What {held.name} makes of them")
    return Figure(mpl, sentence(f"{xlabel}, in {held.name}; " + "; ".join(parts)))


def lost_shares(row: Mapping[int, float], held: Format) -> tuple[float, float]:
    """The shares that become zero and that overflow, by the middle of their bins."""
    total = sum(row.values())
    low = sum(n for e, n in row.items() if 2.0 ** (e + 0.5) < held.smallest / 2)
    return low / total, sum(n for e, n in row.items() if 2.0 ** (e + 0.5) > held.max) / total


def loss_scale(scales: Sequence[float], skipped: Sequence[bool], title: str | None = None) -> Figure:
    """The scale of each step, with a mark where the step was skipped. Raises ValueError unless there are as many marks
    as scales, and at least one."""
    if not scales or len(scales) != len(skipped):
        raise ValueError(f"loss_scale() needs as many marks as scales; got {len(skipped)} and {len(scales)}")
    mpl, (ax,) = canvas.new_axes()
    steps = range(len(scales))
    ax.step(steps, scales, where="post", color=KINDS["measured"].color, linewidth=2, label="measured: loss scale")
    at = [i for i, skip in enumerate(skipped) if skip]
    ax.plot(
        at,
        [scales[i] for i in at],
        linestyle="none",
        marker="X",
        markersize=9,
        color=VERMILION,
        label="skipped: a gradient was infinite or NaN",
    )
    ax.set_yscale("log", base=2)
    ax.set(xlabel="step", ylabel="loss scale")
    ax.grid(color="#E6E6E6", linewidth=0.8)
    canvas.legend_above(ax, columns=2)
    canvas.title(mpl, title or f"{len(at)} of {len(scales)} steps skipped")
    told = f"the loss scale goes from {scales[0]:.0f} to {scales[-1]:.0f}, at most {max(scales):.0f}"
    return Figure(mpl, sentence(told) + " " + sentence(f"skipped steps: {', '.join(map(str, at)) or 'none'}"))


def window(found: Mapping[int, float], lost: Mapping[int, float], first: float, last: float, here: int) -> Figure:
    """The loss at the end of a training in fp16, over the power of two that multiplied it, with the share of gradients
    lost above. `first` and `last` are the losses of float32, `here` is the power that the reader bet on."""
    mpl, (ax,) = canvas.new_axes()
    fine = [power for power, loss in found.items() if math.isfinite(loss)]
    broken = [power for power in found if power not in fine]
    top = 1.12 * first
    ax.axhline(first, label="before training", **KINDS["ideal"].style())
    look = {**KINDS["measured"].style(1), "marker": None, "linewidth": 4}
    ax.plot([min(found), max(found)], [last, last], label="measured: float32, whatever the factor", **look)
    ax.plot(fine, [found[power] for power in fine], label="measured: fp16", **KINDS["measured"].style())
    if broken:
        mark: dict[str, Any] = {"linestyle": "none", "marker": "X", "markersize": 11, "color": VERMILION}
        ax.plot(broken, [first] * len(broken), label="fp16: NaN", **mark)
    for power in fine:
        if lost[power] >= 0.01:
            ax.annotate(
                f"{lost[power]:.0%} lost", (power, found[power]), (0, 9), textcoords="offset points", fontsize=9
            )
    ax.axvline(here, color=GREY, linestyle=":", linewidth=1.4)
    ax.annotate("a batch of\n8,192 tokens", (here, 0.1 * first), (5, 0), textcoords="offset points", fontsize=9)
    ticks = list(found)
    ax.set_xticks(ticks, [f"2^{power}" if power else "1" for power in ticks])
    ax.set_ylim(0, top * 1.08)
    ax.set(xlabel="factor on the loss", ylabel="training loss at the end")
    ax.grid(color="#E6E6E6", linewidth=0.8)
    canvas.legend_above(ax, columns=2)
    canvas.title(mpl, "fp16 learns between two cliffs")
    each = "; ".join(
        f"times 2^{power}: {'NaN' if power in broken else number(loss)}, {lost[power]:.0%} of the gradients lost"
        for power, loss in found.items()
    )
    return Figure(mpl, sentence(f"training loss at the end, {number(last)} in float32, and in fp16 {each}"))
