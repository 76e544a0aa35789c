"""A table that reads well in a notebook, whatever its theme, and in a terminal."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .notebook import ipython_shell

LINE_LETTERS = 106  # a line of output in JupyterLab, in a window of 1280 pixels
BAR_CHARACTERS, BAR_PIXELS = 12, 70  # length of the longest bar in text and on a page
# Seen well on white and on the black of a dark theme: for borders and bars as they are, for words with `ink`.
GOOD, WARNING, PROBLEM, ASIDE = "#008A62", "#A87000", "#D65000", "#7A7A7A"
MEASURED, PREDICTED = "#2F7FB8", "#A87000"
INK_SHARE = 75  # percent of the colour in `ink`
LINE = "var(--jp-border-color2,#88888866)"  # a thin line, as the theme draws it
_CELL = "padding:3px 10px;vertical-align:top;overflow-wrap:normal;word-break:normal"  # a word stays in one piece
_ROW = f"background:transparent;border-top:1px solid {LINE}"  # without the theme's stripes, which hide colours


@dataclass(frozen=True)
class Cell:
    """A cell that stands out. Line breaks in its text are kept. On a page, words in backticks become code."""

    text: str
    color: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Bar:
    """A bar from the middle of its cell, to the left if `value` is below zero. The longest bar of the table sets the
    scale."""

    value: float


@dataclass(frozen=True)
class Table:
    """Rows under a `head`, which may be empty, with a `caption` above and a `note` below.

    `align` has a letter for each column: `l` for words, `r` for numbers, `b` for bars. The head of a column of bars
    says what the two directions mean, with `│` between them.
    """

    head: Sequence[str | Cell]
    rows: Sequence[Sequence[str | Cell | Bar]]
    align: str
    caption: str = ""
    note: str = ""
    more: tuple[str, str] | None = None  # a label, and what waits behind a click on it; not in a terminal

    def __post_init__(self) -> None:
        for row in [self.head, *self.rows] if self.head else self.rows:
            if len(row) != len(self.align):
                raise ValueError(f"a row has {len(row)} cells, but align has letters for {len(self.align)}: {row}")

    def __str__(self) -> str:
        shown = [self.head, *self.rows] if self.head else self.rows
        grid = [[self._text(cell, side) for cell, side in zip(row, self.align, strict=True)] for row in shown]
        widths = [max(len(line) for row in grid for line in row[i]) for i in range(len(self.align))] if grid else []
        lines = [self.caption] if self.caption else []
        for row in grid:
            for at in range(max(map(len, row))):
                parts = [cell[at] if at < len(cell) else "" for cell in row]
                padded = (
                    part.rjust(width) if side == "r" else part.ljust(width)
                    for part, width, side in zip(parts, widths, self.align, strict=True)
                )
                lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, *([self.note] if self.note else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        caption = f"<p style='margin:.3em 0;font-weight:bold'>{marked(self.caption)}</p>" if self.caption else ""
        head = "".join(map(self._head, self.head, self.align))
        cells = ("".join(map(self._cell, row, self.align)) for row in self.rows)
        body = "".join(f"<tr style='{_ROW}'>{row}</tr>" for row in cells)
        note = f"<p style='margin:.4em 0;max-width:900px'>{marked(self.note)}</p>" if self.note else ""
        more = fold(self.more[0], marked(self.more[1])) if self.more else ""
        thead = f"<thead><tr>{head}</tr></thead>" if head else ""
        style = "border-collapse:collapse;table-layout:auto;margin:0"
        table = f"<table style='{style}'>{thead}<tbody>{body}</tbody></table>" if thead or body else ""
        return f"<div style='overflow-x:auto'>{caption}{table}{note}{more}</div>"

    def _longest(self) -> float:
        return max((abs(cell.value) for row in self.rows for cell in row if isinstance(cell, Bar)), default=0.0) or 1.0

    def _text(self, cell: str | Cell | Bar, side: str) -> list[str]:
        """The lines of a cell in a terminal."""
        if isinstance(cell, Bar):
            bar = "█" * round(abs(cell.value) / self._longest() * BAR_CHARACTERS)
            return [f"{bar if cell.value < 0 else '':>{BAR_CHARACTERS}}│{bar if cell.value > 0 else ''}"]
        text = cell.text if isinstance(cell, Cell) else cell
        if side == "b":
            left, _, right = text.partition("│")
            text = f"{left:>{BAR_CHARACTERS}}│{right}"
        return text.split("\n")

    def _head(self, cell: str | Cell, side: str) -> str:
        text, style = (cell, "") if isinstance(cell, str) else (cell.text, _style(cell))
        if side == "b":
            left, _, right = html.escape(text).partition("│")
            inside = _half("right", f"{left}&nbsp;", "height:auto") + _half("left", f"&nbsp;{right}", "height:auto")
            return f"<th scope='col' style='{_CELL};white-space:nowrap;font-weight:normal'>{inside}</th>"
        return f"<th scope='col' style='{_CELL};{_side(side)}{style}'>{marked(text)}</th>"

    def _cell(self, cell: str | Cell | Bar, side: str) -> str:
        if not isinstance(cell, Bar):
            text, style = (cell, "") if isinstance(cell, str) else (cell.text, _style(cell))
            whole = ";white-space:nowrap" if side == "r" else ""  # a head may have two lines, a number not
            return f"<td style='{_CELL};{_side(side)}{whole}{style}'>{marked(text)}</td>"
        width = round(BAR_PIXELS * abs(cell.value) / self._longest(), 1)
        color = "#E69F00" if cell.value > 0 else "#0072B2"
        bar = f"<span style='display:inline-block;width:{width}px;height:11px;background:{color}'></span>"
        left = _half("right", bar if cell.value < 0 else "", "line-height:0;border-right:1px solid #888888")
        right = _half("left", bar if cell.value > 0 else "", "line-height:0")
        return f"<td style='padding:3px 10px;vertical-align:middle;white-space:nowrap'>{left}{right}</td>"


def ink(color: str) -> str:
    """CSS that writes words in a colour. No single colour has a contrast of 4.5 to 1 with white and with black, so the
    page's own text colour is mixed in: it darkens on a light page, and lightens on a dark one. (A browser that can't
    mix shows the colour as it is.)"""
    return f"color:{color};color:color-mix(in srgb,{color} {INK_SHARE}%,currentColor)"


_held: list[Any] | None = None  # what waits to be shown below a figure


def show(thing: Any) -> None:
    """Display something in a notebook, print it anywhere else."""
    if ipython_shell() is None:
        print(thing, flush=True)
    elif _held is not None:
        _held.append(thing)
    else:
        from IPython.display import display

        display(thing)


@contextmanager
def held() -> Iterator[list[Any]]:
    """Collect what `show` would display in a notebook, for whoever shows it. After an error it's displayed at once."""
    global _held
    before, _held = _held, []
    mine, whole = _held, False
    try:
        yield mine
        whole = True
    finally:
        _held = before
        if not whole:
            for thing in mine:
                show(thing)


