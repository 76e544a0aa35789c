"""For programs whose main API an emulated cluster refuses: what their first line sets in its place, so that the rest of
their GPU branch can run. Lies next to them when they're rehearsed."""

from __future__ import annotations

from typing import Any

import torch


def no_torchscript() -> None:
    """Functions and modules stay Python's, with empty graphs."""

    class AsItIs:
        inlined_graph = ""

        def __init__(self, it: Any, *args: Any, **kwargs: Any):
            self.it = it

        def __call__(self, *args: Any) -> Any:
            return self.it(*args)

        def graph_for(self, *args: Any) -> str:
            return ""

    jit: Any = torch.jit
    jit.script = jit.trace = jit.freeze = AsItIs
