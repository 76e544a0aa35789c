"""The same ranks, started by torchrun: for elastic restarts, and to compare with."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from . import Handle, Request
from .local import start_cold

CHILD = Path(__file__).resolve().parent / "child.py"
# torchrun's closing table; what it says of a rank that could not speak for itself.
_FAILURE = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+)")


def start(request: Request) -> Handle:
    """Start the ranks under `torchrun --standalone`, under the same watch as local ranks."""
    request.command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={request.world_size}"]
    request.command += [f"--max-restarts={request.max_restarts}", str(CHILD), request.script, *request.args]
    if request.max_restarts:
        # torch 2.15 hands restarted ranks the dead ranks' addresses unless the agent's store is kept apart.
        request.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    handle = start_cold(request)
    handle.start = "torchrun"
    return handle


def exit_codes(folder: Path) -> dict[int, int]:
    """rank -> exit code (negative for a signal) of the ranks that torchrun saw fail."""
    try:
        text = (folder / "launcher.log").read_text(errors="replace")
    except OSError:
        return {}
    return {int(rank): int(code) for rank, code in _FAILURE.findall(text)}
