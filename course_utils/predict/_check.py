"""Checks of arguments, so that a wrong number is named at the door and not three formulas later."""

from __future__ import annotations

import math
from collections.abc import Sequence


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} is a finite number; got {value!r}")
    return value


def positive(**values: object) -> None:
    """Raises ValueError that names the first value which is not a finite number above zero."""
    for name, value in values.items():
        if _number(name, value) <= 0:
            raise ValueError(f"{name} is above zero; got {value!r}")


def not_negative(**values: object) -> None:
    """Raises ValueError that names the first value which is not a finite number, zero or above."""
    for name, value in values.items():
        if _number(name, value) < 0:
            raise ValueError(f"{name} is zero or above; got {value!r}")


def fraction(**values: object) -> None:
    """Raises ValueError that names the first value outside 0 to 1."""
    for name, value in values.items():
        if not 0 <= _number(name, value) <= 1:
            raise ValueError(f"{name} is a fraction from 0 to 1; got {value!r}")


def count(minimum: int = 1, **values: object) -> None:
    """Raises ValueError that names the first value which is not a whole number from `minimum` on."""
    for name, value in values.items():
        if _number(name, value) != int(_number(name, value)) or _number(name, value) < minimum:
            raise ValueError(f"{name} is a whole number from {minimum} on; got {value!r}")


def one_of(choices: Sequence[str], **values: object) -> None:
    """Raises ValueError that names the first value which is not among `choices`."""
    for name, value in values.items():
        if value not in choices:
            raise ValueError(f"{name} is {', '.join(choices[:-1])} or {choices[-1]}; got {value!r}")


def at_most(limit: float, what: str, value: float) -> None:
    """Raises ValueError when a simulation of `value` of `what` would take minutes: a slip of the pen more often than a wish."""
    if value > limit:
        raise ValueError(f"{value:.3g} {what} are too many to simulate; at most {limit:.3g}")
