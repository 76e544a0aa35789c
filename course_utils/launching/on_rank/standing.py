"""Where the main thread of this rank waits for other ranks, and for whom: read from its own frames, as they are now.

Nothing is wrapped for this: while a call of `torch.distributed` waits, the frame of that function still holds what it
was called with. `flight_record` asks from a signal handler, so only look here: import nothing, and raise nothing.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_OURS = tuple(os.path.join(_HERE, name) for name in ("standing.py", "flight_record.py"))
_EMULATION = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "emulation") + os.sep
_PACKAGES = f"{os.sep}site-packages{os.sep}"
_STDLIB = os.path.dirname(os.path.abspath(threading.__file__)) + os.sep
_ASKED = ("src", "dst", "group_src", "group_dst", "rank", "world_size", "tag", "init_method")
_WAIT = re.compile(r"\.wait\(\s*\)")  # with a limit of its own it goes on by itself
_FRAMES = 10
_ANSWER_AT_ONCE = ("get_", "is_")  # such as `get_rank`, which a program may ask for ever
_GLOBAL_PEERS = ("send", "recv", "isend", "irecv", "send_object_list", "recv_object_list")


def standing() -> dict[str, Any] | None:
    """Where this rank's main thread waits for another rank; None if it does something else.

    `call` is the function that the program called, `frames` [file, line, function] from that function outwards. With
    them, where they are known: `members` of the group (global ranks) and its name `group`, `peer` (a global rank),
    `root`, `tag`, the `rank` and `world_size` given to `init_process_group`, and its `init_method`; `messages` that a
    batch was to send (`[kind, peer]`). `timeout_s` is after how long the call gives up by itself, `size` how many ranks
    it knows of, `busy` whether another thread of this process may still do something.
    """
    frames = list(_frames(sys._current_frames().get(threading.main_thread().ident or 0)))
    torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", "") or os.sep) + os.sep
    if not frames or "torch.distributed" not in sys.modules:
        return None
    at = next((i for i, f in enumerate(frames) if not _file(f).startswith((torch, _EMULATION))), len(frames))
    inside = [f for f in frames[:at] if f.f_code.co_name != "wrapper"]  # which torch puts around each collective
    if at == 0 and not _waits_for_work(frames[0]) or at and not _waits(frames[:at], torch):
        return None
    called = next((f for f in reversed(inside) if not _file(f).startswith(_EMULATION)), None)
    if called is not None and called.f_code.co_name.startswith(_ANSWER_AT_ONCE):
        return None
    outermost = [] if called is None else [called]
    found: dict[str, Any] = {
        "call": called.f_code.co_name if called else "wait",
        "frames": [[_file(f), f.f_lineno, f.f_code.co_name] for f in [*outermost, *frames[at : at + _FRAMES]]],
        "busy": _others_may_act(),
    }
    values = called.f_locals if called else {}
    found |= {name: values[name] for name in _ASKED if isinstance(values.get(name), (int, str))}
    found |= _about_group(values.get("group"), found)
    if at < len(frames):
        found["messages"] = _messages(frames[at])
    found["timeout_s"] = _least(found.pop("timeout_s", None), values.get("timeout"))
    return found


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """From the innermost outwards, without those of whoever asks."""
    while frame is not None:
        if _file(frame) not in _OURS:
            yield frame
        frame = frame.f_back


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _waits(inside: list[FrameType], torch: str) -> bool:
    """Whether these frames of torch (and of the emulation), the innermost first, are those of a call that waits for
    other ranks. In `rpc` other threads do the work, and nobody sees for whom. `checkpoint` and `elastic` also wait for
    disks and processes."""
    distributed, parallel = torch + "distributed" + os.sep, os.path.join(torch, "nn", "parallel") + os.sep
    if any(_file(f).startswith(distributed + "rpc" + os.sep) for f in inside):
        return False
    if inside[0].f_code.co_name == "_engine_run_backward":  # idle in backward: it waits for the others' gradients
        return True
    innermost = _file(inside[0])
    if innermost.startswith((distributed, parallel)):
        return not innermost.startswith(tuple(distributed + name + os.sep for name in ("checkpoint", "elastic")))
    if innermost.startswith(_EMULATION):  # which never sleeps
        return True
    through = (os.path.join(torch, "_ops.py"), os.path.join(torch, "utils") + os.sep)
    return innermost.startswith(through) and any(_file(f).startswith((distributed, parallel)) for f in inside)


def _waits_for_work(frame: FrameType) -> bool:
    """Whether the program waits for something like `work.wait()` itself, and a Work on that line isn't done."""
    line = linecache.getline(_file(frame), frame.f_lineno)
    work = getattr(sys.modules.get("torch.distributed"), "Work", None)
    if work is None or not _WAIT.search(line):
        return False
    values = frame.f_globals | frame.f_locals
    for name in set(re.findall(r"[A-Za-z_]\w*", line)):
        value = values.get(name)
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, work) and not one.is_completed():
                return True
    return False


def _messages(frame: FrameType) -> list[list[Any]]:
    """The messages of the batches that are among the program's variables there: [send or recv, the other rank]."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    found = []
    for value in (frame.f_globals | frame.f_locals).values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, c10d.P2POp):
                found.append([getattr(one.op, "__name__", "").removeprefix("i"), one.peer])
    return found


def _about_group(group: Any, values: dict[str, Any]) -> dict[str, Any]:
    """What is known of the group that a call waits in; the group of all where it names none."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    found: dict[str, Any] = {}
    try:
        if not c10d.is_initialized():
            return {"size": values["world_size"]} if values.get("world_size", -1) > 0 else {}
        group = c10d._get_default_group() if not isinstance(group, c10d.ProcessGroup) else group
        members = sorted(c10d._world.pg_group_ranks[group], key=c10d._world.pg_group_ranks[group].__getitem__)
        found = {"members": members, "group": c10d._world.pg_names[group], "size": c10d.get_world_size()}
        index = values.get("group_src", values.get("group_dst"))
        given = values.get("src", values.get("dst"))
        other = given if index is None else members[index]
        if other is not None:
            found["peer" if values["call"] in _GLOBAL_PEERS else "root"] = other
        backend = group._get_backend(sys.modules["torch"].device("cpu"))
        found["timeout_s"] = getattr(backend, "real", backend).options._timeout.total_seconds()
    except Exception:  # a backend that knows less of itself
        pass
    return found


def _least(*limits: Any) -> float | None:
    """The shortest of some timeouts, in seconds."""
    known = [x.total_seconds() if isinstance(x, timedelta) else x for x in limits]
    return min((float(x) for x in known if isinstance(x, (int, float))), default=None)


def _others_may_act() -> bool:
    """Whether another thread is in the middle of code of the program's own, and doesn't wait without a limit there."""
    for thread, frame in sys._current_frames().items():
        if thread == threading.main_thread().ident:
            continue
        frames = list(_frames(frame))
        files = [_file(f) for f in frames]
        if not files or any(_PACKAGES in file for file in files) and all(map(_is_library, files)):
            continue  # of a library, such as a loader's
        idle = all(map(_is_library, files)) or files[0] in (_STDLIB + "threading.py", _STDLIB + "queue.py")
        if not idle or any(f.f_locals.get("timeout") is not None for f in frames if _file(f).startswith(_STDLIB)):
            return True  # a Timer, for example
    return False


def _is_library(file: str) -> bool:
    return file.startswith((_STDLIB, "<")) or _PACKAGES in file
