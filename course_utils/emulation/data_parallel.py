"""`nn.DataParallel`: one process, a thread for each GPU, and what it calls of torch's C++ part, `torch.cuda.comm`.

The threads want Python's lock, so their operators are issued more slowly, and what they do on the GPUs overlaps. The
host's part is fitted to training and inference of ResNet-18, MobileNet and DenseNet-121 on 1 to 4 A100
(`data/emulated_cases.json`, role calibration; `tools/bench_emulation.py parallel`).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch._utils import _reorder_tensors_as, _take_tensors, _unflatten_dense_tensors
from torch.utils._python_dispatch import _disable_current_modes

from . import links, meeting
from .clock import HostThread
from .imports import after_import
from .state import Gpus, MemoryBlock, block
from .streams import StreamContext

# In times of what the host takes for an operator:
LOCK = 0.7  # of that, for which a thread holds Python's lock
MODULE = 0.65  # to copy a module for one replica
TENSOR = 0.7  # to send a parameter or a buffer to all replicas, and to bring a gradient back
STALLED_S = 5.0  # in real time: a replica that doesn't come on waits for another one


def install(gpus: Gpus) -> None:
    """Let replicas run in threads with a time of their own, and count what Python does to make them."""
    after_import("torch.nn.parallel.parallel_apply", lambda: _threads(gpus))
    after_import("torch.nn.parallel.replicate", lambda: _replicate(gpus))
    after_import("torch.nn.parallel.comm", lambda: _reduce(gpus))


def _threads(gpus: Gpus) -> None:
    made: dict[int, list[_ReplicaThread]] = {}  # by the thread that made them, and that hasn't started one yet

    def thread(*args: Any, **kwargs: Any) -> _ReplicaThread:
        found = _ReplicaThread(*args, **kwargs)
        found.gpus, found.all = gpus, made.setdefault(threading.get_ident(), [])
        found.all.append(found)
        return found

    def forget(*_: Any) -> None:
        made.pop(threading.get_ident(), None)

    _ReplicaThread.forget = staticmethod(forget)
    sys.modules["torch.nn.parallel.parallel_apply"].threading = SimpleNamespace(  # type: ignore[attr-defined]
        Thread=thread, Lock=threading.Lock
    )


class _ReplicaThread(threading.Thread):
    """The thread of a replica. In real time they run one after the other, so that a program does the same each time;
    on the host's clock they begin together."""

    gpus: Gpus
    all: list[_ReplicaThread]
    forget: Callable[[], None]

    def start(self) -> None:
        self.forget()
        n = len(self.all)
        self.clock = HostThread(self.gpus.clock.host, max(1.0, LOCK * n))
        super().start()
        before = None
        while self.is_alive() and before != self.clock.at:
            before = self.clock.at
            super().join(STALLED_S)

    def run(self) -> None:
        with self.gpus.clock.as_thread(self.clock):
            super().run()

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        self.gpus.clock.wait_until(self.clock.at)


def _replicate(gpus: Gpus) -> None:
    module: Any = sys.modules["torch.nn.parallel.replicate"]
    real = module.replicate

    @functools.wraps(real)
    def replicate(network: Any, devices: Sequence[Any], detach: bool = False) -> Any:
        found = real(network, devices, detach)
        gpus.clock.spend(MODULE * gpus.device.host_s * len(list(network.modules())) * len(found))
        return found

    _everywhere("replicate", real, replicate)


def _reduce(gpus: Gpus) -> None:
    comm: Any = sys.modules["torch.nn.parallel.comm"]
    real = comm.reduce_add_coalesced

    @functools.wraps(real)
    def reduce(inputs: Any, *args: Any, **kwargs: Any) -> Any:
        gpus.clock.turn_to(inputs[0][0].get_device())
        gpus.clock.spend(TENSOR * gpus.device.host_s * len(inputs[0]))
        found = real(inputs, *args, **kwargs)
        everything = [t for tensors in inputs for t in tensors]
        if _computed(everything) and not any(t.is_sparse for t in everything):  # those were added one by one
            _give(found, _sums(inputs))
        return found

    _everywhere("reduce_add_coalesced", real, reduce)


def _everywhere(name: str, real: Any, own: Any) -> None:
    """Replace a function in each module of `torch.nn.parallel` that has it under its name."""
    for path, module in list(sys.modules.items()):
        if path.startswith("torch.nn.parallel") and getattr(module, name, None) is real:
            setattr(module, name, own)


