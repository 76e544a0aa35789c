"""A small SVG: bars, lines and words in the course's colours, on the white card on which all its figures lie."""

from __future__ import annotations

import base64
import html
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..figures.canvas import CARD, INK

WIDTH, MIN_WIDTH = 680, 480  # of every picture, in its own pixels; it shrinks with its page, down to the second
_FONT = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
# Light lines over a fill, so that nothing is told by colour alone.
_HATCHES = {
    "///": "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4",
    "\\\\\\": "M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4",
    "...": "M2,2 h.1 M6,6 h.1",
    "xx": "M0,8 l8,-8 M0,0 l8,8",
    "---": "M0,4 h8",
}


class Drawing:
    """Collects shapes; `svg` gives them as one string. Coordinates are pixels from the upper left."""

    def __init__(self, height: float):
        self.height = height
        self._body: list[str] = []
        self._hatches: set[str] = set()

    def bar(
        self, x: float, y: float, width: float, height: float, fill: str, hatch: str = "", tip: str = "",
        edge: str = "#FFFFFF", dashes: str = "", edge_width: float = 0.8,
    ) -> None:  # fmt: skip
        """A rectangle, hatched on top. `tip` shows when the mouse rests on it."""
        place = f"x='{x:.1f}' y='{y:.1f}' width='{max(width, 0):.1f}' height='{max(height, 0):.1f}'"
        edges = f"stroke='{edge}' stroke-width='{edge_width}'" + f" stroke-dasharray='{dashes}'" * bool(dashes)
        shown = f"<title>{html.escape(tip)}</title>" if tip else ""
        self._body.append(f"<rect {place} fill='{fill}' {edges}>{shown}</rect>")
        if hatch:
            self._hatches.add(hatch)
            self._body.append(f"<rect {place} fill='url(#@{list(_HATCHES).index(hatch)})' pointer-events='none'/>")

    def text(
        self, x: float, y: float, words: str, size: float = 13, anchor: str = "start", bold: bool = False,
        color: str = INK,
    ) -> None:  # fmt: skip
        weight = " font-weight='bold'" if bold else ""
        where = f"x='{x:.1f}' y='{y:.1f}' font-size='{size:g}' text-anchor='{anchor}' fill='{color}'{weight}"
        kept = html.escape(words).replace("  ", "\u00a0 ")  # browsers draw several spaces as one
        self._body.append(f"<text {where}>{kept}</text>")

    def line(
        self, points: Sequence[tuple[float, float]], color: str = INK, width: float = 1.5, dashes: str = ""
    ) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f" stroke-dasharray='{dashes}'" if dashes else ""
        self._body.append(f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='{width}'{dashed}/>")

    def dot(self, x: float, y: float, color: str, radius: float = 5, hollow: bool = False) -> None:
        fill = "#FFFFFF" if hollow else color
        self._body.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius}' fill='{fill}' stroke='{color}'"
                          " stroke-width='2'/>")  # fmt: skip

    def svg(self, summary: str) -> str:
        """The picture, with its summary as its name for screen readers."""
        body = "".join(self._body)
        own = f"h{zlib.crc32(body.encode()):08x}-"  # several pictures share a page, and a page has one set of names
        line = "fill='none' stroke='#FFFFFFB0' stroke-linecap='round'"
        patterns = "".join(
            f"<pattern id='{own}{number}' width='8' height='8' patternUnits='userSpaceOnUse'>"
            f"<path d='{path}' {line} stroke-width='{2.4 if hatch == '...' else 1.1}'/></pattern>"
            for number, (hatch, path) in enumerate(_HATCHES.items())
            if hatch in self._hatches
        )
        size = f"viewBox='0 0 {WIDTH} {self.height:g}' width='{WIDTH}' height='{self.height:g}'"
        name = f"role='img' aria-label='{html.escape(summary, quote=True)}'"
        look = f"font-family=\"{_FONT}\" style='{CARD};min-width:{MIN_WIDTH}px;display:block'"
        body = body.replace("url(#@", f"url(#{own}")
        return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {name} {look}><defs>{patterns}</defs>{body}</svg>"


@dataclass(frozen=True)
class View:
    """What an explorer shows for its settings: a picture, and one line that says what to see in it."""

    svg: str
    summary: str

    @staticmethod
    def of(drawing: Drawing, summary: str) -> View:
        return View(drawing.svg(summary), summary)

    @staticmethod
    def refusal(why: str) -> View:
        """In place of a picture, why these settings don't go together."""
        drawing = Drawing(60)
        drawing.text(12, 36, why, bold=True)
        return View.of(drawing, why)

    def image(self) -> str:
        """The picture as HTML for pages that run nothing, where inline SVG may not pass."""
        data = base64.b64encode(self.svg.encode()).decode()
        return f'<img alt="{html.escape(self.summary, quote=True)}" src="data:image/svg+xml;base64,{data}">'
