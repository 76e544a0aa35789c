"""What lies in the memory of a modelled GPU: live bytes, their peak, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

BLOCK = 512  # bytes: PyTorch's CUDA allocator rounds up to it
SEGMENT = 2 << 20  # bytes: what it takes from the device at a time
SMALL_POOL = 1 << 20  # bytes of its small pool's largest: c10/core/CachingDeviceAllocator.h, kSmallSize
# What would help, by what there's most of.
HELP = {
    "weights": "Shard the weights (fully_shard), split the model over GPUs, or keep it in a shorter type.",
    "gradients": "Shard the gradients (fully_shard), and let zero_grad() drop them (set_to_none=True).",
    "optimizer": "Shard the optimizer's state (ZeroRedundancyOptimizer, fully_shard), or take one that keeps less.",
    "activations": "Take a smaller batch, checkpoint activations, or compute them in half precision (autocast).",
    "gathered": "Shard smaller parts of the model (fully_shard on each block), and reshard after forward.",
    "buckets": "Let gradients live in DDP's buckets (gradient_as_bucket_view=True).",
}


class Chunk:
    """Bytes that are taken, and what they are, which may turn out later: a tensor becomes a gradient at its end."""

    __slots__ = ("asked", "kind", "nbytes")

    def __init__(self, nbytes: int, kind: str, asked: int = 0):
        self.nbytes, self.kind, self.asked = nbytes, kind, asked

    @property
    def pool(self) -> str:
        """Which of the allocator's two pools it's from."""
        return "small" if self.nbytes <= SMALL_POOL else "large"


class Count:
    """What `memory_stats` tells of an amount: what's there, the most there was, and all that came and went."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, amount: int) -> None:
        self.current += amount
        self.allocated += amount
        if self.current > self.peak:
            self.peak = self.current

    def remove(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount

    def told(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


class Memory:
    """The bytes of one device, as PyTorch's allocator would count them. `limit` is all that it has.

    `where` says where the program stands; it's asked at each new peak, and its answer kept as `peak_at`.
    """

    def __init__(self, limit: int, where: Callable[[], tuple[float, str]] = lambda: (0.0, "")):
        self.limit, self.where = limit, where
        self.tell: Callable[[int], None] = lambda reserved: None  # called with `reserved` where it may have changed
        self.live = 0
        self.most = 0  # since the program began
        self.fraction = 1.0
        self.refusals = 0  # how often it was full
        self.history: Any = None  # a `snapshots.History`, once the program asks for one
        self.chunks: set[Chunk] = set()
        # Of each pool: chunks, their bytes, and the bytes that were asked for.
        self._counts = {pool: (Count(), Count(), Count()) for pool in ("all", "large", "small")}
        self.reset_peak()

    def reset_peak(self) -> None:
        self.peak, self.peak_at = self.live, self.where()
        # What lay here at the peak: what lies here now, without what came since, with what went since.
        self._came: set[Chunk] = set()
        self._went: set[Chunk] = set()
        self.tell(self.reserved)

    def start_over(self, sums: bool = False) -> None:
        """Forget the peaks so far, or what came and went so far."""
        for count in [count for counts in self._counts.values() for count in counts]:
            if sums:
                count.allocated = count.freed = 0
            else:
                count.peak = count.current
        if not sums:
            self.reset_peak()

    def take(self, nbytes: int, kind: str) -> Chunk:
        """Count `nbytes` more."""
        rounded = -(-nbytes // BLOCK) * BLOCK
        chunk = Chunk(rounded, kind, nbytes)
        self.live += rounded
        self.chunks.add(chunk)
        if rounded:
            for pool in ("all", chunk.pool):
                chunks, taken, asked = self._counts[pool]
                chunks.add(1)
                taken.add(rounded)
                asked.add(nbytes)
            if self.history is not None:
                self.history.came(chunk)
        if self.live > self.peak:
            self.most = max(self.most, self.live)
            self.reset_peak()
        else:
            self._came.add(chunk)
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        self.live -= chunk.nbytes
        self.chunks.discard(chunk)
        if chunk.nbytes:
            for pool in ("all", chunk.pool):
                chunks, taken, asked = self._counts[pool]
                chunks.remove(1)
                taken.remove(chunk.nbytes)
                asked.remove(chunk.asked)
            if self.history is not None:
                self.history.went(chunk)
        if chunk in self._came:
            self._came.discard(chunk)
        else:
            self._went.add(chunk)

    @property
    def reserved(self) -> int:
        """Bytes that the allocator would hold of the device at its peak, in whole segments."""
        return min(self.limit, -(-self.peak // SEGMENT) * SEGMENT)

    def stats(self) -> dict[str, Any]:
        """What torch's allocator would tell, as `torch.cuda.memory_stats_as_nested_dict` has it. It takes whole
        segments and splits none."""
        told: dict[str, Any] = {}
        for pool, counts in self._counts.items():
            name = pool if pool == "all" else f"{pool}_pool"
            chunks, nbytes, asked = (count.told() for count in counts)
            reserved = -(-nbytes["peak"] // SEGMENT) * SEGMENT
            for key, values in (
                ("allocation", chunks), ("active", chunks), ("allocated_bytes", nbytes), ("active_bytes", nbytes),
                ("requested_bytes", asked), ("reserved_bytes", _taken(reserved)),
                ("segment", _taken(reserved // SEGMENT)), ("inactive_split", _taken(0)),
                ("inactive_split_bytes", _taken(0)),
            ):  # fmt: skip
                told.setdefault(key, {})[name] = dict(values)
        told["reserved_bytes"]["all"] = _taken(self.reserved)
        return told | {
            "oversize_allocations": _taken(0), "oversize_segments": _taken(0), "num_ooms": self.refusals,
            "num_alloc_retries": 0, "num_sync_all_streams": 0, "num_device_alloc": self.reserved // SEGMENT,
            "num_device_free": 0, "max_split_size": -1,
        }  # fmt: skip

    @property
    def by_kind(self) -> dict[str, int]:
        """Live bytes of each kind."""
        return _sums(self.chunks)

    @property
    def at_peak(self) -> dict[str, int]:
        """Bytes of each kind at the peak."""
        return _sums((self.chunks - self._came) | self._went)

    def breakdown(self) -> str:
        """The kinds of what is live, and what would help."""
        kinds = sorted(self.by_kind.items(), key=lambda item: -round(item[1] / 2**30, 2))  # as they're shown
        listed = ", ".join(f"{kind} {nbytes / 2**30:.2f} GiB" for kind, nbytes in kinds)
        return f"{listed or 'nothing'}. {HELP[kinds[0][0]] if kinds else HELP['activations']}"


def _taken(amount: int) -> dict[str, int]:
    return {"current": amount, "peak": amount, "allocated": amount, "freed": 0}


def _sums(chunks: Iterable[Chunk]) -> dict[str, int]:
    found: dict[str, int] = {}
    for chunk in chunks:
        if chunk.nbytes:
            found[chunk.kind] = found.get(chunk.kind, 0) + chunk.nbytes
    return found
