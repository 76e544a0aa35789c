"""Read the inputs of a published case by name. Each read checks the value, and inputs that nobody read are reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .validation import count, fraction, one_of, positive


class CaseError(ValueError):
    """A case that can't be predicted, and why."""


class Inputs:
    """The inputs of one case. Every method raises ValueError for a missing or bad value."""

    def __init__(self, raw: Any):
        if not isinstance(raw, Mapping):
            raise CaseError(f"inputs must be an object with names and values; got {raw!r}")
        self.raw = raw
        self.read: set[str] = set()

    def _get(self, name: str, default: Any) -> Any:
        self.read.add(name)
        if name not in self.raw and default is None:
            raise CaseError(f"inputs lack {name!r}; they have {', '.join(sorted(self.raw)) or 'nothing'}")
        return self.raw.get(name, default)

    def number(self, name: str, default: float | None = None, zero: bool = False) -> float:
        """A finite number above zero. With `zero`, zero is allowed too."""
        value = self._get(name, default)
        if not (zero and value == 0 and not isinstance(value, bool)):
            positive(**{name: value})
        return float(value)

    def whole(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number, at least `minimum`."""
        value = self._get(name, default)
        count(minimum, **{name: value})
        return int(value)

    def share(self, name: str, default: float | None = None) -> float:
        """A number from 0 to 1."""
        value = self._get(name, default)
        fraction(**{name: value})
        return float(value)

    def word(self, name: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of `choices`."""
        value = self._get(name, default)
        one_of(choices, **{name: value})
        return str(value)

    @property
    def unused(self) -> list[str]:
        return sorted(set(map(str, self.raw)) - self.read)
