"""Check arguments, so that a wrong number is caught at the door and not three formulas later."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..show.units import is_number


def _number(name: str, value: object) -> float:
    if not is_number(value) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number; got {value!r}")
    return value


def positive(**values: object) -> None:
    """Raise ValueError for the first value that isn't a finite number above zero."""
    for name, value in values.items():
        if _number(name, value) <= 0:
            raise ValueError(f"{name} must be above zero; got {value!r}")


def not_negative(**values: object) -> None:
    """Raise ValueError for the first value that isn't a finite number, zero or above."""
    for name, value in values.items():
        if _number(name, value) < 0:
            raise ValueError(f"{name} must be zero or above; got {value!r}")


def fraction(**values: object) -> None:
    """Raise ValueError for the first value outside 0 to 1."""
    for name, value in values.items():
        if not 0 <= _number(name, value) <= 1:
            raise ValueError(f"{name} must be a fraction from 0 to 1; got {value!r}")


def count(minimum: int = 1, **values: object) -> None:
    """Raise ValueError for the first value that isn't a whole number, at least `minimum`."""
    for name, value in values.items():
        if _number(name, value) != int(_number(name, value)) or _number(name, value) < minimum:
            raise ValueError(f"{name} must be a whole number, at least {minimum}; got {value!r}")


def one_of(choices: Sequence[str], **values: object) -> None:
    """Raise ValueError for the first value that isn't among `choices`."""
    for name, value in values.items():
        if value not in choices:
            raise ValueError(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}; got {value!r}")


def at_most(limit: float, what: str, value: float) -> None:
    """Raise ValueError for a simulation that would take minutes. That's usually a typo."""
    if value > limit:
        raise ValueError(f"{value:.3g} {what} are too many to simulate; the limit is {limit:.3g}")
