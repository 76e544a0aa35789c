"""A table of recorded results over two settings, the chosen one framed; and where the recording comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..figures.canvas import INK
from ..results.provenance import Provenance
from .drawing import Drawing

_PALE, _FULL = (0xE3, 0xF4, 0xEE), (0x00, 0x7A, 0x59)  # of the colour that means recorded
_ROW = 30.0


def grid(
    drawing: Drawing, x: float, y: float, width: float, rows: Sequence[Any], columns: Sequence[Any],
    cell: Callable[[Any, Any], tuple[str, float | None]], chosen: tuple[Any, Any], name: Callable[[Any], str] = str,
) -> float:  # fmt: skip
    """Draws the table, its row names to the left of `x`; returns where it ends. `cell(row, column)` gives words and a
    shade from 0 to 1; with None for a shade it's hatched, as something that didn't work."""
    wide = width / len(columns)
    for j, column in enumerate(columns):
        drawing.text(x + (j + 0.5) * wide, y + 12, f"{column:g}", 12, "middle", bold=column == chosen[1])
    for i, row in enumerate(rows):
        up = y + 20 + _ROW * i
        drawing.text(x - 8, up + 19, name(row), 12, "end", bold=row == chosen[0])
        for j, column in enumerate(columns):
            words, shade = cell(row, column)
            mixed = "".join(f"{round(a + (b - a) * (shade or 0)):02X}" for a, b in zip(_PALE, _FULL, strict=True))
            fill = "#BBBBBB" if shade is None else f"#{mixed}"
            drawing.bar(x + j * wide, up, wide, _ROW, fill, "///" if shade is None else "", words)
            color = "#FFFFFF" if shade is not None and shade > 0.6 else INK
            drawing.text(x + (j + 0.5) * wide, up + 19, words, 12, "middle", color=color)
    i, j = list(rows).index(chosen[0]), list(columns).index(chosen[1])
    drawing.bar(x + j * wide + 1, y + 21 + _ROW * i, wide - 2, _ROW - 2, "none", edge=INK, edge_width=3)
    return y + 20 + _ROW * len(rows)


def source(provenance: Provenance) -> str:
    """`recorded on AMD EPYC, 2 cores, 24 GiB, no GPU, 2026-11-22`"""
    return f"recorded on {provenance.machine}, {provenance.date}"
