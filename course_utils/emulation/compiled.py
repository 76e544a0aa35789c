"""`torch.compile` on a modelled GPU. The program still runs operator by operator, and those that Inductor would fuse
take the time of a fused kernel, by a rule:

- What lies between two products of matrices, convolutions or attentions is one kernel. It reads each tensor once.
- What it makes is written once somebody else needs it: a product, the optimizer, what comes out of the region. A later
  kernel, such as one of the backward pass, reads it back, or makes it again of what it was made of, whichever moves
  fewer bytes: as Inductor inlines, and AOTAutograd's partitioner recomputes.
- A product whose rows aren't aligned is padded, as Inductor does where that pays.
- The host starts a kernel, and none of the operators in it; under CUDA graphs (`mode="reduce-overhead"`) not even that.

Nothing is compiled. So compiling takes no time, graphs don't break, and memory is that of the eager program.
"""

from __future__ import annotations

import bisect
import functools
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from . import attention, costs
from .clock import Queue
from .plans import tensors_in
from .remarks import TORCHS, say
from .state import Gpus, MemoryBlock, block

aten = torch.ops.aten
GRAPHED = ("reduce-overhead", "max-autotune")  # modes that use CUDA graphs
PLAIN = ("eager", "aot_eager")  # backends that fuse nothing
KEPT_RANGES = 1000  # of autograd's numbers, one for each call of something compiled: more than a step has
# These need all of their input before they give anything, and read it again for that.
_TWICE = {
    aten.native_batch_norm, aten._native_batch_norm_legit, aten.cudnn_batch_norm, aten._batch_norm_with_update,
    aten.native_batch_norm_backward, aten.cudnn_batch_norm_backward, aten.batch_norm_backward,
    aten.native_group_norm, aten.native_group_norm_backward,
}  # fmt: skip
# Kernels that Inductor calls as they are, besides those whose arithmetic is counted.
_WHOLE = {aten.sort, aten.topk, aten.histc, aten.cumsum, aten._ctc_loss, aten._fft_r2c, aten._fft_c2c, aten._fft_c2r}
SMALL_RESULT = 8  # a result so many times smaller than what it's made of is written at once, as of a sum


class Unwritten:
    """A tensor that so far exists only inside the kernel that makes it. `sources` are the tensors in memory that it's
    made of, by their blocks' numbers, in bytes."""

    __slots__ = ("kernel", "sources")

    def __init__(self, kernel: Kernel, sources: dict[int, int]):
        self.kernel, self.sources = kernel, sources


class Kernel:
    """A fused kernel that's still growing: which tensors it has read, the time of its bytes, and what was charged."""

    def __init__(self, launch_s: float):
        self.launch_s, self.seen, self.moving_s, self.charged_s = launch_s, set[int](), 0.0, 0.0
        self.kept = set[int]()  # what it changes in place, and writes once, at its end

    def read(self, key: int, nbytes: int) -> int:
        """The bytes to move for a tensor."""
        if key in self.seen:
            return 0
        self.seen.add(key)
        return nbytes

    def grow(self, seconds: float) -> float:
        """What to charge for so much more."""
        self.moving_s += seconds
        more = max(self.moving_s, self.launch_s) - self.charged_s
        self.charged_s += more
        return more


class _Here(threading.local):
    inside = 0  # of how many compiled calls this thread is
    graphed = False


