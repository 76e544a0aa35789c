"""Where the emulation ends, said in one line; threads, into which it follows, and processes, where it's off."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from . import compiled, not_emulated, tensors
from .host_clocks import HostClocks
from .imports import after_import
from .not_emulated import LIMITS, Limit, NotEmulated
from .operators import Operators
from .remarks import say
from .state import Gpus

SCHEDULES = "torch.distributed.pipelining.schedules"


def install(gpus: Gpus, operators: Operators, clocks: HostClocks) -> None:
    _follow_threads(gpus, operators)
    _refuse()
    compiled.install(operators.fusion)
    _profile_the_host()
    if torch.__version__.startswith("2.10."):
        after_import(SCHEDULES, lambda: allow_few_pieces(sys.modules[SCHEDULES].ScheduleGPipe))
    os.register_at_fork(after_in_child=lambda: _leave(gpus, operators, clocks))


def allow_few_pieces(gpipe: Any) -> None:
    """torch 2.10 refuses fewer micro-batches than stages under GPipe; all later versions run them."""
    real = gpipe.__init__

    def init(self: Any, stage: Any, n_microbatches: int, *args: Any, **kwargs: Any) -> None:
        real(self, stage, max(n_microbatches, stage.num_stages), *args, **kwargs)
        self._n_microbatches = n_microbatches

    gpipe.__init__ = init


def _follow_threads(gpus: Gpus, operators: Operators) -> None:
    """A thread that the program starts sees the same GPUs. As in CUDA, its device is the first until it sets one."""
    thread: Any = threading.Thread
    start = thread._bootstrap_inner

    def bootstrap(self: threading.Thread) -> None:
        tensors.enter(gpus, operators)
        start(self)

    thread._bootstrap_inner = bootstrap


def _leave(gpus: Gpus, operators: Operators, clocks: HostClocks) -> None:
    """A forked process, such as a DataLoader's worker, has no GPUs, as CUDA's would have none."""
    gpus.forked = operators.off = True
    clocks.on = False


def _from_the_program() -> bool:
    """Whether the program itself called, and not a library."""
    return "site-packages" not in sys._getframe(2).f_code.co_filename


def _refuse() -> None:
    for name in ("script", "trace"):  # some libraries script functions as they're imported
        setattr(torch.jit, name, _unless_a_library(getattr(torch.jit, name), not_emulated.TORCHSCRIPT))
    by_module: dict[str, list[tuple[str, Limit]]] = {}
    for limit in LIMITS:
        for module, _, name in (place.partition(":") for place in limit.names):
            by_module.setdefault(module, []).append((name, limit))
    for module, names in by_module.items():
        after_import(module, functools.partial(_refuse_in, module, names))
    after_import("torch.utils.cpp_extension", _no_kernels)
    for name in ("nested_tensor", "as_nested_tensor"):
        _no_strided_nested(name)
    sys.meta_path.insert(0, _NoTensorFlow)


def _no_strided_nested(name: str) -> None:
    """Nested tensors of the old layout are C++ through and through, and would look for a driver."""
    nested: Any = torch.nested
    real = getattr(nested, name)

    @functools.wraps(real)
    def make(given: Any, *args: Any, **kwargs: Any) -> Any:
        on_gpu = "cuda" in str(kwargs.get("device")) or any(getattr(t, "is_cuda", False) for t in given)
        if on_gpu and kwargs.get("layout") is not torch.jagged:
            raise NotEmulated(
                f"an emulated cluster can't run torch.nested.{name} with the strided layout: say layout=torch.jagged."
            )
        return real(given, *args, **kwargs)

    setattr(nested, name, make)


def _unless_a_library(real: Callable[..., Any], limit: Limit) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if _from_the_program():
            raise NotEmulated(str(limit))
        return real(*args, **kwargs)

    return refuse


def _refuse_in(module: str, names: list[tuple[str, Limit]]) -> None:
    """Replace functions, and methods of classes, of a module, also where torch has put such a function second. Classes
    stay classes, since annotations, isinstance and subclasses name them; nobody can make one."""
    for path, limit in names:
        *outer, last = path.split(".")
        owner: Any = sys.modules[module]
        for part in outer:
            owner = getattr(owner, part, None)
        real = getattr(owner, last, None)
        if owner is None or (real is None and not outer):  # this torch doesn't have it
            continue

        def refuse(*args: Any, limit: Limit = limit, **kwargs: Any) -> Any:
            raise NotEmulated(str(limit))

        if callable(real) and not isinstance(real, type):
            functools.update_wrapper(refuse, real)  # torch._dynamo looks at what's wrapped
        setattr(owner, last, refuse)
        for second in () if outer else (module.rpartition(".")[0], getattr(real, "__module__", None)):
            if getattr(there := sys.modules.get(second or ""), last, None) is real:
                setattr(there, last, refuse)


def _no_kernels() -> None:
    """A C++ extension for the CPU can be built; one with CUDA's sources can't."""
    extension: Any = sys.modules["torch.utils.cpp_extension"]
    real = extension._jit_compile

    def compile(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if any(extension._is_cuda_file(str(source)) for source in ([sources] if isinstance(sources, str) else sources)):
            raise NotEmulated(str(not_emulated.KERNELS))
        return real(name, sources, *args, **kwargs)

    extension._jit_compile = compile


class _NoTensorFlow(Loader):
    """Finds TensorFlow, since torch itself asks whether it's there, and refuses to load it."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls(), is_package=True) if name == "tensorflow" else None

    def exec_module(self, module: Any) -> None:
        raise ImportError(str(not_emulated.TENSORFLOW))


def _profile_the_host() -> None:
    """torch.profiler would ask the driver for each operator's times. It sees the host, in real time."""
    from torch.autograd import profiler
    from torch.profiler import ProfilerActivity
    from torch.profiler.profiler import _KinetoProfile

    text = "torch.profiler sees what the host really does; the modelled GPU is in the run's timeline"
    new: Any = _KinetoProfile
    old: Any = profiler.profile
    real, real_old = new.__init__, old.__init__

    def init(self: Any, *, activities: Any = None, **kwargs: Any) -> None:
        say("profiler", text)
        real(self, activities=[ProfilerActivity.CPU], **kwargs)

    def init_old(self: Any, *args: Any, **kwargs: Any) -> None:
        for name, host in (("use_device", None), ("use_cuda", False)):  # the second is older
            if kwargs.get(name) in ("cuda", True):
                say("profiler", text)
                kwargs[name] = host
        real_old(self, *args, **kwargs)

    new.__init__, old.__init__ = init, init_old
