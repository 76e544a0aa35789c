"""Where the emulation ends, said in one line; threads, into which it follows, and processes, where it's off."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from . import tensors
from .imports import after_import
from .operators import Operators
from .remarks import say
from .state import Gpus

READ_S = 1e-7  # reading a clock, so that a loop which waits for a time comes to its end
_REAL = {name: getattr(time, name) for name in ("perf_counter", "perf_counter_ns", "time", "time_ns", "sleep")}


class NotEmulated(RuntimeError):
    """An emulated cluster can't run this."""


def install(gpus: Gpus, operators: Operators) -> None:
    _patch_time(gpus)
    _follow_threads(gpus, operators)
    _refuse()
    _compile_as_is()
    _profile_the_host()
    os.register_at_fork(after_in_child=lambda: _leave(gpus, operators))


def real_time() -> None:
    """Give the real clocks back."""
    for name, function in _REAL.items():
        setattr(time, name, function)


def _patch_time(gpus: Gpus) -> None:
    """The program's clocks are the virtual one; what they start from is real. Whoever sleeps lets it advance."""
    epoch, main = time.time(), threading.main_thread().ident

    def now() -> float:
        if threading.get_ident() == main:
            gpus.clock.host += READ_S
        return gpus.clock.host

    def sleep(seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        if threading.get_ident() == main:
            gpus.clock.host += seconds
            seconds = min(seconds, 1e-4)  # for others to do what this one may be waiting for
        _REAL["sleep"](seconds)

    module: Any = time
    module.perf_counter, module.perf_counter_ns = now, lambda: int(now() * 1e9)
    module.time, module.time_ns = lambda: epoch + now(), lambda: int((epoch + now()) * 1e9)
    module.sleep = sleep


def _follow_threads(gpus: Gpus, operators: Operators) -> None:
    """A thread that the program starts sees the same GPUs. As in CUDA, its device is the first until it sets one."""
    thread: Any = threading.Thread
    start = thread._bootstrap_inner

    def bootstrap(self: threading.Thread) -> None:
        tensors.enter(gpus, operators)
        start(self)

    thread._bootstrap_inner = bootstrap


def _leave(gpus: Gpus, operators: Operators) -> None:
    """A forked process, such as a DataLoader's worker, has no GPUs, as CUDA's would have none."""
    gpus.forked = operators.off = True
    real_time()


def _from_the_program() -> bool:
    """Whether the program itself called, and not a library."""
    return "site-packages" not in sys._getframe(2).f_code.co_filename


def _refuse() -> None:
    def instead(owner: Any, name: str, text: str, libraries: bool = False) -> None:
        """`libraries` may go on calling it."""
        real = getattr(owner, name, None)

        def refuse(*args: Any, **kwargs: Any) -> Any:
            if libraries and real is not None and not _from_the_program():
                return real(*args, **kwargs)
            raise NotEmulated(f"an emulated cluster can't run {text}")

        setattr(owner, name, refuse)

    one_each = "Start one rank for each GPU and use DistributedDataParallel."
    parallel: Any = torch.nn.parallel
    instead(torch.nn.DataParallel, "__init__", f"DataParallel: its threads compute on all GPUs at once. {one_each}")
    instead(parallel, "data_parallel", f"data_parallel. {one_each}")
    graphs = "CUDA graphs: the modelled GPU knows only operators that are called one by one. Leave the capture out."
    # Classes stay classes, since annotations, isinstance and subclasses name them; nobody can make one.
    for owner, name in ((torch.cuda.CUDAGraph, "__new__"), (torch.cuda.graph, "__init__")):
        instead(owner, name, graphs)
    instead(torch.cuda, "make_graphed_callables", graphs)
    for name in ("script", "trace"):
        text = "TorchScript: its interpreter passes by what the emulation sees. Run it in Python."
        instead(torch.jit, name, text, libraries=True)  # some do as they're imported
    rpc = "torch.distributed.rpc: its messages travel outside of process groups. Use send and recv."
    after_import("torch.distributed.rpc", lambda: instead(sys.modules["torch.distributed.rpc"], "init_rpc", rpc))
    for module, name in (("jit", "JITFunction"), ("autotuner", "Autotuner"), ("interpreter", "InterpretedFunction")):
        after_import(f"triton.runtime.{module}", functools.partial(_no_triton, f"triton.runtime.{module}", name))
    sys.meta_path.insert(0, _NoTensorFlow)


def _no_triton(module: str, name: str) -> None:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotEmulated(
            "an emulated cluster can't run Triton kernels: the modelled GPU knows only torch's operators. Compute the"
            " same with those, or take a real GPU."
        )

    getattr(sys.modules[module], name).run = refuse


class _NoTensorFlow(Loader):
    """Finds TensorFlow, since torch itself asks whether it's there, and refuses to load it."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls(), is_package=True) if name == "tensorflow" else None

    def exec_module(self, module: Any) -> None:
        raise ImportError("an emulated cluster can't run TensorFlow: only PyTorch sees its GPUs")


def _compile_as_is() -> None:
    """torch.compile gives back what it gets."""

    def compile(model: Any = None, **kwargs: Any) -> Any:
        say(
            "compile",
            "torch.compile is left out, since its kernels can't be emulated: the program runs eagerly, at eager speed",
        )
        if model is None:
            decorate: Callable[[Any], Any] = lambda function: function  # noqa: E731
            return decorate
        return model

    torch.compile = compile
    torch.nn.Module.compile = lambda self, *args, **kwargs: compile(self) and None


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
