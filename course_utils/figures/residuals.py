"""Where a prediction went wrong and by how much: a table of predicted, measured, and the error between them."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from ..run import Samples
from ..units import number, readable_unit, unit_of_name
from . import look
from .look import BLUE, ORANGE, kind_of, listing, made_guesses, middle, provenance_words, sentence, spread

Row = tuple[str, float, Samples | float] | tuple[str, float, Samples | float, Any]
BAR = 12  # characters of the longest bar in text
HALF = 70  # pixels of the longest bar on a page
CELL = "padding:3px 10px;text-align:right;white-space:nowrap"


class Residuals:
    """The table that `residuals` makes. `errors` are (predicted - measured) / measured in the order of `labels`; `summary` is the line below."""

    def __init__(self, rows: Sequence[Row], unit: str = "", title: str = "", order: Literal["given", "worst first"] = "given"):
        if not rows:
            raise ValueError("residuals() needs at least one row (label, predicted, measured)")
        if order not in ("given", "worst first"):
            raise ValueError(f"order is 'given' or 'worst first'; got {order!r}")
        if doubled := sorted({row[0] for row in rows if sum(row[0] == other[0] for other in rows) > 1}):
            raise ValueError(f"every row has a label of its own; {doubled[0]!r} comes twice")
        for label, _, value, *_ in rows:
            if not middle(value) > 0:
                raise ValueError(f"an error in percent needs a measurement above zero; {label!r} has {middle(value):g}")
        named = next((row[2].name for row in rows if isinstance(row[2], Samples)), "")
        self.unit = unit or unit_of_name(named)
        self.title = title
        chosen = sorted(rows, key=lambda r: -abs(r[1] / middle(r[2]) - 1)) if order == "worst first" else list(rows)
        self.labels = [row[0] for row in chosen]
        self.predicted = [float(row[1]) for row in chosen]
        self.measured = [row[2] for row in chosen]
        self.errors = [p / middle(m) - 1 for p, m in zip(self.predicted, self.measured, strict=True)]
        asked = {row[0]: row[3] for row in chosen if len(row) > 3}
        self.guesses, self.open_guess = made_guesses(asked or None, self.labels)

    @property
    def median_error(self) -> float:
        """The median of the errors' sizes, as a fraction."""
        return statistics.median(map(abs, self.errors))

    @property
    def worst_error(self) -> float:
        """The error that is furthest from zero, with its sign, as a fraction."""
        return max(self.errors, key=abs)

    @property
    def summary(self) -> str:
        worst = self.labels[self.errors.index(self.worst_error)]
        inside = sum(spread(m)[0] <= p <= spread(m)[1] for p, m in zip(self.predicted, self.measured, strict=True))
        repeated = sum(isinstance(m, Samples) and len(m) > 1 for m in self.measured)
        kinds = listing(list(dict.fromkeys(provenance_words(m) for m in self.measured)))
        if len(self.errors) == 1:
            text = f"Predicted against {kinds}: {worst} off by {_percent(self.worst_error)}"
        else:
            text = f"Predicted against {kinds}, {len(self.errors)} rows: median error {self.median_error:.1%}, worst {_percent(self.worst_error)} ({worst})"
        if repeated:
            text += f"; {inside} of {repeated} predictions lie between the measurement's quartiles"
        if self.guesses:
            off = statistics.median(abs(g / middle(self.measured[self.labels.index(label)]) - 1) for label, g in self.guesses.items())
            text += f"; your guess{'es' * (len(self.guesses) > 1)}: {'median error ' * (len(self.guesses) > 1)}{off:.1%}{' off' * (len(self.guesses) == 1)}"
        return sentence(text) + (" No guess was made." if self.open_guess else "")

    def rows(self) -> list[tuple[str, ...]]:
        """The cells in words, the header first: what, your guess where one was asked for, predicted, what was measured, error."""
        kinds = {kind_of(m) for m in self.measured}
        seen = provenance_words(self.measured[0]) if len({provenance_words(m) for m in self.measured}) == 1 else listing(sorted(kinds))
        asked = bool(self.guesses) or self.open_guess
        found: list[tuple[str, ...]] = [("", *(["your guess"] * asked), "predicted", seen + (" (25% to 75%)" if self._repeated else ""), "error")]
        for label, p, m, error in zip(self.labels, self.predicted, self.measured, self.errors, strict=True):
            factor, unit = readable_unit(self.unit, max(abs(middle(m)), abs(p)))

            def shown(value: float, factor: float = factor, unit: str = unit) -> str:
                return f"{number(value * factor)} {unit}".strip()

            low, high = spread(m)
            told = shown(middle(m)) + (f" ({number(low * factor)} to {number(high * factor)})" if high > low else "")
            told += f", {provenance_words(m)}" if len(kinds) > 1 else ""
            guess = [shown(self.guesses[label]) if label in self.guesses else "–"] if asked else []
            found.append((label, *guess, shown(p), told, _percent(error)))
        return found

    @property
    def _repeated(self) -> bool:
        return any(spread(m)[1] > spread(m)[0] for m in self.measured)

    def __repr__(self) -> str:
        head, *body = self.rows()
        largest = max(map(abs, self.errors)) or 1.0
        bars = []
        for error in self.errors:
            length = round(abs(error) / largest * BAR)
            left, right = ("█" * length, "") if error < 0 else ("", "█" * length)
            bars.append(f"{left:>{BAR}}│{right}")
        table = [(*head, f"{'too little':>{BAR}}│too much"), *((*row, bar) for row, bar in zip(body, bars, strict=True))]
        widths = [max(len(row[i]) for row in table) for i in range(len(head))]
        lines = []
        for row in table:
            cells = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row[:-1], widths, strict=True))]
            lines.append("  ".join([*cells, row[-1]]).rstrip())
        return "\n".join([*([self.title] if self.title else []), *lines, self.summary])

    def _repr_html_(self) -> str:
        head, *body = self.rows()
        largest = max(map(abs, self.errors)) or 1.0
        measured = len(head) - 2
        names = []
        for i, name in enumerate(head):
            color = {"your guess": "black", "predicted": "#8A5A00"}.get(name, "#00517F" if i == measured else look.INK)
            names.append(_cell("th", name, f"{'text-align:left;' if not i else ''}color:{color}"))
        ends = _half("right", "too little&nbsp;", "height:auto") + _half("left", "&nbsp;too much", "height:auto")
        lines = []
        for row, error, p, m in zip(body, self.errors, self.predicted, self.measured, strict=True):
            within = spread(m)[0] <= p <= spread(m)[1]
            styles = ["text-align:left", *[""] * (len(row) - 2), "" if within else "font-weight:bold"]
            width = round(HALF * abs(error) / largest, 1)
            bar = f"<span style='display:inline-block;width:{width}px;height:11px;background:{ORANGE if error > 0 else BLUE}'></span>"
            bars = _half("right", bar if error < 0 else "", "line-height:0;border-right:1px solid #888888") + _half(
                "left", bar if error > 0 else "", "line-height:0"
            )
            cells = "".join(_cell("td", text, style) for text, style in zip(row, styles, strict=True))
            lines.append(f"<tr>{cells}<td style='{CELL}'>{bars}</td></tr>")
        caption = f"<p style='margin:.3em 0;font-weight:bold'>{html.escape(self.title)}</p>" if self.title else ""
        header = f"<thead><tr>{''.join(names)}<th style='{CELL};font-weight:normal;color:#555555'>{ends}</th></tr></thead>"
        table = f"<table style='border-collapse:collapse;font-size:13px;margin:0'>{header}<tbody>{''.join(lines)}</tbody></table>"
        return f"<div>{caption}{table}<p style='margin:.4em 0;max-width:700px'>{html.escape(self.summary)}</p></div>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}


