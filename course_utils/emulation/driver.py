"""What asks the driver: torch's own C++ part, the CUDA runtime, NVML (for `pynvml` and `torch.cuda.utilization`), and
the program `nvidia-smi`. All answer for the modelled GPUs, or refuse."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from . import data_parallel, smi, snapshots
from .imports import after_import
from .not_emulated import DRIVER, KERNELS, NCCL, STORAGE, TUNING, Limit, NotEmulated
from .remarks import say
from .state import Gpus

SAMPLE_S = 1.0  # over which NVML looks at what a GPU does
LATEST = 10_000  # spans of the timeline that we look at for that
# Of torch's C++ part: what asks a driver begins so, and what knows the answer without one.
_ASKS = {
    "_cuda_jiterator_": KERNELS, "_cuda_tunableop_": TUNING, "_cuda_": DRIVER, "_accelerator_": DRIVER, "_nccl_": NCCL,
    "_gds_": STORAGE,
}  # fmt: skip
_KNOWS = re.compile("getCompiledVersion|cudnn_benchmark_limit|conv_benchmark|AllocatorSettings|_nccl_version")
_LIBRARIES = re.compile(r"(^|/)(lib(cuda|cudart|nvidia-ml)\.so|nvcuda\.dll)")


def install(gpus: Gpus) -> Callable[[], None]:
    """Let programs that this rank starts find our nvidia-smi, and answer for NVML. Returns what to call when the rank's
    program has ended."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")
    os.environ.update(PATH=f"{here}{os.pathsep}{os.environ.get('PATH', os.defpath)}", COURSE_PYTHON=sys.executable)
    forget = _tell_memory(gpus)
    _answer_below(gpus)
    _no_libraries()
    after_import("pynvml", lambda: _answer(gpus, sys.modules["pynvml"]))
    return forget


def _answer_below(gpus: Gpus) -> None:
    """Answer for torch's C++ part. What nobody has modelled is refused, by the name of torch's function that asked."""
    below, own = torch._C, _answers(gpus)

    def refused(name: str) -> Callable[..., Any]:
        for begin, about in _ASKS.items():
            if name.startswith(begin):
                return _refusal(f"torch._C.{name}", about)
        raise AttributeError(f"module 'torch._C' has no attribute {name!r}")

    for name in {*own, *dir(below)}:
        if name in own:  # torch._dynamo wants a function of its own for each name
            setattr(below, name, lambda *args, call=own[name], **kwargs: call(*args, **kwargs))
        elif name.startswith((*_ASKS,)) and not _KNOWS.search(name) and not isinstance(getattr(below, name), type):
            setattr(below, name, refused(name))
    below.__getattr__ = refused  # a torch built without CUDA has none of these
    torch.cuda.nccl.is_available = data_parallel.together
    plans: Any = torch.backends.cuda.cuFFTPlanCache
    plans.size, plans.max_size, plans.clear = 0, 4096, lambda self: None  # as many as cuFFT keeps unless told
    cudnn: Any = torch.backends.cudnn
    version = getattr(getattr(below, "_cudnn", None), "getVersionInt", None)
    cudnn.version = version or (lambda: None)
    cudnn.m._init = lambda: version is not None  # not whether this cuDNN would suit the modelled GPU
    torch.cuda._cudart = _Runtime()


