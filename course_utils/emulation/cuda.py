"""What `torch.cuda` and `torch.accelerator` answer of the modelled GPUs, with the signatures of the real functions."""

from __future__ import annotations

import copy as copying
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from . import streams
from .memory import Memory
from .state import Gpus, say
from .streams import Stream

# What all of these devices have: CUDA C++ Programming Guide, table of compute capabilities.
_ALIKE = {
    "warp_size": 32, "is_integrated": 0, "is_multi_gpu_board": 0, "max_threads_per_block": 1024,
    "regs_per_multiprocessor": 65536, "shared_memory_per_block": 49152,
}  # fmt: skip


def install(gpus: Gpus) -> None:
    """Replace what torch asks a driver."""
    streams.install(gpus)
    for module, stand_ins in ((torch.cuda, _devices(gpus) | _memory(gpus) | _random(gpus)), (torch.accelerator, None)):
        for name, own in (stand_ins or _accelerator(gpus)).items():
            real = getattr(module, name, None)
            call = _with_signature_of(real, own) if real is not None else own
            setattr(module, name, call)
            for part in ("memory", "random", "graphs"):  # where they're at home
                home = getattr(module, part, None)
                if home is not None and getattr(home, name, None) is real and real is not None:
                    setattr(home, name, call)
    torch.cuda._initialized = True
    # DTensor works out shapes with fake tensors on `cuda`. Where there's no driver, FakeTensorMode does this by itself.
    torch._C._ensureCUDADeviceGuardSet()
    torch.Generator = _Generator
    torch.cuda.default_generators = tuple(_Generator(torch.device("cuda", i)) for i in range(gpus.count))
    torch._C._get_accelerator = lambda *args: torch.device("cuda")


class _Generators(type(torch._C.Generator)):  # type: ignore[misc]
    """All generators are of class `torch.Generator`, with those that C++ made, such as torch.default_generator."""

    def __instancecheck__(cls, found: Any) -> bool:
        is_one: bool = isinstance(found, torch._C.Generator) if cls is _Generator else super().__instancecheck__(found)
        return is_one


class _Generator(torch._C.Generator, metaclass=_Generators):
    """A generator of random numbers. A GPU's draws as the CPU's does, and says where it lies."""

    def __new__(cls, device: Any = "cpu") -> Any:
        wanted = torch.device(device)
        found = super().__new__(cls, torch.device("cpu") if wanted.type == "cuda" else wanted)
        found.lies = wanted
        return found

    @property
    def device(self) -> torch.device:
        return self.lies

    def __reduce__(self) -> Any:
        return type(self), (self.lies,), super().__reduce__()[2]

    def clone_state(self) -> Any:
        return copying.deepcopy(self)