def residuals(rows: Sequence[Row], unit: str = "", title: str = "", order: Literal["given", "worst first"] = "given") -> Residuals:
    """Predicted beside measured, row by row, with the error in percent of the measurement.

    A row is (label, predicted, measured) or (label, predicted, measured, guess); all in `unit`, by default the one that the samples' name ends with.
    Measured is a number or `Samples`, whose quartiles and provenance are told; a guess of `...` is left open. An error is above zero, and its bar
    to the right, where the model predicts too much; it is bold where the prediction lies outside the quartiles. `order` may be "worst first".
    Raises ValueError without rows, for a label that comes twice, or a measurement that is not above zero.
    """
    return Residuals(rows, unit, title, order)


def _cell(tag: str, text: str, style: str) -> str:
    return f"<{tag} style='{CELL};{style}'>{html.escape(text)}</{tag}>"


def _half(align: str, inside: str, style: str) -> str:
    """One side of a bar: left of the middle or right of it."""
    return f"<span style='display:inline-block;width:{HALF}px;height:11px;vertical-align:middle;text-align:{align};{style}'>{inside}</span>"


def _percent(error: float) -> str:
    text = f"{error:+.1%}" if abs(error) < 0.0995 else f"{error:+.0%}"
    return "0%" if text in ("+0.0%", "-0.0%") else text.replace("-", "−")