def _answers(gpus: Gpus) -> dict[str, Callable[..., Any]]:
    """What's asked of `torch._C` about a GPU, and can be told."""
    cuda = torch.cuda

    def limit(fraction: float, index: int) -> None:
        gpus.memory[gpus.index(index)].fraction = fraction

    nothing = lambda *args: None  # noqa: E731
    return {
        "_cuda_init": nothing,
        "_cuda_isInBadFork": lambda: gpus.forked,
        "_cuda_getDeviceCount": lambda: gpus.count,
        "_cuda_getDevice": lambda: gpus.index(),
        "_cuda_setDevice": cuda.set_device,
        "_cuda_exchangeDevice": cuda._exchange_device,
        "_cuda_maybeExchangeDevice": cuda._maybe_exchange_device,
        "_cuda_hasPrimaryContext": lambda index: gpus.initialized and index == gpus.current,
        "_cuda_synchronize": lambda: cuda.synchronize(),
        "_cuda_ipc_collect": nothing,
        "_cuda_getArchFlags": lambda: " ".join(cuda.get_arch_list()),
        "_cuda_getCurrentRawStream": lambda index: gpus.queue(index).number,
        "_cuda_getCurrentBlasHandle": lambda: 0,
        "_cuda_getCurrentSolverHandle": lambda: 0,
        "_cuda_clearCublasWorkspaces": nothing,
        "_cuda_canDeviceAccessPeer": cuda.can_device_access_peer,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_cudaCachingAllocator_enable": nothing,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_setMemoryFraction": limit,
        "_cuda_getMemoryFraction": lambda index: gpus.memory[gpus.index(index)].fraction,
        "_cuda_emptyCache": cuda.empty_cache,
        "_cuda_resetPeakMemoryStats": cuda.reset_peak_memory_stats,
        "_cuda_resetAccumulatedMemoryStats": cuda.reset_accumulated_memory_stats,
        "_cuda_isHistoryEnabled": lambda: any(memory.history is not None for memory in gpus.memory),
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_is_enabled": lambda: False,
        "_cuda_record_untuned_is_enabled": lambda: False,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: gpus.index(),
        "_accelerator_setDeviceIndex": cuda.set_device,
        "_accelerator_exchangeDevice": cuda._exchange_device,
        "_accelerator_maybeExchangeDevice": cuda._maybe_exchange_device,
        "_accelerator_getStream": cuda.current_stream,
        "_accelerator_setStream": cuda.set_stream,
        "_accelerator_synchronizeDevice": cuda.synchronize,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": cuda.empty_cache,
        "_accelerator_emptyHostCache": nothing,
        "_accelerator_getDeviceStats": lambda index: gpus.memory[gpus.index(index)].stats(),
        "_accelerator_resetPeakStats": cuda.reset_peak_memory_stats,
        "_accelerator_resetAccumulatedStats": cuda.reset_accumulated_memory_stats,
        "_accelerator_getMemoryInfo": cuda.mem_get_info,
        "_accelerator_getDefaultGenerator": lambda index: cuda.default_generators[index],
        **snapshots.install(gpus),
        **data_parallel.comm(gpus),
    }


def _refusal(name: str, about: Limit) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        asked = sys._getframe(1)
        module = asked.f_globals.get("__name__", "")
        what = f"{module}.{asked.f_code.co_name}" if module.startswith("torch.") else name
        raise NotEmulated(str(about._replace(what=what) if about is DRIVER else about))

    return refuse


class _Runtime:
    """`torch.cuda.cudart()`: the CUDA runtime, as far as programs call it."""

    class cudaError(int):
        success = 0

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        return torch.cuda.mem_get_info(device)

    def cudaProfilerStart(self) -> int:
        return self.cudaError.success

    cudaProfilerStop = cudaProfilerStart

    def cudaGetErrorString(self, error: int) -> str:
        return f"error {error} of the CUDA runtime" if error else "no error"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        raise NotEmulated(str(DRIVER._replace(what=f"{name} of the CUDA runtime")))


def _no_libraries() -> None:
    """The driver's libraries may be there and know other GPUs, or not be there; neither is what the program sees."""
    library: Any = ctypes.CDLL
    real = library.__init__

    def init(self: Any, name: Any = None, *args: Any, **kwargs: Any) -> None:
        if isinstance(name, (str, os.PathLike)) and _LIBRARIES.search(os.fspath(name)):
            raise OSError(str(DRIVER._replace(what=os.path.basename(name))))
        real(self, name, *args, **kwargs)

    library.__init__ = init
    for name in ("cuda.bindings.driver", "cuda.bindings.runtime"):
        after_import(name, functools.partial(_no_bindings, name))


def _no_bindings(name: str) -> None:
    module = sys.modules[name]
    for called in dir(module):
        if called.startswith("cu") and callable(found := getattr(module, called)) and not isinstance(found, type):
            setattr(module, called, _refusal(f"{name}.{called}", DRIVER))


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


def _busy_percent(gpus: Gpus, device: int) -> int:
    """The part of the last second, in virtual time, in which one of this rank's GPUs ran a kernel. One of NCCL's runs
    while it waits for other ranks; gloo waits on the CPU."""
    idle = () if dist.is_initialized() and "nccl" in dist.get_backend() else ("waiting",)
    until = gpus.clock.host
    since = max(0.0, until - SAMPLE_S)
    spans = sorted(
        (max(start, since), min(end, until))
        for kind, _, start, end, where in gpus.clock.spans[-LATEST:]
        if where == device and kind not in idle and end > since and start < until
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
            _busy_percent(gpus, gpus.seen.index(handle)) if handle in gpus.seen else 0, refuse
        ),
    }
    for name in dir(nvml):
        if name in own or name.startswith(("nvmlDevice", "nvmlSystem", "nvmlUnit", "nvmlEvent", "nvmlGpu", "nvmlVgpu")):
            setattr(nvml, name, own.get(name) or (lambda *args, what=name, **kwargs: refuse(what)))
