"""Parts of pictures that explorers share: a timeline of one rank, a predicted curve with marks, a small table, frames
under a slider."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..figures.canvas import BLUE, GREY, INK, ORANGE, PURPLE, RUST, SKY, VERMILION
from ..results.spans import Span
from ..show.units import number, readable, readable_unit
from .drawing import WIDTH, Drawing, View

# A plot with two logarithmic axes, for explorers of many GPUs.

Point = tuple[float, float]


class LogPlot:
    """Axes from `x` to `y`, each (least, most), with the upper left corner of the plot at `top` pixels."""

    def __init__(self, drawing: Drawing, top: float, tall: float, x: Point, y: Point, words: str, unit: str):
        self.drawing, self.x, self.y, self.low, self.tall = drawing, x, y, top + tall, tall
        for power in range(math.ceil(math.log10(y[0])), math.floor(math.log10(y[1])) + 1):
            value = 10.0**power
            level = self.at((x[0], value))[1]
            drawing.line([(LEFT, level), (LEFT + WIDE, level)], "#E6E6E6", 1)
            drawing.text(LEFT - 8, level + 4, f"{number(value)}{unit}", 11, "end")
        for power in range(round(math.log2(x[0])), round(math.log2(x[1])) + 1):
            across = self.at((2.0**power, y[0]))[0]
            drawing.line([(across, self.low), (across, self.low + 4)], AXIS, 1)
            drawing.text(across, self.low + 17, f"{2**power}", 11, "middle")
        drawing.line([(LEFT, top), (LEFT, self.low), (LEFT + WIDE, self.low)], AXIS, 1)
        drawing.text(LEFT + WIDE, self.low + 33, words, 12, "end")

    def at(self, point: Point) -> Point:
        """Where a point lies in the drawing. What lies outside the axes comes to their edge."""
        across, up = (
            (math.log(min(max(value, low), high)) - math.log(low)) / (math.log(high) - math.log(low))
            for value, (low, high) in zip(point, (self.x, self.y), strict=True)
        )
        return LEFT + WIDE * across, self.low - self.tall * up

    def line(self, points: Sequence[Point], color: str, width: float = 2.2, dashes: str = "") -> None:
        self.drawing.line([self.at(point) for point in points], color, width, dashes)

    def mark(self, point: Point, color: str, hollow: bool = False) -> None:
        x, y = self.at(point)
        self.drawing.line([(x, self.low), (x, y)], GREY, 1.2, "2 3")
        self.drawing.dot(x, y, color, 5, hollow)


LEFT, WIDE = 84.0, WIDTH - 84.0 - 20.0  # where the axes begin, and how long they are
AXIS = "#888888"
_FILLS = {
    "compute": (BLUE, ""),
    "communication": (VERMILION, "///"),
    "waiting": ("#BDBDBD", "..."),
    "loading": ("#F0E442", "\\\\\\"),
}


def timeline(drawing: Drawing, y: float, spans: Sequence[Span], kind: str, length: float) -> None:
    """What a rank does from 0 to `length` seconds, 90 pixels high: compute above, communication below."""
    for row, name in enumerate(("compute", "network")):
        drawing.text(LEFT - 8, y + 20 + 32 * row, name, 12, "end")
    for _, start, end, what, label in spans:
        row = what == "communication"
        x, width = LEFT + WIDE * start / length, WIDE * (end - start) / length
        fill, hatch = {"forward": (SKY, ""), "step": (PURPLE, "---")}.get(label, _FILLS[what])
        tip = f"{label or what}: {readable('s', end - start)}"
        drawing.bar(x, y + 4 + 32 * row, width, 26, fill, hatch, tip, edge_width=0.8 if width > 3 else 0)
        if label and not row and width > 7.5 * len(label):
            drawing.text(x + width / 2, y + 21, label, 12, "middle", color="#FFFFFF" if fill == BLUE else INK)
    drawing.line([(LEFT, y + 70), (LEFT + WIDE, y + 70)], AXIS, 1)
    for share, words in ticks(length):
        x = LEFT + WIDE * share
        drawing.line([(x, y + 70), (x, y + 74)], AXIS, 1)
        drawing.text(x, y + 87, words, 11, "middle")
    drawing.text(LEFT - 24, y + 87, kind, 11, "end", color=RUST if kind == "predicted" else INK)


def ruler(drawing: Drawing, y: float, looks: Sequence[tuple[str, str]], now: int, words: str) -> None:
    """All frames as a row of boxes, 44 pixels high, each with its fill and hatch, and a mark over the one that's drawn
    above."""
    wide = min(40.0, (WIDTH - 40.0) / len(looks))
    drawing.text(12, y + 11, words, 12)
    for i, (fill, hatch) in enumerate(looks):
        drawing.bar(12 + i * wide, y + 20, wide, 14, fill, hatch)
    drawing.bar(12 + now * wide, y + 18, wide, 18, "none", edge=INK, edge_width=2.5)


def frames(
    drawn: Sequence[tuple[str, Callable[[Drawing, float, float], None]]], wide: float, high: float, summary: str
) -> View:
    """Frames side by side, for a page that doesn't move: each has a heading, and draws itself at its upper left corner,
    `wide` by `high` pixels."""
    columns = max(1, int((WIDTH - 12) // wide))
    drawing = Drawing(math.ceil(len(drawn) / columns) * (high + 26) + 8)
    for i, (heading, draw) in enumerate(drawn):
        x, y = 12 + i % columns * wide, 4 + i // columns * (high + 26)
        drawing.text(x, y + 13, heading, 12, bold=True)
        draw(drawing, x, y + 20)
    return View.of(drawing, summary)


def table(
    drawing: Drawing, y: float, headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], bold: str = ""
) -> None:
    """A few numbers in words, a row 18 pixels high: its name, then a column for each heading. The row `bold` stands
    out."""
    for column, heading in enumerate(headings):
        color = {"predicted": RUST, "measured": BLUE, "emulated": BLUE}.get(heading, INK)
        drawing.text(210 + 105 * column, y + 12, heading, 12, "end", True, color)
    for i, (name, words) in enumerate(rows):
        drawing.text(12, y + 32 + 18 * i, name, 12, bold=name == bold)
        for column, shown in enumerate(words):
            drawing.text(210 + 105 * column, y + 32 + 18 * i, shown, 12, "end", name == bold)


def ticks(most: float, unit: str = "s") -> list[tuple[float, str]]:
    """Round numbers from 0 to `most`, each as a share of it and in words; the first one names the unit."""
    factor, shown = readable_unit(unit, most)
    return [(n / (most * factor), number(n) + f" {shown}" * (n == 0)) for n in round_numbers(most * factor)]


def round_numbers(most: float, start: float = 0.0) -> list[float]:
    """About five round numbers from `start` to `most` more."""
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(power * n for n in (5, 2, 1) if power * n <= most / 4 * 1.0001)
    first = math.ceil(start / step)
    return [i * step for i in range(first, int((start + most) / step * 1.0001) + 1)]


def curve(
    drawing: Drawing,
    y: float,
    points: Sequence[tuple[float, float]],
    marks: Sequence[tuple[tuple[float, float], str]],
    words: str,
    legend: str,
    floor: tuple[float, str],
) -> None:
    """Predicted seconds over a logarithmic axis, 190 pixels high, with points that are `predicted`, `best` or
    `emulated`. The axis begins near the `floor`, a line with words, so that differences show."""
    low, tall = y + 165, 125.0
    seconds = [point[1] for point in [*points, *(point for point, _ in marks)]]
    least = floor[0] * 0.995
    most = least + 1.15 * max(max(seconds) - least, 0.04 * floor[0])
    xs = [x for x, _ in [*points, *(point for point, _ in marks)]]
    first, last = min(xs) / 1.2, max(xs) * 1.2

    def at(point: tuple[float, float]) -> tuple[float, float]:
        up = (point[1] - least) / (most - least)
        return LEFT + WIDE * math.log(point[0] / first) / math.log(last / first), low - tall * up

    drawing.text(12, y + 14, words, 12)
    drawing.line([(LEFT, low - tall), (LEFT, low), (LEFT + WIDE, low)], AXIS, 1)
    factor, unit = readable_unit("s", most)
    for tick in round_numbers((most - least) * factor, least * factor):
        drawing.text(LEFT - 8, at((first, tick / factor))[1] + 4, f"{tick:g} {unit}", 11, "end")
    height = at((first, floor[0]))[1]
    drawing.line([(LEFT, height), (LEFT + WIDE, height)], GREY, 1.2, "2 3")
    drawing.text(LEFT + WIDE, height - 5, floor[1], 11, "end")
    for x in (m * 10.0**power for power in range(-2, 5) for m in (1, 3)):
        if first <= x <= last:
            drawing.line([(at((x, least))[0], low), (at((x, least))[0], low + 4)], AXIS, 1)
            drawing.text(at((x, least))[0], low + 17, f"{x:g}", 11, "middle")
    drawing.line([at(point) for point in points], ORANGE, 2.2, "7 4")
    for point, kind in marks:
        x, height = at(point)
        if kind == "best":
            drawing.text(max(x, LEFT + 28), height + 17, "★ best", 12, "middle", True, RUST)
            continue
        if kind == "predicted":
            drawing.line([(x, low), (x, height)], GREY, 1.2, "2 3")
        drawing.dot(
            x, height, RUST if kind == "predicted" else BLUE, 4 if kind == "predicted" else 7, kind != "predicted"
        )
    right = LEFT + WIDE
    legend = f"predicted   {legend}" + "   ○ emulated" * any(kind == "emulated" for _, kind in marks)
    drawing.text(right, y + 14, legend, 12, "end")
    start = right - 6.3 * len(legend)
    drawing.line([(start - 32, y + 10), (start - 6, y + 10)], ORANGE, 2.2, "7 4")