class _Properties(types.SimpleNamespace):
    """What is known of a device."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        key = {"multi_processor_count": "sm_count", "L2_cache_size": "l2_bytes"}.get(name)
        hint = f"; {key} in its table would say it" if key else ""
        raise AttributeError(f"nobody has told the emulation the {name} of {self.name}{hint}")


def _devices(gpus: Gpus) -> dict[str, Any]:
    def properties(device: Any = None) -> Any:
        gpu, index = gpus.device, gpus.index(device)
        known = {"multi_processor_count": gpu.sm_count, "L2_cache_size": gpu.l2_bytes}
        known = {name: value for name, value in known.items() if value}
        return _Properties(
            name=gpu.name, major=gpu.capability[0], minor=gpu.capability[1], total_memory=gpu.memory_bytes, **known,
            uuid=f"emulated-{index}", pci_bus_id=index, **_ALIKE,
            max_threads_per_multi_processor=1024 if tuple(gpu.capability) == (7, 5) else 2048,
        )  # fmt: skip

    def set_device(device: Any) -> None:
        gpus.current = gpus.index(device)

    def exchange(device: int) -> int:
        before = gpus.current
        if device >= 0:
            gpus.current = gpus.index(device)
        return before

    def synchronize(device: Any = None) -> None:
        gpus.clock.synchronize(gpus.index(device))

    def set_stream(stream: Stream) -> None:
        if stream is not None:
            gpus.queues[stream.device_index] = stream._queue

    def stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        queue = next(q for q in gpus.clock.queues if q.number == stream_id and q.device == device_index)
        gpus.queues[device_index] = queue

    def watch(debug_mode: int | str) -> None:
        if debug_mode not in (0, "default"):
            say("sync", "set_sync_debug_mode changes nothing: the emulation doesn't watch for calls that wait")

    bf16 = gpus.device.capability >= (8, 0)
    arch = "sm_{}{}".format(*gpus.device.capability)
    return {
        "is_available": lambda: not gpus.forked and gpus.count > 0,
        "device_count": lambda: gpus.count,
        "_device_count_nvml": lambda: gpus.count,
        "_is_compiled": lambda: True,
        "current_device": lambda: gpus.index(),
        "set_device": set_device,
        "synchronize": synchronize,
        "is_initialized": lambda: gpus.initialized,
        "init": lambda: None,
        "_lazy_init": lambda: gpus.index() and None,
        "_lazy_call": lambda callable, **kwargs: callable(),
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: gpus.index(device) * 0 or tuple(gpus.device.capability),
        "get_device_properties": properties,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or bf16,
        "is_tf32_supported": lambda: bf16,
        "can_device_access_peer": lambda device, peer_device: gpus.index(device) != gpus.index(peer_device),
        "current_stream": lambda device=None: Stream.of(gpus.queue(gpus.index(device))),
        "default_stream": lambda device=None: Stream.of(gpus.default_queue(gpus.index(device))),
        "set_stream": set_stream,
        "_set_stream_by_id": stream_by_id,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "current_blas_handle": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "get_arch_list": lambda: [arch],
        "ipc_collect": lambda: None,
        "_get_nvml_device_index": lambda device: gpus.seen[gpus.index(device)],
        "set_sync_debug_mode": watch,
        "get_sync_debug_mode": lambda: 0,
    }


def _memory(gpus: Gpus) -> dict[str, Any]:
    told = torch.cuda.memory_summary

    def of(device: Any) -> Memory:
        return gpus.memory[gpus.index(device)]

    def summary(device: Any = None, abbreviated: bool = False) -> str:
        memory = of(device)
        lines = [f"GPU {gpus.index(device)}, {gpus.device.name}, emulated: {memory.live / 2**20:,.1f} MiB are taken"]
        now, peak = memory.by_kind, memory.at_peak
        lines += [
            f"  {kind:<12} {now.get(kind, 0) / 2**20:>12,.1f} MiB, at the peak {peak.get(kind, 0) / 2**20:>12,.1f} MiB"
            for kind in sorted({*now, *peak})
        ]
        return "\n".join([*lines, told(device, abbreviated)])

    def empty_cache() -> None:
        for memory in gpus.memory:
            memory.empty_cache()

    return {
        "memory_allocated": lambda device=None: of(device).live,
        "max_memory_allocated": lambda device=None: of(device).peak,
        "memory_reserved": lambda device=None: of(device).reserved,
        "max_memory_reserved": lambda device=None: of(device).allocator.peak,
        "reset_peak_memory_stats": lambda device=None: of(device).start_over(),
        "reset_max_memory_allocated": lambda device=None: of(device).start_over(),
        "reset_accumulated_memory_stats": lambda device=None: of(device).start_over(sums=True),
        "memory_summary": summary,
        "mem_get_info": lambda device=None: (of(device).limit - of(device).reserved, of(device).limit),
        "empty_cache": empty_cache,
    }


def _random(gpus: Gpus) -> dict[str, Any]:
    """A GPU's random state. What's computed draws from the CPU's generator, and the program's own seeds set that."""

    def state(device: Any = "cuda") -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    return {
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": lambda: 0,
        "get_rng_state": state,
        "set_rng_state": lambda new_state, device="cuda": None,
        "get_rng_state_all": lambda: [state() for _ in range(gpus.count)],
        "set_rng_state_all": lambda new_states: None,
        "_get_rng_state_offset": lambda device="cuda": 0,
        "_set_rng_state_offset": lambda offset, device="cuda": None,
    }


def _accelerator(gpus: Gpus) -> dict[str, Any]:
    same = (
        "is_available device_count synchronize current_stream set_stream memory_allocated max_memory_allocated"
        " memory_reserved max_memory_reserved reset_peak_memory_stats memory_stats empty_cache"
    ).split()
    return {name: getattr(torch.cuda, name) for name in same} | {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: gpus.index(),
        "current_device_idx": lambda: gpus.index(),
        "set_device_index": torch.cuda.set_device,
        "set_device_idx": torch.cuda.set_device,
        "get_memory_info": torch.cuda.mem_get_info,
    }


def _with_signature_of(real: Any, own: Callable[..., Any]) -> Callable[..., Any]:
    """`own`, which can be called only as `real` can."""
    try:
        signature = inspect.signature(real)
    except (TypeError, ValueError):
        return own

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return own(*args, **kwargs)

    return call
