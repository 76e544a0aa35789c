"""Whether the ranks of a launch wait for each other, so that none of them can ever go on.

A clock can't tell a deadlock from a long wait; the ranks' own records can. It's one if every rank that still runs waits
in a call of `torch.distributed` for other ranks of this launch, their calls don't fit together, none of them has a
thread that may still do something, and no such call gives up by itself soon.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...failure.deadlocks import why
from ...results.collectives import read_records
from ..request import Request
from .stacks import dump, main_threads, record

GIVES_UP_S = 300.0  # a program that gave its calls a shorter timeout may want to handle the error
DEADLOCK = "every rank waited for another one"  # what the failure says of it
_LOOPBACK = ("lo", "lo0")
_ANSWER_S = 2.0
# Where the innermost frame of a rank is that waits for others, or may. The ranks are only asked if all are there, since
# answering runs Python wherever they stand.
_MAYBE = re.compile(
    r"/torch/(distributed|nn/parallel|utils)/|/torch/_ops\.py|in _engine_run_backward$|course_utils/emulation/"
)


def in_deadlock(pids: Mapping[int, int], request: Request) -> bool:
    """Whether the ranks that run (rank -> pid), and use no processor, are in a deadlock. What they wrote to answer is
    left for the failure's words."""
    folder = Path(request.folder)
    # On a slow network a message may be on its way while no processor does anything.
    if not pids or request.env.get("GLOO_SOCKET_IFNAME") not in _LOOPBACK:
        return False
    stacks = main_threads(dump(pids, folder))
    for rank in pids:  # where it stands in the end is asked anew
        with suppress(OSError):
            os.truncate(folder / f"rank{rank}.stack", 0)
    if any(not _may_wait(stacks.get(rank, "")) for rank in pids):
        return False
    for rank in pids:
        (folder / f"rank{rank}.collectives.json").unlink(missing_ok=True)
    record(pids, folder, _ANSWER_S)
    if not all(_waits_for_good(folder / f"rank{rank}.collectives.json", request) for rank in pids):
        return False
    gone = [rank for rank in range(request.world_size) if rank not in pids]
    return bool(why(read_records(folder, request.world_size, lambda _: True), gone, request.world_size, certain=True))


def _may_wait(stack: str) -> bool:
    frames = [line for line in stack.splitlines() if line.startswith("  File ")]
    return bool(frames) and (bool(_MAYBE.search(frames[0])) or _line_waits(frames[0]))


def _line_waits(frame: str) -> bool:
    """Whether the program itself stands at something like `work.wait()`."""
    place = re.match(r'  File "(.+)", line (\d+) in ', frame)
    with suppress(OSError, IndexError):
        lines = Path(place[1]).read_text(errors="replace").splitlines() if place else []
        return place is not None and ".wait(" in lines[int(place[2]) - 1]
    return False


def _waits_for_good(path: Path, request: Request) -> bool:
    try:
        standing: dict[str, Any] | None = json.loads(path.read_text())["standing"]
    except (OSError, ValueError, KeyError):
        return False
    if standing is None or standing["busy"]:
        return False
    timeout_s, size = standing.get("timeout_s"), standing.get("size", request.world_size)
    if timeout_s is not None and timeout_s < GIVES_UP_S:
        return False
    # A larger world may have ranks that somebody else starts, unless only ranks of this launch know where to meet.
    return size <= request.world_size or request.agent_store and standing.get("init_method") in (None, "env://")
