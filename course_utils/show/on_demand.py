"""Names of a package that are imported when somebody asks for one (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, home: Mapping[str, str], what: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names are at `home` in its modules. `what` is what a name
    stands for there, for the error."""
    names = sorted(home)

    def found(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no {what} {name!r}; there are {', '.join(names)}")
        value = getattr(import_module(f".{home[name]}", package), name)
        return vars(sys.modules[package]).setdefault(name, value)

    return found, lambda: names
