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


def no_data_parallel() -> None:
    """DataParallel computes on its first device."""

    class OnTheFirst(torch.nn.Module):
        def __init__(self, module: torch.nn.Module, device_ids: Any = None, **_: Any):
            super().__init__()
            self.module, self.device_ids = module, device_ids or list(range(torch.cuda.device_count()))

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    torch.nn.DataParallel = OnTheFirst  # type: ignore[misc]


def no_rpc() -> None:
    """Each rank is its own and only worker."""
    import torch.distributed.rpc as rpc

    class Here:
        """A reference to what lies in this process."""

        def __init__(self, value: Any):
            self.value = value

        def rpc_sync(self) -> Any:
            return self.value

    stand_in: Any = rpc
    stand_in.init_rpc = stand_in.shutdown = lambda *args, **kwargs: None
    stand_in.remote = lambda to, function, args=(), kwargs=None: Here(function(*args, **(kwargs or {})))
    stand_in.rpc_sync = lambda to, function, args=(), kwargs=None: function(*args, **(kwargs or {}))
