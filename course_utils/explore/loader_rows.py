"""Rows of a timeline: a GPU, the queue of batches that wait for it, and the workers that fill it."""

from __future__ import annotations

from collections.abc import Sequence

from ..figures.canvas import GREY, INK
from ..spans import Span
from ..units import readable
from .drawing import Drawing
from .parts import _FILLS, AXIS, LEFT, WIDE, ticks

ROW = 24.0
QUEUE = 8.0  # a full queue; its length as a number stands above it


def legend(drawing: Drawing, y: float) -> None:
    """What the colours mean."""
    x = LEFT
    for kind, words in (("loading", "loading"), ("waiting", "waiting"), ("communication", "copy"), ("compute", "step")):
        drawing.bar(x, y, 16, 12, *_FILLS[kind])
        drawing.text(x + 21, y + 11, words, 12)
        x += 50 + 6.6 * len(words)


def rows(drawing: Drawing, y: float, spans: Sequence[Span], workers: int, length: float, copy: float) -> None:
    """The loop and its GPU, the queue, and each worker, from 0 to `length` seconds."""
    names = ["GPU" if workers else "loop, GPU", "queue", *(f"worker {n}" for n in range(workers))]
    drawing_rows = [name for name in names if workers or name != "queue"]
    for i, name in enumerate(drawing_rows):
        drawing.text(LEFT - 8, y + ROW * i + 16, name, 12, "end")
    for row, start, end, what, label in spans:
        top = y + ROW * (row + 1 if row else 0)
        pieces = [(start, end, what)]
        if what == "compute" and copy:
            pieces = [(start, start + copy, "communication"), (start + copy, end, what)]
        for begin, stop, kind in pieces:
            x, wide = LEFT + WIDE * begin / length, WIDE * (stop - begin) / length
            tip = f"{label and f'batch {label}, '}{kind}: {readable('s', stop - begin)}"
            drawing.bar(x, top + 2, wide, ROW - 4, *_FILLS[kind], tip, edge_width=0.8 if wide > 3 else 0)
            if label and kind in ("compute", "loading") and wide > 16:
                color = "#FFFFFF" if kind == "compute" else INK
                if kind == "loading":
                    drawing.bar(x + wide / 2 - 9, top + 5, 18, ROW - 10, "#FFFFFF", edge="none")
                drawing.text(x + wide / 2, top + 16, label, 11, "middle", color=color)
    if workers:
        _queue(drawing, y + ROW, spans, length, workers)
    low = y + ROW * len(drawing_rows) + 4
    drawing.line([(LEFT, low), (LEFT + WIDE, low)], AXIS, 1)
    for share, words in ticks(length):
        drawing.line([(LEFT + WIDE * share, low), (LEFT + WIDE * share, low + 4)], AXIS, 1)
        drawing.text(LEFT + WIDE * share, low + 17, words, 11, "middle")


def waiting_batches(spans: Sequence[Span]) -> list[tuple[float, int]]:
    """(when, how many batches are ready and not taken), at every change."""
    events = [(end, 1) for row, _, end, what, _ in spans if row and what == "loading"]
    events += [(start, -1) for row, start, _, what, _ in spans if not row and what == "compute"]
    ready, found = 0, [(0.0, 0)]
    for when, change in sorted(events, key=lambda event: (event[0], -event[1])):
        ready += change
        found.append((when, ready))
    return found


def _queue(drawing: Drawing, y: float, spans: Sequence[Span], length: float, workers: int) -> None:
    steps = waiting_batches(spans)
    for (start, ready), (end, _) in zip(steps, steps[1:], strict=False):
        x, wide = LEFT + WIDE * start / length, WIDE * (end - start) / length
        if ready and wide > 0.2:
            tall = QUEUE * min(1.0, ready / (2 * workers))
            drawing.bar(x, y + ROW - 2 - tall, wide, tall, GREY, "", f"{ready} ready", edge="none")
            if wide > 9:
                drawing.text(x + wide / 2, y + ROW - QUEUE - 4, f"{ready}", 11, "middle", color=INK)
