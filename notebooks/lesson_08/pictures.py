"""What lesson 08 draws: speed-ups in their brackets, which weights froze, the life of a loss scale, and where fp16
learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from course_utils import Samples
from course_utils.figures import canvas
from course_utils.for_lessons import (
    GREY,
    GUESS,
    KINDS,
    VERMILION,
    Figure,
    kind_of,
    made_guesses,
    middle,
    number,
    provenance_words,
    sentence,
    spread,
)
from course_utils.predict import Bracket


def brackets(
    predicted: Mapping[str, Bracket],
    measured: Mapping[str, Samples | float],
    guess: Mapping[str, Any] | None = None,
    title: str | None = None,
    recorded: Sequence[Mapping[str, Samples]] = (),
) -> Figure:
    """One row a case: the predicted bracket as a dashed frame from its low to its high end, what was measured as a
    point, a guess as a cross; and points that were `recorded` on other machines, which the bracket isn't about.

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
        *(middle(others[r]) for others in recorded for r in rows if r in others),
    ]
    named: set[str] = set()
    orange, parts, inside = KINDS["predicted"].color, [], 0
    told_there: list[str] = []
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
        for others in recorded:
            if row in others:
                there, theirs = middle(others[row]), provenance_words(others[row])
                style = {**KINDS["recorded"].style(), "linestyle": "none"}
                ax.plot([there], [y], label=None if theirs in named else theirs, **style)
                ax.annotate(number(there), (there, y), (0, 8), textcoords="offset points", ha="center", fontsize=9)
                named.add(theirs)
                told_there.append(f"{row} {number(there)}, {theirs}")
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
        mpl,
        sentence("times as fast as in float32; " + "; ".join(parts + told_there)) + " No guess was made." * open_guess,
        sources,
    )


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
            words, at = f"{percent(lost[power])} lost", (4, -16) if power == here else (4, 8)
            ax.annotate(words, (power, found[power]), at, textcoords="offset points", fontsize=9)
    ax.axvline(here, color=GREY, linestyle=":", linewidth=1.4)
    ax.annotate("a batch of\n8,192 tokens", (here, 0.1 * first), (5, 0), textcoords="offset points", fontsize=9)
    ticks = list(found)
    ax.set_xticks(ticks, [f"2^{power}" if power else "1" for power in ticks], fontsize=9)
    ax.set_ylim(0, top * 1.08)
    ax.set(xlabel="factor on the loss", ylabel="training loss at the end")
    ax.grid(color="#E6E6E6", linewidth=0.8)
    canvas.legend_above(ax, columns=2)
    canvas.title(mpl, "Between two cliffs, fp16 learns as float32 does")
    each = "; ".join(
        f"times 2^{power}: {'NaN' if power in broken else number(loss)}, {percent(lost[power])} of the gradients lost"
        for power, loss in found.items()
    )
    return Figure(mpl, sentence(f"training loss at the end, {number(last)} in float32, and in fp16 {each}"))


def percent(share: float) -> str:
    """A share of gradients lost; only all of them are 100%."""
    return ">99%" if 0.99 < share < 1 else f"{share:.0%}"


def never_moved(sizes: Mapping[int, Sequence[int]], edge: float, title: str) -> Figure:
    """How many weights lie between each power of two and the next, of which so many never moved: `{-5: (kept, moved)}`.
    `edge` is the size from which a step is less than half the way to the next number."""
    mpl, (ax,) = canvas.new_axes()
    total = sum(map(sum, sizes.values()))
    shown = [e for e in sizes if sum(sizes[e]) > 0.005 * total]
    kept, moved = ([100 * sizes[e][i] / total for e in shown] for i in (0, 1))
    bar: dict[str, Any] = {"width": 0.9, "edgecolor": "white", "align": "edge"}
    ax.bar(shown, kept, color=VERMILION, hatch="///", label="measured: never moved", **bar)
    ax.bar(shown, moved, bottom=kept, color=KINDS["measured"].color, label="measured: moved", **bar)
    ax.axvline(math.log2(edge) - 0.05, color=canvas.INK, linestyle=":", linewidth=1.6)
    at, words = (math.log2(edge), 1.02 * max(map(sum, sizes.values())) * 100 / total), "from here on\na step is lost"
    ax.annotate(words, at, (-8, 0), textcoords="offset points", fontsize=9, va="top", ha="right")
    ax.set_xticks(shown, [_power(e) for e in shown], fontsize=9)
    ax.set(xlabel="size of the weight before training", ylabel="weights (%)")
    ax.set_ylim(0, max(map(sum, zip(kept, moved, strict=True))) * 1.12)
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    canvas.legend_above(ax, columns=2)
    canvas.title(mpl, title)
    rows = zip(shown, kept, moved, strict=True)
    each = "; ".join(f"from {_power(e)}: {k:.1f}% never moved, {m:.1f}% did" for e, k, m in rows)
    return Figure(mpl, sentence(f"weights by their size before training, {each}"))


def _power(exponent: int) -> str:
    return f"1/{2**-exponent}" if exponent < 0 else str(2**exponent)
