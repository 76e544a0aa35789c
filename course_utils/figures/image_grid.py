"""A grid of pictures with their true and predicted labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..show.units import counted
from . import canvas
from .canvas import Figure


def images(
    x: Any, titles: Sequence[str | tuple[Any, Any]], title: str | None = None, columns: int | None = None
) -> Figure:
    """Draw pictures in a grid, each with its title below. A title (true, predicted) shows whether the prediction is
    right.

    `x` holds N pictures as a tensor, an array or a list of them: H x W, H x W x C or C x H x W with 1 or 3 channels.
    Integers go from 0 to 255, floats from 0 to 1; normalised pictures are all stretched to that range in the same way.
    Raises ValueError when pictures and titles differ in number.
    """
    pictures = _arrays(x)
    if not pictures or len(pictures) != len(titles):
        raise ValueError(
            f"{len(pictures)} pictures and {len(titles)} titles: every picture needs one title; give at least one"
        )
    columns = columns or min(len(pictures), max(4, math.ceil(math.sqrt(2 * len(pictures)))))
    rows = math.ceil(len(pictures) / columns)
    mpl, axes = canvas.new_axes(
        rows, columns, size=(canvas.SIZE[0], max(canvas.SIZE[1] if rows > 1 else 2.2, 0.5 + 1.05 * rows))
    )
    right = 0
    pairs = [t for t in titles if isinstance(t, tuple)]
    for ax in axes:
        ax.axis("off")
    for ax, picture, caption in zip(axes, pictures, titles, strict=False):
        ax.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        color, text = canvas.INK, str(caption)
        if isinstance(caption, tuple):
            true, predicted = caption
            ok = bool(true == predicted)
            right += ok
            text = f"✓ {true}" if ok else f"✗ {predicted}\n(is {true})"
            color = canvas.BLUE if ok else canvas.RUST
        ax.text(0.5, -0.06, text, transform=ax.transAxes, ha="center", va="top", fontsize=9, color=color)
    if pairs:
        finding = f"{right} of these {len(pairs)} predictions are right"
        wrong = [f"{predicted} instead of {true}" for true, predicted in pairs if not true == predicted]
        summary = f"{finding}" + (f"; wrong: {', '.join(wrong[:6])}{', …' if len(wrong) > 6 else ''}" if wrong else "")
    else:
        finding = f"{counted(len(pictures), 'picture')}"
        summary = f"{finding}: {', '.join(str(t) for t in titles[:8])}{', …' if len(titles) > 8 else ''}"
    canvas.title(mpl, title or finding)
    return Figure(mpl, canvas.sentence(summary))


def _arrays(x: Any) -> list[Any]:
    import numpy as np

    arrays = [np.asarray(p.detach().cpu() if hasattr(p, "detach") else p) for p in x]
    shown = []
    for a in arrays:
        if a.ndim == 3 and a.shape[0] in (1, 3) and a.shape[-1] not in (1, 3):
            a = a.transpose(1, 2, 0)
        if a.ndim == 3 and a.shape[-1] == 1:
            a = a[..., 0]
        if a.ndim not in (2, 3) or (a.ndim == 3 and a.shape[-1] != 3):
            raise ValueError(
                f"a picture of shape {a.shape} cannot be drawn; it needs H x W, H x W x C or C x H x W with 1 or 3"
                " channels"
            )
        shown.append(a / 255.0 if np.issubdtype(a.dtype, np.integer) else a.astype(float))
    low, high = min((float(a.min()) for a in shown), default=0.0), max((float(a.max()) for a in shown), default=1.0)
    if low < 0.0 or high > 1.0:
        shown = [(a - low) / (high - low) for a in shown]
    return shown
