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
        looking = False

        @staticmethod
        def find_spec(asked: str, path: Any = None, target: Any = None) -> Any:
            if asked != name or Finder.looking:
                return None
            Finder.looking = True
            try:
                spec = importlib.util.find_spec(name)
            finally:
                Finder.looking = False
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module: Any) -> None:
                    if Finder in sys.meta_path:  # whoever only asks whether it's there doesn't come here
                        sys.meta_path.remove(Finder)
                    execute(module)
                    call()

                setattr(spec.loader, "exec_module", exec_module)  # noqa: B010
            return spec

    sys.meta_path.insert(0, Finder)
