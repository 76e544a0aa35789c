"""What a rank knows of its modelled GPUs: the cluster, the clock, the memory of each device, and a tag on each storage
that lies there."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .clock import Clock, Mark, Queue
from .clusters import EmulatedCluster
from .memory import Chunk, Memory
from .remarks import program_line, say

_keys = itertools.count()
HERE = os.path.dirname(os.path.abspath(__file__))


class MemoryBlock:
    """The tag of a storage: it lies on GPU `device`. It lives as long as the storage.

    `computed` is False once an operator whose arithmetic was left out has written to it. `arrives` is when a collective
    in flight will have filled it, until somebody waits for it. `wrote` and `reads` are the work of streams that used it
    last, as queue and number.
    """

    __slots__ = (
        "__weakref__", "_arrives", "chunk", "computed", "device", "gpus", "key", "kind", "nbytes", "reads", "unwritten",
        "wrote",
    )  # fmt: skip

    def __init__(self, gpus: Gpus, device: int, nbytes: int, kind: str):
        self.gpus, self.device, self.nbytes, self.kind = gpus, device, nbytes, kind
        self.chunk: Chunk | None = None
        self.key = next(_keys)
        self.unwritten: Any = None  # while it exists inside of a fused kernel only (`compiled`)
        self.computed = True
        self.wrote: tuple[int, int] | None = None
        self.reads: dict[int, int] = {}
        self._arrives: float | None = None
        self.chunk = gpus.take(device, nbytes, kind)

    @property
    def arrives(self) -> float | None:
        return self._arrives

    @arrives.setter
    def arrives(self, when: float | None) -> None:
        if when is None and self._arrives is not None:  # the current stream has waited; others haven't
            queue = self.gpus.queue(self.device)
            queue.given += 1
            self.wrote, self.reads = (queue.key, queue.given), {}
        self._arrives = when

    def resize(self, nbytes: int) -> None:
        if self.chunk is not None:
            self.gpus.memory[self.device].give_back(self.chunk)
            self.chunk = None
        self.chunk = self.gpus.take(self.device, nbytes, self.kind)
        self.nbytes = nbytes
        if not nbytes:  # it's freed: whatever comes into it is new
            self.wrote, self.reads, self.computed = None, {}, True

    def becomes(self, kind: str) -> None:
        self.kind = kind
        if self.chunk is not None:
            self.chunk.kind = kind

    def __del__(self) -> None:
        if self.chunk is not None:
            self.gpus.memory[self.device].give_back(self.chunk)


class Host:
    """The tag of a storage of the CPU into which a GPU's values were copied: whether they were computed, and when the
    copy is there, if nobody waited for it."""

    __slots__ = ("computed", "mark")

    def __init__(self, computed: bool, mark: Mark | None = None):
        self.computed, self.mark = computed, mark


class _Thread(threading.local):
    """What CUDA keeps for each thread: its device, and on each device its stream."""

    def __init__(self) -> None:
        self.device = 0
        self.queues: dict[int, Queue] = {}


class Gpus:
    """All modelled GPUs that this rank can see, and the one that it has set."""

    def __init__(self, cluster: EmulatedCluster, rank: int = 0, running: int = 1):
        self.cluster, self.device = cluster, cluster.device_of(rank)
        self.rank, self.running = rank, running  # of the launch's ranks, and how many they are
        self.alike = max(1, cluster.one_of // running)  # ranks that each of them stands for
        self.in_node = max(1, cluster.count // cluster.nodes)
        self._seen: list[int] | None = None
        self.clock = Clock()
        self.memory = [Memory(self.device.memory_bytes, self._where) for _ in range(self.in_node)]
        self.flops = 0.0  # of products, attention and convolutions so far, on all its GPUs
        self.collective_bytes: Counter[str] = Counter()  # so far, of whole buffers, by operation
        self.kind = "activations"  # of what is allocated next
        self.defaults: dict[int, Queue] = {}
        self.forked = False
        self.spawned = False  # in a process that a rank spawned,
        self.joined = False  # and that has joined a process group
        self.initialized = False  # CUDA is by what first names a device; a DeviceMesh sets this rank's if nothing has
        # Where what a functional collective makes lies, and whether it will be computed.
        self.adopting: tuple[int, bool] | None = None
        self.before_oom: list[Callable[[], None]] = []  # called before memory's kinds are told
        self.on_oom: list[Callable[[int, int, int, int], Any]] = []  # as torch calls them: device, asked, has, left
        self._thread = _Thread()

    def _where(self) -> tuple[float, str]:
        return self.clock.host, program_line()

    @property
    def seen(self) -> list[int]:
        """The GPUs of the node that the program sees, by their numbers there: all of them, or those that it names in
        CUDA_VISIBLE_DEVICES before it first uses one. As in CUDA, what follows a wrong number isn't seen."""
        if self._seen is not None:
            return self._seen
        named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        known = {str(index): index for index in range(self.in_node)}
        names = [name.strip() for name in named] if named != [""] else [*known]
        found = [known[name] for name in itertools.takewhile(known.__contains__, names)]
        if self.initialized:
            self._seen = found
        return found

    @property
    def count(self) -> int:
        return len(self.seen)

    @property
    def current(self) -> int:
        return self._thread.device

    @current.setter
    def current(self, index: int) -> None:
        self._thread.device = index

    @property
    def queues(self) -> dict[int, Queue]:
        """The current stream of each device, in this thread."""
        return self._thread.queues

    def queue(self, device: int | None = None) -> Queue:
        """The current stream of a device."""
        index = self.current if device is None else device
        return self.queues.get(index) or self.default_queue(index)

    def default_queue(self, index: int) -> Queue:
        if index not in self.defaults:
            self.defaults[index] = self.clock.queue(index, 0)
        return self.defaults[index]

    def index(self, device: Any = None) -> int:
        """The number of a GPU. Raises ValueError for another kind of device, torch.AcceleratorError for a GPU that
        isn't there, RuntimeError in a process that was forked."""
        if self.forked:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the"
                " 'spawn' start method"
            )
        self.initialized = True
        if not self.seen:
            raise RuntimeError("No CUDA GPUs are available: CUDA_VISIBLE_DEVICES names none of the emulated ones")
        if device is None:
            return self.current
        if isinstance(device, (str, torch.device)):
            named = torch.device(device)
            if named.type != "cuda":
                raise ValueError(f"Expected a cuda device, but got: {named}")
            found = self.current if named.index is None else named.index
        else:
            found = int(getattr(device, "index", device))
        if found >= self.count:
            has = f"{self.cluster.label} has {self.in_node} in a node"
            if self.count < self.in_node:
                has = f"CUDA_VISIBLE_DEVICES leaves {self.count}"
            error = torch.AcceleratorError(f"CUDA error: invalid device ordinal (cuda:{found}, and {has})")
            error.error_code = 101
            raise error
        return found if found >= 0 else self.current

    def take(self, device: int, nbytes: int, kind: str) -> Chunk:
        """Memory of a device. Raises torch.OutOfMemoryError if it doesn't have it."""
        self.make_sure(device, nbytes)
        found = self.memory[device].take(nbytes, kind, self.queue(device).number)
        if found is None:
            raise self._refused(device, nbytes)
        return found

    def make_sure(self, device: int, nbytes: int) -> None:
        """Raise torch.OutOfMemoryError if a device doesn't have this much left."""
        memory = self.memory[device]
        if memory.live + nbytes > memory.limit * memory.fraction:
            raise self._refused(device, nbytes)

    def _refused(self, device: int, nbytes: int) -> torch.OutOfMemoryError:
        memory = self.memory[device]
        for look in self.before_oom:
            look()
        memory.refusals += 1
        if memory.history is not None:
            memory.history.refused(nbytes, memory.limit - memory.reserved)
        for watch in self.on_oom:
            watch(device, nbytes, memory.limit, memory.limit - memory.reserved)
        pieces = ""
        if memory.live + nbytes <= memory.limit * memory.fraction:
            pieces = (
                f" {(memory.reserved - memory.live) / 2**30:.2f} GiB more are reserved, in pieces that it doesn't fit"
                " into: PYTORCH_ALLOC_CONF=expandable_segments:True avoids most of that."
            )
        return torch.OutOfMemoryError(
            f"CUDA out of memory (emulated). Tried to allocate {nbytes / 2**20:.0f} MiB. GPU {device}, a"
            f" {self.device.name}, has {memory.limit / 2**30:.2f} GiB, of which {memory.live / 2**30:.2f} GiB are"
            f" taken: {memory.breakdown()}{pieces}"
        )

    def tag(self, tensor: torch.Tensor, device: int, computed: bool = True) -> MemoryBlock:
        """Mark a CPU tensor as lying on a GPU; returns its tag. Raises torch.OutOfMemoryError if it doesn't fit."""
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            seen_sparse.append(True)
            self.tag(tensor._indices(), device)
            return self.tag(tensor._values(), device, computed)
        found = block_of(storage)
        if found is None:
            found = MemoryBlock(self, device, storage.nbytes(), self.kind)
            storage._course_block = found
        if not computed:
            found.computed = False
        return found

    def use(self, queue: Queue, name: str, read: Iterable[MemoryBlock], written: Iterable[MemoryBlock] = ()) -> None:
        """A stream's next work uses these storages. What isn't in order with another stream's use of them, or with a
        collective in flight, is a race, and is said."""
        self.clock.ask(queue)
        work = queue.given + 1
        for b in read:
            if b.arrives is not None:
                say("race", f"a race: {name} uses a tensor that a collective still fills, and nobody has waited for it")
                b.arrives = None
            elif b.wrote is not None and not queue.comes_after(*b.wrote):
                say("race", f"a race: {name} reads what another stream may still be writing. Wait for that stream")
                queue.join(dict([b.wrote]))
            b.reads[queue.key] = work
        for b in written:
            if b.arrives is not None:
                say("race", f"a race: {name} overwrites what a collective still uses, and nobody has waited for it")
                b.arrives = None
            elif not all(queue.comes_after(*use) for use in b.reads.items()):
                say("race", f"a race: {name} overwrites what another stream may still be reading. Wait for that stream")
            elif b.wrote is not None and not queue.comes_after(*b.wrote):
                say("race", f"a race: {name} overwrites what another stream may still be writing. Wait for that stream")
            b.wrote, b.reads = (queue.key, work), {}

    say = staticmethod(say)


seen_sparse: list[bool] = []  # something once a tensor was sparse: to ask each for its layout takes a while


def block_of(storage: torch.UntypedStorage) -> MemoryBlock | None:
    return getattr(storage, "_course_block", None)


def block(tensor: torch.Tensor) -> MemoryBlock | None:
    """The tag of a tensor's storage, of a sparse one that of its values; None on the CPU."""
    try:
        return getattr(tensor.untyped_storage(), "_course_block", None)
    except (NotImplementedError, RuntimeError):  # a tensor without storage
        return block(tensor._values()) if tensor.layout is torch.sparse_coo else None


def host(tensor: torch.Tensor) -> Host | None:
    """The tag of a CPU tensor's storage into which something was copied from a GPU."""
    try:
        return getattr(tensor.untyped_storage(), "_course_host", None)
    except (NotImplementedError, RuntimeError):
        return None


__all__ = ["HERE", "MemoryBlock", "Gpus", "Host", "block", "block_of", "host", "say", "seen_sparse"]