def together(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether NCCL can take them: dense, contiguous, each on a GPU of its own."""
    lie = [t.get_device() for t in tensors if not t.is_sparse and t.is_contiguous() and t.is_cuda]
    return len(lie) == len(tensors) == len(set(lie))


def _to(tensor: torch.Tensor, index: int) -> torch.Tensor:
    return tensor.to("cpu" if index < 0 else torch.device("cuda", index), non_blocking=True)


def _scatter(tensor: torch.Tensor, devices: Sequence[int], sizes: Any, dim: int, streams: Any = None) -> Any:
    parts = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(devices), dim)
    found = []
    for i, (part, device) in enumerate(zip(parts, devices, strict=False)):
        with StreamContext(streams[i] if streams else None):
            found.append(_to(part, device))
    return found


def _fill(targets: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    for target, part in zip(targets, parts, strict=True):
        target.copy_(part, non_blocking=True)
    return targets


def _scatter_out(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Any = None) -> Any:
    return _fill(out, tensor.split([target.size(dim) for target in out], dim))


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    _fill(out.split([t.size(dim) for t in tensors], dim), tensors)
    return out


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    index = torch.cuda.current_device() if destination is None else destination
    shape = list(tensors[0].shape)
    shape[dim] = sum(t.size(dim) for t in tensors)
    where = torch.device("cpu") if index < 0 else torch.device("cuda", index)
    return _gather_out(tensors, torch.empty(shape, dtype=tensors[0].dtype, device=where), dim)


def comm(gpus: Gpus) -> dict[str, Callable[..., Any]]:
    """What `torch.nn.parallel.comm` calls of torch's C++ part (torch/csrc/cuda/comm.cpp)."""

    def broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if together([tensor, *out]):
            _collective(gpus, "broadcast", [tensor, *out], out, lambda: [target.copy_(tensor) for target in out])
            return out
        return _fill(out, [tensor] * len(out))

    def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
        others = {i: torch.empty_like(tensor, device=torch.device("cuda", i)) for i in devices if i != _lies(tensor)}
        broadcast_out(tensor, list(others.values()))
        return [others.get(device, tensor) for device in devices]

    def coalesced(tensors: Sequence[torch.Tensor], devices: Sequence[int], size: int) -> list[list[torch.Tensor]]:
        gpus.clock.spend(TENSOR * gpus.device.host_s * len(tensors))
        found: list[list[torch.Tensor]] = [[] for _ in devices[1:]]
        with _of_kind(gpus, "weights"):
            for chunk in _take_tensors(tensors, size):
                flat = chunk[0].contiguous().view(-1) if len(chunk) == 1 else torch.cat([t.reshape(-1) for t in chunk])
                for parts, copy in zip(found, broadcast(flat, devices)[1:], strict=True):
                    parts += (own := [t.data for t in _unflatten_dense_tensors(copy, chunk)])
                    if _computed(chunk):
                        _give(own, chunk)
        return [list(tensors), *(list(_reorder_tensors_as(parts, tensors)) for parts in found)]

    def reduce(inputs: Sequence[torch.Tensor], output: torch.Tensor, root: int, op: int = 0, *_: Any) -> None:
        def add() -> None:
            output.copy_(functools.reduce(torch.add, inputs))

        _collective(gpus, "reduce", inputs, [output], add)

    return {
        "_scatter": _scatter,
        "_scatter_out": _scatter_out,
        "_gather": _gather,
        "_gather_out": _gather_out,
        "_broadcast": broadcast,
        "_broadcast_out": broadcast_out,
        "_broadcast_coalesced": coalesced,
        "_nccl_reduce": reduce,
        "_nccl_broadcast": lambda tensors, root, *_: broadcast_out(
            tensors[root], [t for i, t in enumerate(tensors) if i != root]
        ),
    }


def _lies(tensor: torch.Tensor) -> int:
    return tensor.get_device()


def _sums(inputs: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    with torch.no_grad(), _disable_current_modes():
        return [functools.reduce(torch.add, parts) for parts in zip(*inputs, strict=True)]


def _computed(tensors: Iterable[torch.Tensor]) -> bool:
    return all(b.computed for t in tensors if (b := block(t)) is not None)


def _give(targets: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> None:
    """What travelled in one buffer with others has its values, however large the buffer was."""
    with torch.no_grad(), _disable_current_modes():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
            if (b := block(target)) is not None:
                b.computed = True


@contextmanager
def _of_kind(gpus: Gpus, kind: str) -> Iterator[None]:
    before, gpus.kind = gpus.kind, kind
    try:
        yield
    finally:
        gpus.kind = before


def _collective(
    gpus: Gpus, kind: str, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], real: Callable[[], Any]
) -> None:
    """A collective of NCCL among GPUs of one process, each on its current stream: they begin when all are ready. Small
    values are really there afterwards."""
    clock, devices = gpus.clock, [_lies(t) for t in tensors]
    clock.meet(devices)
    clock.spend(gpus.device.host_s * len(devices))
    clock.meet(devices)
    queues = [gpus.queue(device) for device in devices]
    written: list[MemoryBlock] = [b for t in outs if (b := block(t)) is not None]
    for queue, tensor in zip(queues, tensors, strict=True):
        own = [b for b in [block(tensor)] if b is not None]
        gpus.use(queue, kind, [b for b in own if b not in written], [b for b in written if b in own])
    for mark in [clock.mark(queue) for queue in queues]:
        for queue in queues:
            clock.wait_on(queue, mark)
    route = links.Route.of(gpus.cluster, devices)
    seconds = links.seconds(kind, tensors[0].numel() * tensors[0].element_size(), route)
    for queue in queues:
        clock.enqueue(queue, seconds, "communication", kind)
    known = _computed(t for t in tensors if block(t) not in written)
    small = all(meeting.travels(t) for t in [*tensors, *outs])
    if small:
        with torch.no_grad(), _disable_current_modes():
            real()
    for b in written:
        b.computed = known and small
