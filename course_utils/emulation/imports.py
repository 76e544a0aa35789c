"""Changes to modules of torch that a program may never import."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call a function once, when a module has been imported, or at once if it has been already."""
    if name in sys.modules:
        call()
        return

    class Finder:
        @staticmethod
        def find_spec(asked: str, path: Any = None, target: Any = None) -> Any:
            if asked != name:
                return None
            sys.meta_path.remove(Finder)
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module: Any) -> None:
                    execute(module)
                    call()

                setattr(spec.loader, "exec_module", exec_module)  # noqa: B010
            return spec

    sys.meta_path.insert(0, Finder)