class Fusion:
    """What's compiled, and the kernel that each stream's latest operators belong to."""

    def __init__(self, gpus: Gpus):
        self.gpus, self.here = gpus, _Here()
        self.used = False
        self.kernels: dict[int, Kernel] = {}
        self._starts: list[int] = []  # of autograd's numbers, those of compiled calls
        self._ends: list[int] = []
        # What was made and changed in place in a kernel, by its block's number: the block, its bytes and its stream.
        self._changed: dict[int, tuple[weakref.ref[MemoryBlock], int, Queue]] = {}

    @contextmanager
    def region(self, graphed: bool) -> Iterator[None]:
        """What this thread does here is compiled, and so is its backward pass."""
        here, before = self.here, (self.here.inside, self.here.graphed)
        self.used, here.inside, here.graphed = True, here.inside + 1, graphed
        start = torch._C._autograd._get_sequence_nr()
        try:
            yield
        finally:
            here.inside, here.graphed = before
            end = torch._C._autograd._get_sequence_nr()
            if end > start and not here.inside:
                self._remember(start, end)
            if not here.inside:
                self._write_what_stays()
            self.kernels.clear()

    def _write_what_stays(self) -> None:
        """What was changed in place and is still there, such as an optimizer's first averages, is written."""
        for found, nbytes, queue in self._changed.values():
            b = found()
            if b is not None and b.unwritten is not None:
                b.unwritten = None
                self.gpus.clock.enqueue(queue, self._moving(nbytes), "compute", "fused")
        self._changed.clear()

    def _remember(self, start: int, end: int) -> None:
        at = bisect.bisect(self._starts, start)
        self._starts.insert(at, start)
        self._ends.insert(at, end)
        if len(self._starts) > KEPT_RANGES:
            del self._starts[0], self._ends[0]

    def active(self) -> bool:
        """Whether the operator that comes now is part of something compiled."""
        if self.here.inside:
            return True
        node: Any = torch._C._current_autograd_node() if self._starts else None
        if node is None:
            return False
        number = node._sequence_nr()
        at = bisect.bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def spend(self) -> None:
        """The host starts a kernel."""
        if not self.here.graphed:
            self.gpus.clock.spend(self.gpus.device.host_s)

    def _moving(self, nbytes: float) -> float:
        device = self.gpus.device
        return nbytes / (device.memory_Bps * device.memory_reached)

    def settle(self, tensors: Sequence[torch.Tensor], blocks: Sequence[MemoryBlock | None]) -> float:
        """Seconds to write what of these is unwritten, since somebody reads it who isn't part of its kernel."""
        nbytes = 0
        for t, b in zip(tensors, blocks, strict=True):
            if b is not None and b.unwritten is not None:
                b.unwritten = None
                nbytes += costs._nbytes(t)
        return self._moving(nbytes) if nbytes else 0.0

    def whole(self, queue: Queue, seconds: float, tensors: Sequence[torch.Tensor], blocks: Any) -> float:
        """Seconds of an operator that's a kernel of its own. Afterwards a new one begins."""
        self.spend()
        self.kernels.pop(queue.key, None)
        return seconds + self.settle(tensors, blocks)

    def fused(
        self, queue: Queue, func: Any, tensors: Sequence[torch.Tensor], blocks: Sequence[MemoryBlock | None],
        changed: Sequence[torch.Tensor],
    ) -> tuple[float, Unwritten]:  # fmt: skip
        """Seconds that the kernel grows by, and what comes out."""
        kernel = self.kernels.get(queue.key)
        if kernel is None:
            self.spend()
            kernel = self.kernels[queue.key] = Kernel(self.gpus.device.launch_s)
        packet = func._overloadpacket
        moved, sources = 0.0, dict[int, int]()
        for i, (t, b) in enumerate(zip(tensors, blocks, strict=True)):
            if b is None or packet in costs.LIKE or (i == 0 and packet in costs.OVERWRITES):
                continue
            nbytes = costs._nbytes(t)
            if i == 0 and packet in costs._ROWS and len(tensors) > 1:  # at most the rows that it takes
                nbytes = min(nbytes, costs._nbytes(tensors[1]) * max(1, t.shape[-1] if t.dim() else 1))
            made = b.unwritten
            if made is not None and made.kernel is kernel:
                sources |= made.sources
            elif made is not None and self._again(kernel, made) <= 2 * nbytes:
                moved += sum(kernel.read(key, n) for key, n in made.sources.items())
                sources |= made.sources
            else:
                moved += (nbytes if made is not None else 0) + kernel.read(b.key, nbytes)
                b.unwritten, sources[b.key] = None, nbytes
            moved += nbytes if packet in _TWICE and t.dim() > 1 else 0
        found = Unwritten(kernel, sources)
        for t in changed:
            if (b := block(t)) is None:
                continue
            if b.unwritten is not None and b.unwritten.kernel is kernel:
                b.unwritten = found
                self._changed[b.key] = weakref.ref(b), costs._nbytes(t), queue
                continue
            b.unwritten = None
            if b.key not in kernel.kept:
                kernel.kept.add(b.key)
                kernel.seen.add(b.key)
                moved += costs._nbytes(t)
        return kernel.grow(self._moving(moved)), found

    @staticmethod
    def _again(kernel: Kernel, made: Unwritten) -> int:
        return sum(n for key, n in made.sources.items() if key not in kernel.seen)

    def give(
        self, out: Any, made: Unwritten, tensors: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]
    ) -> float:
        """Mark what came out. Returns seconds for what's written at once."""
        nbytes, largest = 0, max((t.numel() for t in tensors), default=0)
        for t in tensors_in(out):
            b = block(t)
            if b is None or any(t is other for other in changed):
                continue
            if t.numel() * SMALL_RESULT <= largest:
                nbytes += costs._nbytes(t)
                b.unwritten = None
            else:
                b.unwritten = made
        return made.kernel.grow(self._moving(nbytes)) if nbytes else 0.0

    def call(self, call: Any, graphed: bool, args: Any, kwargs: Any) -> Any:
        """Call something compiled."""
        if _switched_off():
            return call(*args, **kwargs)
        with self.region(graphed):
            out = call(*args, **kwargs)
            self.leave(out)
        return out

    def leave(self, out: Any) -> None:
        """What a compiled call returns is written."""
        for t in _tensors(out):
            b = block(t)
            if b is not None and b.unwritten is not None:
                seconds = self.settle([t], [b])
                self.gpus.clock.enqueue(self.gpus.queue(b.device), seconds, "compute", "fused")


