"""What asks the driver, past torch: the program `nvidia-smi`, and NVML, for `pynvml` and `torch.cuda.utilization`. Both
answer for the modelled GPUs."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from . import smi
from .imports import after_import
from .remarks import say
from .state import Gpus

SAMPLE_S = 1.0  # over which NVML looks at what a GPU does
LATEST = 10_000  # spans of the timeline that we look at for that


def install(gpus: Gpus) -> Callable[[], None]:
    """Let programs that this rank starts find our nvidia-smi, and answer for NVML. Returns what to call when the rank's
    program has ended."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")
    os.environ.update(PATH=f"{here}{os.pathsep}{os.environ.get('PATH', os.defpath)}", COURSE_PYTHON=sys.executable)
    forget = _tell_memory(gpus)
    after_import("pynvml", lambda: _answer(gpus, sys.modules["pynvml"]))
    return forget


def _tell_memory(gpus: Gpus) -> Callable[[], None]:
    """Keep a file in which the other ranks, and nvidia-smi, see what this rank holds of each GPU."""
    folder = os.environ.get("COURSE_RUN_DIR")
    if folder is None:
        return lambda: None
    path, size = smi.file_of(folder, gpus.rank), struct.calcsize(smi.NUMBER)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, bytes(size * gpus.in_node))
    for index, memory in enumerate(gpus.memory):
        last = [0]

        def tell(reserved: int, index: int = index, last: list[int] = last) -> None:
            if reserved != last[0]:
                last[0] = reserved
                os.pwrite(file, struct.pack(smi.NUMBER, reserved), gpus.seen[index] * size)

        memory.tell = tell
    own = os.getpid()

    def forget() -> None:
        if os.getpid() == own:
            for memory in gpus.memory:
                memory.tell = lambda reserved: None
            os.close(file)
            path.unlink(missing_ok=True)

    return forget


def _busy_percent(gpus: Gpus) -> int:
    """The part of the last second, in virtual time, in which this rank's GPU had something to do."""
    until = gpus.clock.host
    since = max(0.0, until - SAMPLE_S)
    spans = sorted(
        (max(start, since), min(end, until))
        for kind, _, start, end, *_ in gpus.clock.spans[-LATEST:]
        if kind != "waiting" and end > since and start < until
    )
    busy, reached = 0.0, since
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return round(100 * busy / (until - since)) if until > since else 0


class _Rates:
    """NVML's utilization: `gpu` in percent. Nobody models how long memory is busy."""

    def __init__(self, gpu: int, refuse: Callable[[str], Any]):
        self.gpu, self._refuse = gpu, refuse

    @property
    def memory(self) -> int:
        return self._refuse("the utilization of its memory")


def _answer(gpus: Gpus, nvml: Any) -> None:
    """Replace the functions of pynvml that ask the driver."""
    device = gpus.device

    def refuse(what: str) -> Any:
        say(f"nvml {what}", f"a modelled GPU has no answer to {what}")
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)

    def handle(index: int) -> int:
        if not 0 <= int(index) < gpus.in_node:
            raise nvml.NVMLError(nvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(index)

    def memory(handle: int, version: Any = None) -> Any:
        folder = os.environ.get("COURSE_RUN_DIR", "")
        taken = smi.used(folder, smi.ranks_here(), gpus.in_node, bool(gpus.cluster.one_of))[handle]
        return SimpleNamespace(total=device.memory_bytes, used=taken, free=device.memory_bytes - taken)

    own: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: gpus.in_node,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetIndex": handle,
        "nvmlDeviceGetName": lambda handle: device.name,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-emulated-{handle}",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: tuple(device.capability),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": lambda handle: _Rates(
            _busy_percent(gpus) if handle == gpus.seen[gpus.current] else 0, refuse
        ),
    }
    for name in dir(nvml):
        if name in own or name.startswith(("nvmlDevice", "nvmlSystem", "nvmlUnit", "nvmlEvent", "nvmlGpu", "nvmlVgpu")):
            setattr(nvml, name, own.get(name) or (lambda *args, what=name, **kwargs: refuse(what)))
