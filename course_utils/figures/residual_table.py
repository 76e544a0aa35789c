"""Where a prediction went wrong and by how much: a table of predicted, measured, and the error between them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

from ..results.samples import Samples
from ..show.table import MEASURED, PREDICTED, Bar, Cell, ShowsTable, Table
from ..show.units import number, readable_unit, unit_of_name
from .canvas import kind_of, listing, made_guesses, middle, provenance_words, sentence, spread

Row = tuple[str, float, Samples | float] | tuple[str, float, Samples | float, Any]


class Residuals(ShowsTable):
    """The table that `residuals` makes. `errors` are (predicted - measured) / measured, in the order of `labels`.
    `summary` is the line below the table."""

    def __init__(
        self, rows: Sequence[Row], unit: str = "", title: str = "", order: Literal["given", "worst first"] = "given"
    ):
        if not rows:
            raise ValueError("residuals() needs at least one row (label, predicted, measured)")
        if order not in ("given", "worst first"):
            raise ValueError(f"order must be 'given' or 'worst first'; got {order!r}")
        if doubled := sorted({row[0] for row in rows if sum(row[0] == other[0] for other in rows) > 1}):
            raise ValueError(f"every row needs its own label; {doubled[0]!r} comes twice")
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
        """The error furthest from zero, with its sign, as a fraction."""
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
            text = (
                f"Predicted against {kinds}, {len(self.errors)} rows: median error {self.median_error:.1%}, worst"
                f" {_percent(self.worst_error)} ({worst})"
            )
        if repeated:
            text += f"; {inside} of {repeated} predictions lie between the measurement's quartiles"
        if self.guesses:
            off = statistics.median(
                abs(g / middle(self.measured[self.labels.index(label)]) - 1) for label, g in self.guesses.items()
            )
            text += (
                f"; your guess{'es' * (len(self.guesses) > 1)}:"
                f" {'median error ' * (len(self.guesses) > 1)}{off:.1%}{' off' * (len(self.guesses) == 1)}"
            )
        return sentence(text) + (" No guess was made." if self.open_guess else "")

    def rows(self) -> list[tuple[str, ...]]:
        """The cells as text, header first: label, your guess if you were asked for one, predicted, measured, error."""
        kinds = {kind_of(m) for m in self.measured}
        seen = (
            provenance_words(self.measured[0])
            if len({provenance_words(m) for m in self.measured}) == 1
            else listing(sorted(kinds))
        )
        asked = bool(self.guesses) or self.open_guess
        found: list[tuple[str, ...]] = [
            ("", *(["your guess"] * asked), "predicted", seen + (" (25% to 75%)" if self._repeated else ""), "error")
        ]
        for label, p, m, error in zip(self.labels, self.predicted, self.measured, self.errors, strict=True):
            factor, unit = readable_unit(self.unit, max(abs(middle(m)), abs(p)))

            def shown(value: float, factor: float = factor, unit: str = unit) -> str:
                return f"{number(value * factor)} {unit}".strip()

            low, high = spread(m)
            seen_words = shown(middle(m)) + (
                f" ({number(low * factor)} to {number(high * factor)})" if high > low else ""
            )
            seen_words += f", {provenance_words(m)}" if len(kinds) > 1 else ""
            guess = [shown(self.guesses[label]) if label in self.guesses else "–"] if asked else []
            found.append((label, *guess, shown(p), seen_words, _percent(error)))
        return found

    @property
    def _repeated(self) -> bool:
        return any(spread(m)[1] > spread(m)[0] for m in self.measured)

    def table(self) -> Table:
        head, *body = self.rows()
        colors = {"predicted": PREDICTED, head[-2]: MEASURED}
        rows: list[tuple[str | Cell | Bar, ...]] = []
        for row, error, p, m in zip(body, self.errors, self.predicted, self.measured, strict=True):
            within = spread(m)[0] <= p <= spread(m)[1]
            rows.append((*row[:-1], Cell(row[-1], bold=not within), Bar(error)))
        return Table(
            (*(Cell(name, colors.get(name, "")) for name in head), "too little│too much"),
            rows,
            "l" + "r" * (len(head) - 1) + "b",
            self.title,
            self.summary,
        )


def residuals(
    rows: Sequence[Row], unit: str = "", title: str = "", order: Literal["given", "worst first"] = "given"
) -> Residuals:
    """Compare predictions with measurements, row by row. Errors are in percent of the measurement.

    A row is (label, predicted, measured) or (label, predicted, measured, guess), all in `unit`, by default the one that
    the samples' name ends with. Measured is a number or `Samples`, shown with their quartiles and provenance. A guess
    of `...` is left open. If the model predicts too much, the error is above zero and its bar points right. The error
    is bold if the prediction lies outside the quartiles. `order` may be "worst first". Raises ValueError without rows,
    for a label that comes twice, or for a measurement that isn't above zero.
    """
    return Residuals(rows, unit, title, order)


def _percent(error: float) -> str:
    text = f"{error:+.1%}" if abs(error) < 0.0995 else f"{error:+.0%}"
    return "0%" if text in ("+0.0%", "-0.0%") else text.replace("-", "−")
