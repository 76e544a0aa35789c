"""Where the emulation ends, said in one line; threads, into which it follows, and processes, where it's off."""

from __future__ import annotations

import functools
import os
import sys
import threading
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from . import attention, tensors
from .host_clocks import HostClocks
from .imports import after_import
from .operators import Operators
from .remarks import TORCHS, say
from .state import Gpus


class NotEmulated(RuntimeError):
    """An emulated cluster can't run this."""


def install(gpus: Gpus, operators: Operators, clocks: HostClocks) -> None:
    _follow_threads(gpus, operators)
    _refuse()
    _compile_as_is()
    _profile_the_host()
    os.register_at_fork(after_in_child=lambda: _leave(gpus, operators, clocks))


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
    for name in ("nested_tensor", "as_nested_tensor"):
        _no_strided_nested(name)
    for module, name in (("jit", "JITFunction"), ("autotuner", "Autotuner"), ("interpreter", "InterpretedFunction")):
        after_import(f"triton.runtime.{module}", functools.partial(_no_triton, f"triton.runtime.{module}", name))
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
        if sys._getframe(1).f_code.co_filename.startswith(TORCHS):  # as FlexAttention does, which `attention` has
            return model
        say(
            "compile",
            "torch.compile is left out, since its kernels can't be emulated: the program runs eagerly, at eager speed",
        )
        if model is None:
            return attention.compiled
        return attention.compiled(model)

    torch.compile = compile
    torch.nn.Module.compile = lambda self, *args, **kwargs: torch.compile(self) and None


def _profile_the_host() -> None:
    """torch.profiler would ask the driver for each operator's times. It sees the host, in real time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler.profiler import _KinetoProfile

    real = _KinetoProfile.__init__

    def init(self: Any, *, activities: Any = None, **kwargs: Any) -> None:
        say("profiler", "torch.profiler sees what the host really does; the modelled GPU is in the run's timeline")
        real(self, activities=[ProfilerActivity.CPU], **kwargs)

    profile: Any = _KinetoProfile
    profile.__init__ = init
