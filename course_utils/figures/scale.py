"""The life of a loss scale: it grows while all is well, and falls back when a gradient overflows."""

from __future__ import annotations

from collections.abc import Sequence

from . import look
from .look import KINDS, VERMILION, Figure, sentence


def loss_scale(scales: Sequence[float], skipped: Sequence[bool], title: str | None = None) -> Figure:
    """The scale of each step, with a mark where the step was skipped. Raises ValueError unless there are as many marks as scales, and at least one."""
    if not scales or len(scales) != len(skipped):
        raise ValueError(f"loss_scale() needs as many marks as scales; got {len(skipped)} and {len(scales)}")
    mpl, (ax,) = look.new_axes()
    steps = range(len(scales))
    ax.step(steps, scales, where="post", color=KINDS["measured"].color, linewidth=2, label="measured: loss scale")
    at = [i for i, skip in enumerate(skipped) if skip]
    ax.plot(at, [scales[i] for i in at], linestyle="none", marker="X", markersize=9, color=VERMILION, label="skipped: a gradient was infinite or NaN")
    ax.set_yscale("log", base=2)
    ax.set(xlabel="step", ylabel="loss scale")
    ax.grid(color="#E6E6E6", linewidth=0.8)
    look.legend_above(ax, columns=2)
    look.title(mpl, title or f"{len(at)} of {len(scales)} steps skipped")
    told = f"the loss scale goes from {scales[0]:.0f} to {scales[-1]:.0f}, at most {max(scales):.0f}"
    return Figure(mpl, sentence(told) + " " + sentence(f"skipped steps: {', '.join(map(str, at)) or 'none'}"))