def print_lines(sentences: str) -> None:
    """Print sentences in lines that JupyterLab needn't break, which it would do in the middle of a word."""
    print(textwrap.fill(sentences, LINE_LETTERS, break_on_hyphens=False), flush=True)


def fold(label: str, inside: str, opened: bool = False) -> str:
    """HTML that waits behind a click on its label."""
    style = "cursor:pointer;display:list-item;font-size:.95em"
    head = f"<summary style='{style}'>{html.escape(label)}</summary>"
    return f"<details{' open' * opened}>{head}<div style='margin-left:1em'>{inside}</div></details>"


class ShowsTable:
    """Something that shows itself as the table that `table()` makes."""

    def table(self) -> Table:
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _side(side: str) -> str:
    return "text-align:right" if side == "r" else "text-align:left"


def _style(cell: Cell) -> str:
    return (f";{ink(cell.color)}" if cell.color else "") + (";font-weight:bold" if cell.bold else "")


def marked(text: str) -> str:
    """Text as HTML, with words in backticks as code, and its line breaks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text)).replace("\n", "<br>")


def _half(align: str, inside: str, style: str) -> str:
    """One side of a bar: left of the middle or right of it."""
    style = f"display:inline-block;width:{BAR_PIXELS}px;height:11px;vertical-align:middle;text-align:{align};{style}"
    return f"<span style='{style}'>{inside}</span>"
