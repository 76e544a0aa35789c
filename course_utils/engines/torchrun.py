"""The same ranks, started by torchrun: for elastic restarts, and to compare with."""

from __future__ import annotations

import sys
from pathlib import Path

from . import RESTARTS, Handle, Request
from .local import start_cold

CHILD = Path(__file__).resolve().parent / "child.py"


def start(request: Request) -> Handle:
    """Start the ranks under `torchrun --standalone`, under the same watch as local ranks."""
    request.command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={request.world_size}"]
    request.command += [f"--max-restarts={request.max_restarts}", str(CHILD), request.script, *request.args]
    if request.max_restarts:
        request.env |= RESTARTS
    handle = start_cold(request)
    handle.start = "torchrun"
    return handle