def fusible(func: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether Inductor makes a part of its own kernel of an operator, or calls the one that's there, as it does for
    products and for complex numbers."""
    return not (costs.counted(func) or func._overloadpacket in _WHOLE or any(t.dtype.is_complex for t in tensors))


def _tensors(out: Any) -> list[torch.Tensor]:
    """The tensors in what a call returns, as far as lists, dicts and their like go."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, dict):
        return [t for value in out.values() for t in _tensors(value)]
    if isinstance(out, (list, tuple)):
        return [t for value in out for t in _tensors(value)]
    return []


class Compiled(nn.Module):
    """What `torch.compile` makes of a module. As torch's (torch/_dynamo/eval_frame.py, OptimizedModule), it has the
    module as `_orig_mod`, and passes on what it's asked."""

    fusion: Fusion  # of this rank; `install` sets it
    _graphed = False

    def __init__(self, module: nn.Module, graphed: bool):
        super().__init__()
        super().__setattr__("_orig_mod", module)
        self.__dict__["_graphed"] = graphed

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fusion.call(self._orig_mod, self._graphed, args, kwargs)

    def __len__(self) -> int:
        return len(self._orig_mod)

    @property
    def training(self) -> bool:
        return bool(self._orig_mod.training)

    @training.setter
    def training(self, on: bool) -> None:
        if "_orig_mod" in self.__dict__.get("_modules", ()):  # nn.Module sets it before there's one
            self._orig_mod.training = on

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_modules"][name] if name == "_orig_mod" else getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = hasattr(type(self), name) or name in self.__dict__ or name == "_orig_mod"
        own = own or "_orig_mod" not in self.__dict__.get("_modules", ())
        super().__setattr__(name, value) if own else setattr(self._orig_mod, name, value)


def _switched_off() -> bool:
    """As torch does it: what `torch.compile` returns stays what it is, and compiles nothing."""
    return os.environ.get("TORCH_COMPILE_DISABLE") == "1"


def install(fusion: Fusion) -> None:
    Compiled.fusion = fusion

    def around(call: Any, mode: Any) -> Any:
        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            return fusion.call(call, mode in GRAPHED, args, kwargs)

        return run

    def compile(
        model: Any = None, *, backend: Any = "inductor", mode: Any = None, disable: bool = False, **_: Any
    ) -> Any:
        if sys._getframe(1).f_code.co_filename.startswith(TORCHS):  # as FlexAttention does, which `attention` has
            return model
        if model is None:
            return functools.partial(compile, backend=backend, mode=mode, disable=disable)
        if disable or backend in PLAIN:
            return model
        found = attention.compiled(model)
        if found is not model:  # FlexAttention
            return found
        if not _switched_off():
            say(
                "compile",
                "torch.compile: operators that it would fuse take the time of fused kernels, by a rule. Nothing is"
                " compiled, so that takes no time here, and nothing breaks a graph",
            )
        if not isinstance(model, nn.Module):
            return around(model, mode)
        return model if isinstance(model, Compiled) else Compiled(model, mode in GRAPHED)

    def in_place(self: nn.Module, *_: Any, **kwargs: Any) -> None:
        if not kwargs.get("disable") and kwargs.get("backend") not in PLAIN:
            compile(torch.relu)  # says it
            self._compiled_call_impl = around(self._call_impl, kwargs.get("mode"))

    torch.compile = compile
    nn.Module.compile = in_place
