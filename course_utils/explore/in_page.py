"""An explorer in a web page that runs this package in the browser: what the page needs to build its controls, and what
it asks for when one of them moves. The page's side is `tools/site/explorers.js`."""

from __future__ import annotations

import math
from typing import Any

from ..show.table import marked
from .controls import Control
from .explorer import OPEN, Explorer
from .number_bits import Number


def explorer(call: str) -> Explorer:
    """What a call such as `memory(stage=3)` gives. It comes from our own pages."""
    from course_utils import explore

    made = eval(call, {name: getattr(explore, name) for name in explore.__all__})
    assert isinstance(made, Explorer)
    return made


def described(shown: Explorer) -> dict[str, Any]:
    """All that a page shows before anything moves, as JSON can hold it: the picture, the one before the question is
    answered, what each guess is told, the controls with their places, and what only a notebook can do."""
    view, question = shown.view(), shown.question
    page: dict[str, Any] = {
        "call": shown.call,
        "svg": view.svg,
        "summary": marked(view.summary),
        "controls": [_control(control, shown.values[name]) for name, control in shown.controls.items()],
        "leaves_out": marked(shown.leaves_out),
        "actions": [[action.label, marked(action.why)] for action in shown.actions],
    }
    if bits := _bits(shown):
        page["bits"] = bits
    if question is not None:
        guesses = {choice: marked(question.judge(choice)) for choice in question.choices}
        page["question"] = {"text": marked(question.text), "told": guesses | {OPEN: marked(question.judge(None))}}
        page["before"] = shown.view(answered=False).svg
    return page


def drawn(call: str, values: dict[str, Any], flipped: int | None = None) -> dict[str, Any]:
    """The picture at these settings (JSON's values; a menu's is the number of its choice), its summary in words, and
    each control's value. `flipped` is the place of a bit that the reader turned over. An `error` is a sentence about
    settings that can't be."""
    shown = explorer(call)
    try:
        for name, value in values.items():
            control = shown.controls[name]
            shown.set(**{name: list(control.choices.values())[value] if control.choices else value})
        for name, control in shown.controls.items():
            if flipped is not None and isinstance(control, Number):
                shown.set(**{name: control.flipped(shown.values, flipped)})
    except ValueError as error:
        return {"error": str(error)}
    view = shown.view()
    now = {name: _value(control, shown.values[name]) for name, control in shown.controls.items()}
    return {"svg": view.svg, "summary": marked(view.summary), "values": now, "bits": _bits(shown)}


def _bits(shown: Explorer) -> list[tuple[bool, str]]:
    """The bits that can be flipped, the sign first."""
    numbers = [control for control in shown.controls.values() if isinstance(control, Number)]
    return [bit for control in numbers for bit in control.bits(shown.values)]


def _value(control: Control, value: Any) -> Any:
    if control.choices:
        return list(control.choices.values()).index(value)
    return str(value) if isinstance(control, Number) else value


def _control(control: Control, value: Any) -> dict[str, Any]:
    about = {"name": control.name, "label": control.label, "why": control.why, "unit": control.unit,
             "value": _value(control, value), "more": control.more, "only_with": control.only_with}  # fmt: skip
    if control.choices:
        return about | {"kind": "menu", "choices": list(control.choices)}
    if isinstance(control.default, bool):
        return about | {"kind": "switch"}
    if isinstance(control, Number):
        return about | {"kind": "number in bits"}
    low, high = control.low, control.high
    if control.base:  # the slider stands at the logarithm
        low, high = math.log(low, control.base), math.log(high, control.base)
    ends = {"low": control.low, "high": control.high, "from": low, "to": high}
    return about | ends | {"kind": "number", "base": control.base, "step": control._step, "whole": control.whole}
