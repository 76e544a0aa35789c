"""A plot with two logarithmic axes, for explorers of many GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..figures.canvas import GREY
from ..units import number
from .drawing import Drawing
from .parts import AXIS, LEFT, WIDE

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
