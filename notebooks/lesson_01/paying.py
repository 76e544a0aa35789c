"""When compiling pays, to move: total time with and without it, over steps."""

from __future__ import annotations

import math
from typing import Any

from course_utils.for_lessons import (
    BLUE,
    GREEN,
    INK,
    LEFT,
    ORANGE,
    RUST,
    WIDE,
    Control,
    Drawing,
    Explorer,
    Found,
    Values,
    View,
    readable,
)
from course_utils.predict import BreakEven

from .compile_figures import about

CONTROLS = (
    Control("compile_s", "compiling takes", 20, "seconds, each time", 0.1, 3600, "s", base=10, whole=False),
    Control("times", "compilations", 1, "the first, and again for each new graph", 1, 64, base=2),
    Control("eager_ms", "eager step", 60, "milliseconds", 0.01, 10000, "ms", base=10, whole=False),
    Control("compiled_ms", "compiled step", 30, "milliseconds", 0.01, 10000, "ms", base=10, whole=False),
    Control("steps", "steps", 2000, "of the whole training", 10, 10_000_000, base=10),
)  # fmt: skip
LEAVES_OUT = (
    "the cache on disk, which makes a second start cheaper; compiling on other cores while the training goes on."
    " Whatever the compiler does, a step can't get faster than the parts it leaves alone."
)


def _render(values: Values, found: Found, answered: bool = True) -> View:
    """Two straight lines, and where they meet."""
    steps = values["steps"]
    model = BreakEven(values["compile_s"] * values["times"], values["eager_ms"] / 1e3, values["compiled_ms"] / 1e3)
    eager, compiled = model.before(steps), model.after(steps)
    drawing, low, tall = Drawing(276), 226.0, 150.0
    top = max(eager, compiled) * 1.05

    def at(n: float, seconds: float) -> tuple[float, float]:
        return LEFT + WIDE * n / steps, low - tall * seconds / top

    won = eager - compiled
    title = (
        f"Compiling {'saves' if won > 0 else 'costs'} {readable('s', abs(won))}: {readable('s', compiled)} instead of"
    )
    title += f" {readable('s', eager)}"
    drawing.text(12, 24, title, 15, bold=True)
    drawing.text(12, 50, "total time   ● eager   ■ compiled", 12)
    drawing.line([(LEFT, low - tall), (LEFT, low), (LEFT + WIDE, low)], "#888888", 1)
    for share in (0.0, 0.5, 1.0):
        drawing.text(LEFT - 8, at(0, top * share)[1] + 4, readable("s", top * share) if share else "0", 11, "end")
        drawing.text(at(steps * share, 0)[0], low + 17, f"{steps * share:,.0f}", 11, "end" if share == 1 else "middle")
    drawing.text(LEFT + WIDE / 2, low + 38, "steps", 12, "middle")
    drawing.line([at(0, 0), at(steps, eager)], BLUE, 2.4)
    drawing.dot(*at(steps, eager), BLUE, 5)
    drawing.line([at(0, model.once_s), at(steps, compiled)], ORANGE, 2.4, "7 4")
    x, y = at(steps, compiled)
    drawing.bar(x - 5, y - 5, 10, 10, ORANGE)
    meet = model.calls
    if meet <= steps:
        x, y = at(meet, model.before(meet))
        drawing.line([(x, low - tall), (x, low)], INK, 1.4, "2 3")
        drawing.dot(x, y, GREEN, 6, hollow=True)
        where, color = f"paid back after about {about(meet)} steps", INK
    else:
        where, color = "no number of steps pays it back", RUST
        if math.isfinite(meet):
            where = f"about {about(meet)} steps would pay it back"
    drawing.text(LEFT + WIDE, 50, where, 12, "end", color=color)
    said = (
        f"{readable('s', model.once_s)} of compiling, {readable('s', model.before_s)} a step without it and"
        f" {readable('s', model.after_s)} with it: {where}. After {steps:,.0f} steps {readable('s', eager)} without it,"
        f" {readable('s', compiled)} with it."
    )
    return View.of(drawing, said)


def pays_back(measured: BreakEven | None = None, **settings: Any) -> Explorer:
    """When compiling pays, starting from what was measured. `settings` are compile_s, times, eager_ms, compiled_ms and
    steps."""
    if measured is not None:
        found = (measured.once_s, measured.before_s * 1e3, measured.after_s * 1e3)
        settings = dict(zip(("compile_s", "eager_ms", "compiled_ms"), found, strict=True)) | settings
    for control in CONTROLS:
        value = settings.get(control.name)
        if isinstance(value, float):  # as measured: to three digits, and within the slider
            settings[control.name] = float(f"{min(max(value, control.low), control.high):.3g}")
    return Explorer("", CONTROLS, _render, given=settings, leaves_out=LEAVES_OUT)
