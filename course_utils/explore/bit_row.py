"""The number of `explore.bits()`: typed, or set by flipping the bits that store it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..predict import FORMATS, Format
from .controls import Control

LONGEST = max(f.bits for f in FORMATS.values())
_POWER = re.compile(r"\s*([+-]?)(\d+)\s*(?:\^|\*\*)\s*([+-]?\d{1,3})\s*")


class Number(Control):
    """A number of any size: `70000`, `1e-8`, `2^-24`, `inf`; or the bits themselves (`0b…`), which stay as they
    are when the format changes. NaN has many: a flipped one is kept as bits."""

    def checked(self, value: Any) -> float | str:
        if isinstance(value, str):
            words = value.strip().replace(",", "")
            if re.fullmatch(r"0b[01]{8,32}", words):
                return words
            try:
                power = _POWER.fullmatch(words)
                if power:
                    return (-1 if power[1] == "-" else 1) * float(power[2]) ** int(power[3])
                return float(words)
            except (ValueError, OverflowError, ZeroDivisionError):
                raise ValueError(f"{self.name} is something like 70000, 1e-8 or 2^-24; got {value!r}") from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{self.name} is something like 70000, 1e-8 or 2^-24; got {value!r}")
        return float(value)

    def said(self, value: Any) -> str:
        return f"{self.label} {value}"

    def widgets(
        self, value: Any, changed: Callable[[str, Any], None], say: Callable[[str], None] | None = None
    ) -> tuple[Any, list[Any]]:
        import ipywidgets as w

        row = _Row(w, self, changed)
        return row.box, [row.text, *row.bits]

    def follow(self, shown: Any, values: Mapping[str, Any]) -> None:
        shown.row.show(values)


class _Row:
    """A box to type in, and a button for each bit."""

    def __init__(self, w: Any, control: Control, changed: Callable[[str, Any], None]):
        self.control, self.changed, self.quiet = control, changed, False
        self.text = w.Text(
            description=control.label, continuous_update=False, layout={"width": "342px"},
            style={"description_width": "140px"},
        )  # fmt: skip
        self.bits = [
            w.ToggleButton(description="0", layout={"width": "19px", "padding": "0", "margin": "0 1px 0 0"})
            for _ in range(LONGEST)
        ]
        self.text.observe(self._typed, "value")
        for bit in self.bits:
            bit.observe(self._flipped, "value")
        words = w.HTML("<span style='font-size:13px'>flip a bit:&nbsp;</span>")
        flex = {"flex_flow": "row wrap", "align_items": "center"}
        self.box = w.VBox([self.text, w.HBox([words, *self.bits], layout=flex)])
        self.box.row = self

    def show(self, values: Mapping[str, Any]) -> None:
        """Bring the buttons to the bits that store the number."""
        self.format = FORMATS[values["format"]]
        pattern = stored(values["number"], self.format)
        self.quiet = True
        self.text.value = values["number"] if isinstance(values["number"], str) else f"{values['number']!r}"
        for i, bit in enumerate(self.bits):
            place = self.format.bits - 1 - i
            bit.layout.display = "" if place >= 0 else "none"
            if place < 0:
                continue
            bit.value = bool(pattern >> place & 1)
            bit.description = str(int(bit.value))
            what = part(place, self.format)
            bit.button_style = {"sign": "", "exponent": "warning", "mantissa": "info"}[what]
            bit.tooltip = f"{what}, bit {place}: {int(bit.value)}"
        self.quiet = False

    def _typed(self, change: Mapping[str, Any]) -> None:
        if not self.quiet:
            self.changed(self.control.name, change["new"])

    def _flipped(self, change: Mapping[str, Any]) -> None:
        if self.quiet:
            return
        words = "".join(str(int(bit.value)) for bit in self.bits[: self.format.bits])
        number = self.format.value(int(words, 2))
        self.changed(self.control.name, f"0b{words}" if math.isnan(number) else number)


def stored(number: float | str, held: Format) -> int:
    """The bits that store a number in this format. Those of another format are taken for NaN."""
    if isinstance(number, str):
        return int(number, 2) if len(number) == 2 + held.bits else held.pattern(math.nan)
    return held.pattern(number)


def part(place: int, held: Format) -> str:
    """What the bit at this place, counted from the last one, belongs to."""
    return "mantissa" if place < held.mantissa else "exponent" if place < held.bits - 1 else "sign"
