"""What a reader can set in an explorer: a number, a choice or a switch, each with its label, unit and reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..show.units import is_number


@dataclass(frozen=True)
class Control:
    """One setting. With `choices` (words -> value) it's a menu, with a default of True or False a switch, otherwise a
    number from `low` to `high`; `base` makes its slider logarithmic. `more` hides it behind a switch of its own. `why`
    shows when the mouse rests on it. It's grey while the switch that it acts `only_with` is off."""

    name: str
    label: str
    default: Any
    why: str
    low: float = 0
    high: float = 0
    unit: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)
    base: float = 0
    whole: bool = True
    more: bool = False
    only_with: str = ""

    def checked(self, value: Any) -> Any:
        """The value, or the choice that these words name. Raises ValueError for one that can't be."""
        if self.choices:
            value = self.choices.get(value, value) if isinstance(value, str) else value
            if value in self.choices.values() and not isinstance(value, bool):
                return value
            raise ValueError(f"{self.name} can be {', '.join(repr(v) for v in self.choices.values())}; got {value!r}")
        if isinstance(self.default, bool):
            if isinstance(value, bool):
                return value
            raise ValueError(f"{self.name} is True or False; got {value!r}")
        if not is_number(value) or not self.low <= value <= self.high:
            raise ValueError(f"{self.name} is a {self._range}; got {value!r}")
        if self.whole and value != int(value):
            raise ValueError(f"{self.name} is a whole number; got {value!r}")
        return int(value) if self.whole else value

    def said(self, value: Any) -> str:
        """The setting in words: `bucket size 25 MB`."""
        shown = next((words for words, known in self.choices.items() if known == value), None)
        if shown is None:
            shown = ("on" if value else "off") if isinstance(value, bool) else f"{value:g}{self._unit}"
        return f"{self.label} {shown}"

    @property
    def _range(self) -> str:
        return f"{'whole ' if self.whole else ''}number from {self.low:g} to {self.high:g}{self._unit}"

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""

    def widgets(
        self, value: Any, changed: Callable[[str, Any], None], say: Callable[[str], None]
    ) -> tuple[Any, list[Any]]:
        """What ipywidgets shows for it, and what can be switched off meanwhile. A number has a box to type in, with a
        label that screen readers read, and a slider, which the picture follows while it's dragged; `say` gets a
        sentence when somebody types more than can be."""
        import ipywidgets as w

        words = f"{self.label} ({self.unit})" if self.unit else self.label
        tooltip = (
            "tooltip" if w.Dropdown.class_traits().get("tooltip") else "description_tooltip"
        )  # before ipywidgets 8
        common = {"description": words, "style": {"description_width": "140px"}, tooltip: self.why}
        box: Any
        if self.choices:
            box = w.Dropdown(
                options=list(self.choices.items()),
                value=value,
                layout={"width": "424px", "max_width": "100%"},
                **common,
            )
        elif isinstance(self.default, bool):
            box = w.Checkbox(value=value, indent=False, layout={"width": "auto"}, **{**common, "style": {}})
        if self.choices or isinstance(self.default, bool):
            box.observe(lambda change: changed(self.name, change["new"]), "value")
            return box, [box]
        common[tooltip] = f"{self.why}; a {self._range}"
        # A box for whole numbers would ignore the point of 2.5, and take 25.
        box = w.FloatText(value=value, step=1 if self.whole else None, layout={"width": "232px"}, **common)
        slider = self._slider(w, value)
        dragged = False  # then the slider already stands where the mouse has it

        def moved(change: Mapping[str, Any]) -> None:
            nonlocal dragged
            if self._stands_for(change["new"], box.value):
                return
            dragged = True
            box.value = round(change["new"]) if self.whole else _rounded(change["new"])
            dragged = False

        def typed(change: Mapping[str, Any]) -> None:
            nearest = min(max(round(change["new"]) if self.whole else change["new"], self.low), self.high)
            if nearest != change["new"]:
                box.value = nearest
                say(f"{self.label}: a {self._range}; you typed {change['new']:g}.")
                return
            if not dragged:
                slider.unobserve(moved, "value")  # the slider may not be able to stand just there
                slider.value = nearest
                slider.observe(moved, "value")
            changed(self.name, nearest)

        slider.observe(moved, "value")
        box.observe(typed, "value")
        return w.HBox([box, slider], layout={"align_items": "center"}), [box, slider]

    def _stands_for(self, slider: float, value: float) -> bool:
        """Whether the slider is as near to the value as its steps let it come. Front ends tell that as if it had been
        moved."""
        if not self.base:
            return abs(slider - value) <= self._step / 2 + 1e-9
        return abs(math.log(slider / value, self.base)) <= self._step / 2 + 1e-9

    @property
    def _step(self) -> float:
        """From one place of the slider to the next, of a logarithmic one as an exponent."""
        if self.base:
            return 1 if self.base == 2 else 0.05
        return 1 if self.whole else 10.0 ** (math.floor(math.log10(self.high - self.low)) - 2)

    def follow(self, shown: Any, values: Mapping[str, Any]) -> None:
        """Bring what `widgets` gave up to date, when it depends on other settings. Most depend on none."""

    def _slider(self, w: Any, value: float) -> Any:
        options: dict[str, Any] = {
            "value": value, "readout": False, "continuous_update": True, "layout": {"width": "190px"},
        }  # fmt: skip
        if not self.base:
            kind = w.IntSlider if self.whole else w.FloatSlider
            return kind(min=self.low, max=self.high, step=self._step, **options)
        low, high = math.log(self.low, self.base), math.log(self.high, self.base)
        return w.FloatLogSlider(base=self.base, min=low, max=high, step=self._step, **options)


def _rounded(value: float) -> float:
    """To two digits: what somebody means who moves a slider."""
    return round(value, 1 - math.floor(math.log10(abs(value)))) if value else 0.0
