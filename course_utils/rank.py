"""What a script may call inside a rank.

This file imports nothing else of the course, so a script that uses it can be copied, with this one file,
to any machine and started by torchrun, by srun or by hand. Without the course's launcher `report` prints,
and `device` falls back on what torchrun says.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["backend", "device", "devices", "report", "timer", "trace_path"]


def _env_int(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def device() -> torch.device:
    """The device of this rank: `cuda:K` where the launch gave it a GPU, otherwise `cpu`.

    With several GPUs a rank this is the first of them; `devices` names all.
    """
    return devices()[0]


def devices() -> list[torch.device]:
    """All devices of this rank: one CPU, or `gpus_per_rank` GPUs in the order of their index."""
    import torch

    per_rank = _env_int("COURSE_GPUS_PER_RANK", 1)
    local_rank = _env_int("LOCAL_RANK", 0)
    kind = os.environ.get("COURSE_DEVICE")
    if kind is None:  # started without the course: by torchrun, srun or python
        enough = torch.cuda.is_available() and (local_rank + 1) * per_rank <= torch.cuda.device_count()
        kind = "cuda" if enough else "cpu"
    if kind == "cpu":
        return [torch.device("cpu")]
    if kind == "shared":
        return [torch.device("cuda", 0)]
    first = local_rank * per_rank
    return [torch.device("cuda", i) for i in range(first, first + per_rank)]


def backend() -> str:
    """The process-group backend that fits `device`: `nccl` for a GPU of one's own, otherwise `gloo`.

    NCCL refuses two ranks on one GPU, so ranks that share one use gloo.
    """
    shared = os.environ.get("COURSE_DEVICE") == "shared"
    return "nccl" if device().type == "cuda" and not shared else "gloo"


def report(*, progress: tuple[float, float] | None = None, **values: Any) -> None:
    """Add one record to the results of this rank; the notebook reads it with `run.samples(name)`.

    Values are numbers, strings, booleans, or flat lists of them; a tensor with one element counts as a number. Put
    the unit in the name: `step_s=0.05`, `traffic_bytes=4096`. `progress=(done, total)` moves the bar under the cell.
    Raises TypeError for a value that JSON cannot hold. Outside a launch the record is printed.
    """
    record = {name: _plain(name, value) for name, value in values.items()}
    if progress is not None:
        record["progress"] = [float(progress[0]), float(progress[1])]
    folder = os.environ.get("COURSE_RUN_DIR")
    if folder is None:
        if record and progress is None:
            sys.stdout.write(f"report {json.dumps(record)}\n")  # in one piece: torchrun's ranks share one terminal, unbuffered
            sys.stdout.flush()
        return
    record["time"] = time.time()
    line = json.dumps(record) + "\n"
    # One write of one line to a file opened for appending: never torn, and there even if the rank dies right after.
    fd = os.open(os.path.join(folder, f"rank{_env_int('RANK', 0)}.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def _plain(name: str, value: Any) -> Any:
    if hasattr(value, "numel") and value.numel() == 1:
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a numpy scalar
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    raise TypeError(f"report({name}=...) got a {type(value).__name__}; give numbers, strings or lists of them (try .item() or .tolist())")


class _Timer:
    """Filled by `timer`: `seconds` is the wall time of the block."""

    seconds: float = float("nan")


@contextmanager
def timer() -> Iterator[_Timer]:
    """Time a block: `with timer() as t: ...`, then `t.seconds`. Waits for the GPU on both sides, so that its work counts."""
    result = _Timer()
    _synchronize()
    start = time.perf_counter()
    try:
        yield result
    finally:
        _synchronize()
        result.seconds = time.perf_counter() - start


def _synchronize() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        for dev in devices():
            if dev.type == "cuda":
                torch.cuda.synchronize(dev)


def trace_path(name: str = "trace") -> str:
    """Where this rank exports its profile: `prof.export_chrome_trace(trace_path())`; the notebook reads all ranks' with `traces.load(run)`.

    A file beside the launch's records, or in the working folder outside a launch. Several traces of a script have different names.
    """
    return os.path.join(os.environ.get("COURSE_RUN_DIR", ""), f"rank{_env_int('RANK', 0)}.{name}.json.gz")
