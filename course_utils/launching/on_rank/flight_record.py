"""What this rank has asked of others, and where it waits for them, in a file: written when the rank ends, when it
aborts, and when it's asked.

torch keeps the last collectives of a process in a ring buffer, its flight recorder: kind, number, shapes and the Python
lines that called them, also those that DDP and FSDP send on their own. It costs a few microseconds a collective. Ranks
that fail because they disagree often die inside C++ (gloo ends the process when sizes differ), or wait there until
they're killed, where no Python handler runs. So two signals get a handler in C that calls back into Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import sys
from contextlib import suppress
from typing import Any

if __package__:
    from .standing import standing
else:  # in a rank that starts cold: see `rank_process`
    from standing import standing  # type: ignore[import-not-found,no-redef]

SIZE = "64"  # collectives that are kept
ASK_SIGNAL = signal.SIGRTMIN + 12 if hasattr(signal, "SIGRTMIN") else None
FRAMES = 8  # of the script and of other libraries, for each collective
BACKENDS = ("gloo", "nccl")

_kept: list[Any] = []  # handlers that C knows the addresses of


def keep(path: str) -> None:
    """Record from now on, and write the record to `path` when this process aborts or gets `ASK_SIGNAL`. Linux only."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # of an earlier attempt, before all ranks were restarted
    if ASK_SIGNAL is None or sys.platform != "linux":
        return
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", SIZE)  # torch looks when the first process group is made
    own = os.getpid()
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    handler_type = ctypes.CFUNCTYPE(None, ctypes.c_int)

    def on_signal(number: int) -> None:
        if os.getpid() == own:  # and not a process that it forked
            write(path, ended=False)
        if number == signal.SIGABRT:
            libc.signal(number, before)
            raise_signal(number)  # to whom it went before: to faulthandler, once we have returned

    raise_signal = libc["raise"]  # a keyword in Python
    handler = handler_type(on_signal)
    _kept.append(handler)
    before = libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
    libc.signal(ASK_SIGNAL, ctypes.cast(handler, ctypes.c_void_p))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [ASK_SIGNAL])


def write(path: str, ended: bool) -> None:
    """Write the record, also when there's nothing in it, where this rank waits for others, and whether the script has
    ended. Never raises: it's called while a process dies."""
    with suppress(BaseException):
        left: dict[str, Any] = {"ended": ended, "calls": _calls(), "standing": None}
        with suppress(Exception):
            left["standing"] = None if ended else standing()
        with open(path + ".partial", "w") as file:
            json.dump(left, file)
        os.replace(path + ".partial", path)


def _calls() -> list[dict[str, Any]]:
    """The collectives that torch remembers, oldest first. `inputs` are shapes, `frames` [file, line, function], the
    innermost first. Empty where torch is too old, or nothing was sent."""
    if emulated := sys.modules.get("course_utils.emulation.meeting"):
        return list(emulated.recorded)
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    torch: Any = sys.modules.get("torch")
    if c10d is None or not hasattr(c10d, "_dump_fr_trace") or os.environ.get("TORCH_FR_BUFFER_SIZE") == "0":
        return []
    # To name lines of compiled code torch asks for `torch._inductor`, whose import takes seconds. Without it there are
    # no such lines.
    hidden = "torch._inductor" not in sys.modules
    if hidden:
        torch._inductor = None
    inside = os.path.dirname(torch.__file__) + os.sep
    try:
        entries = [entry for backend in BACKENDS for entry in _entries(c10d, backend)]
    finally:
        if hidden:
            del torch._inductor
    return [
        {
            "group": entry["process_group"][0],
            "number": entry["collective_seq_id"],
            "op": entry["profiling_name"].split(":", 1)[-1].lstrip("_"),
            "inputs": entry["input_sizes"],
            "dtypes": entry["input_dtypes"],
            "frames": _from_the_script(entry.get("frames", ()), inside),
        }
        for entry in entries
        if not entry["is_p2p"]
    ]


def _from_the_script(frames: Any, inside: str) -> list[list[Any]]:
    """The frames from the first one outside of torch on, and the call into torch before it: few enough to keep."""
    calls = [frame for frame in frames if frame["name"] != "wrapper"]  # which torch puts around each collective
    at = next((i for i, frame in enumerate(calls) if not frame["filename"].startswith(inside)), len(calls))
    return [[f["filename"], f["line"], f["name"]] for f in calls[max(0, at - 1) : at + FRAMES]]


def _entries(c10d: Any, backend: str) -> list[dict[str, Any]]:
    try:
        return list(pickle.loads(c10d._dump_fr_trace(True, True, False, backend))["entries"])
    except TypeError:  # a torch that has one recorder, without a name
        return list(pickle.loads(c10d._dump_fr_trace(True, True, False))["entries"]) if backend == BACKENDS[0] else []
    except (RuntimeError, ValueError):  # a backend that this build lacks
        return []
