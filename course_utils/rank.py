"""What a script can call on a rank.

This file imports nothing else of the course, so a script that uses it can be copied, with this one file,
to any machine and started by torchrun, by srun or by hand. Without the course's launcher `report` prints,
and `device` goes by torchrun's variables.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Every record has these anyway, so a value of the same name would be lost, or would hide them.
_RESERVED = {
    "rank": "every record carries the rank that reported it: leave it out, or take another name, such as sender_rank",
    "time": "every record carries the time of its report: take another name, with the unit in it, such as step_s",
}

# How long a rank that nobody supervises waits at its end, for gloo's threads.
_GLOO_ENDS_S = 0.2

__all__ = ["amp_dtype", "backend", "device", "devices", "report", "timer", "trace_path"]


def _env_int(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def _of_the_launch() -> int:
    """This rank's number in the launch. Where few ranks stand for many, it isn't the one that the program sees."""
    return _env_int("COURSE_RANK", _env_int("RANK", 0))


def device() -> torch.device:
    """The device of this rank: `cuda:K` if the launch gave it a GPU, otherwise `cpu`.

    If each rank has several GPUs, this is its first; `devices` returns all of them.
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
    """The process-group backend that fits `device`: `nccl` if the rank has a GPU of its own, otherwise `gloo`.

    NCCL refuses two ranks on one GPU, so ranks that share one use gloo.
    """
    shared = os.environ.get("COURSE_DEVICE") == "shared"
    return "nccl" if device().type == "cuda" and not shared else "gloo"


def amp_dtype() -> torch.dtype:
    """The 16-bit type for mixed precision here: bfloat16 on a CPU and on GPUs from compute capability 8.0 on, float16
    on older ones, which needs a `torch.amp.GradScaler`.

    The oldest GPU that this rank sees decides, so that all ranks of a machine agree. `torch.cuda.is_bf16_supported()`
    is no answer: it says True on a T4, which has no bf16 and converts.
    """
    import torch

    if device().type == "cpu" or torch.version.hip is not None:
        return torch.bfloat16
    oldest = min(torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count()))
    return torch.bfloat16 if oldest >= (8, 0) else torch.float16


def report(*, progress: tuple[float, float] | None = None, **values: Any) -> None:
    """Add one record to the results of this rank; the notebook reads it with `run.samples(name)`.

    Values are numbers, strings, booleans, or flat lists of them; a tensor with one element counts as a number. Put
    the unit in the name: `step_s=0.05`, `traffic_bytes=4096`. `progress=(done, total)` moves its bar under the cell.
    Raises ValueError for the names `rank` and `time`, which every record carries already, and TypeError for a value
    that JSON cannot hold. Outside a launch the record is printed.
    """
    for name in values:
        if name in _RESERVED:
            raise ValueError(f"report({name}=...) is not possible: {_RESERVED[name]}")
    record = {name: _plain(name, value) for name, value in values.items()}
    if progress is not None:
        record["progress"] = _done_of_total(progress)
    folder = os.environ.get("COURSE_RUN_DIR")
    if folder is None:
        if record and progress is None:
            # in one piece: torchrun's ranks share one terminal, unbuffered
            sys.stdout.write(f"report {json.dumps(record)}\n")
            sys.stdout.flush()
        return
    record["time"] = time.time()
    line = json.dumps(record) + "\n"
    # One write of one line to a file opened for appending: never torn, and there even if the rank dies right after.
    fd = os.open(os.path.join(folder, f"rank{_of_the_launch()}.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def _done_of_total(progress: Any) -> list[float]:
    try:
        done, total = (float(number) for number in progress)
    except (TypeError, ValueError):
        done = total = math.nan
    if not (math.isfinite(done) and math.isfinite(total)):
        raise TypeError(
            f"report(progress=...) moves the bar and takes a pair of finite numbers, (done, total); got {progress!r}"
        )
    return [done, total]


def _plain(name: str, value: Any) -> Any:
    if hasattr(value, "numel") and value.numel() == 1:
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a numpy scalar
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    raise TypeError(
        f"report({name}=...) got a {type(value).__name__}; give numbers, strings or lists of them (try .item() or"
        " .tolist())"
    )


class _Timer:
    """Filled by `timer`: `seconds` is the wall time of the block."""

    seconds: float = float("nan")


@contextmanager
def timer() -> Iterator[_Timer]:
    """Time a block: `with timer() as t: ...`, then `t.seconds`. It waits for the GPU before and after, so that the
    block's work there counts."""
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
    """The file for this rank's profile: `prof.export_chrome_trace(trace_path())`. In the notebook, `traces.load(run)`
    reads those of all ranks.

    It lies next to the launch's records, or outside a launch in the working folder. If a script makes several traces,
    give each a `name`.
    """
    return os.path.join(os.environ.get("COURSE_RUN_DIR", ""), f"rank{_of_the_launch()}.{name}.json.gz")


def _wait_for_gloo() -> None:
    """Give gloo's threads time to end what they do, before Python ends.

    The first DistributedDataParallel imports torch.distributed.nn, whose functions have the process group that exists
    by then as their default; so it outlives `destroy_process_group`. A thread of gloo needs Python's lock to let go of
    the last collective, and before Python 3.14 an interpreter that is ending stops such a thread inside C++: the
    process aborts ("terminate called without an active exception"), though its work is done.
    """
    if "torch.distributed" in sys.modules:
        time.sleep(_GLOO_ENDS_S)


if "RANK" in os.environ and "COURSE_RUN_DIR" not in os.environ:  # by torchrun or srun: the course's launcher sees to it
    atexit.register(_wait_for_gloo)
