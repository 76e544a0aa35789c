"""What lies in the memory of a modelled GPU: live bytes, their peak, and what they are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from .allocator import BLOCK, LARGE_SEGMENT, SMALL, Allocator, Block, Count
from .remarks import say

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

    __slots__ = ("asked", "block", "kind", "nbytes", "pool")

    def __init__(self, nbytes: int, kind: str, asked: int = 0):
        self.nbytes, self.kind, self.asked = nbytes, kind, asked
        self.block: Block | None = None  # where they lie; nowhere, if there are none
        self.pool = "small" if nbytes <= SMALL else "large"  # of the allocator's two pools


class Memory:
    """The bytes of one device, as PyTorch's allocator would count them. `limit` is all that it has.

    `where` says where the program stands; it's asked at each new peak, and its answer kept as `peak_at`.
    """

    def __init__(self, limit: int, where: Callable[[], tuple[float, str]] = lambda: (0.0, "")):
        self.limit, self.where = limit, where
        self.allocator = Allocator(limit)
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

    def start_over(self, sums: bool = False) -> None:
        """Forget the peaks so far, or what came and went so far."""
        every = [*self._counts.values(), *self.allocator.counts.values()]
        for count in [count for counts in every for count in counts]:
            if sums:
                count.allocated = count.freed = 0
            else:
                count.peak = count.current
        if not sums:
            self.reset_peak()

    def take(self, nbytes: int, kind: str, stream: int = 0) -> Chunk | None:
        """Take `nbytes` more, for a tensor on a stream; None if the allocator doesn't find them."""
        rounded = -(-nbytes // BLOCK) * BLOCK
        chunk = Chunk(rounded, kind, nbytes)
        if rounded:
            if not self.allocator.segments:
                self.allocator.expandable, self.allocator.oversize = settings()
            before = self.reserved
            chunk.block = self.allocator.take(rounded, stream, int(self.limit * self.fraction))
            if self.reserved != before:
                self.tell(self.reserved)
            if chunk.block is None:
                return None
            chunk.nbytes = chunk.block.size  # a little more, where the rest of a block isn't worth to be cut off
        self.live += chunk.nbytes
        self.chunks.add(chunk)
        if rounded:
            for pool in ("all", chunk.pool):
                chunks, taken, asked = self._counts[pool]
                chunks.add(1)
                taken.add(chunk.nbytes)
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
        if chunk.block is not None:
            self.allocator.give_back(chunk.block)
            chunk.block = None
        if chunk in self._came:
            self._came.discard(chunk)
        else:
            self._went.add(chunk)

    @property
    def reserved(self) -> int:
        """Bytes that the allocator holds of the device, in whole segments."""
        return self.allocator.reserved

    def empty_cache(self) -> None:
        """Give back what the allocator keeps for later."""
        self.allocator.give_back_what_is_free()
        self.tell(self.reserved)

    def stats(self) -> dict[str, Any]:
        """What torch's allocator would tell, as `torch.cuda.memory_stats_as_nested_dict` has it."""
        told: dict[str, Any] = {}
        for pool, counts in self._counts.items():
            name = pool if pool == "all" else f"{pool}_pool"
            chunks, nbytes, asked = (count.told() for count in counts)
            reserved, segments, splits, split_bytes = (count.told() for count in self.allocator.counts[pool])
            for key, values in (
                ("allocation", chunks), ("active", chunks), ("allocated_bytes", nbytes), ("active_bytes", nbytes),
                ("requested_bytes", asked), ("reserved_bytes", reserved), ("segment", segments),
                ("inactive_split", splits), ("inactive_split_bytes", split_bytes),
            ):  # fmt: skip
                told.setdefault(key, {})[name] = dict(values)
        none = Count().told()
        return told | {
            "oversize_allocations": none, "oversize_segments": none, "num_ooms": self.refusals,
            "num_alloc_retries": self.allocator.retries, "num_sync_all_streams": 0,
            "num_device_alloc": self.allocator.device_calls.allocated,
            "num_device_free": self.allocator.device_calls.freed, "max_split_size": self.allocator.oversize or -1,
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
        order = [*HELP]  # of what is shown as equally much
        kinds = sorted(self.by_kind.items(), key=lambda item: (-round(item[1] / 2**30, 2), order.index(item[0])))
        listed = ", ".join(f"{kind} {nbytes / 2**30:.2f} GiB" for kind, nbytes in kinds)
        return f"{listed or 'nothing'}. {HELP[kinds[0][0]] if kinds else HELP['activations']}"


def settings() -> tuple[bool, int | None]:
    """What the program asks of the allocator: `expandable_segments`, and `max_split_size_mb` in bytes. Raises
    ValueError as torch does."""
    asked = os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    pairs = [pair.strip().partition(":")[::2] for pair in re.split(r",(?![^\[]*\])", asked) if pair.strip()]
    given = {key.strip(): (4 * i + 2, value.strip()) for i, (key, value) in enumerate(pairs)}
    at, expandable = given.pop("expandable_segments", (0, "False"))
    if expandable not in ("True", "False"):
        raise ValueError(f"Expected 'True' or 'False' at index {at} in ConfigTokenizer but got '{expandable}'")
    _, megabytes = given.pop("max_split_size_mb", (0, ""))
    if megabytes and not megabytes.isdecimal():
        raise ValueError(f"max_split_size_mb is a whole number of MiB, and not '{megabytes}'")
    oversize = int(megabytes) << 20 if megabytes else None
    if oversize is not None and oversize < LARGE_SEGMENT:
        raise ValueError(f"CachingAllocator option max_split_size_mb too small, must be >= {LARGE_SEGMENT >> 20}")
    if given:
        modelled = "expandable_segments and max_split_size_mb"
        say("allocator", f"of the allocator's settings only {modelled} are modelled, and not {', '.join(given)}")
    return expandable == "True", oversize


def _sums(chunks: Iterable[Chunk]) -> dict[str, int]:
    found: dict[str, int] = {}
    for chunk in chunks:
        if chunk.nbytes:
            found[chunk.kind] = found.get(chunk.kind, 0) + chunk.nbytes
    return found
