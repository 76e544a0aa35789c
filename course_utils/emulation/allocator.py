"""PyTorch's caching allocator of a modelled GPU: which blocks it takes from the device, splits, keeps and joins again.

What it holds is more than what tensors take, since a free block serves its own stream only, and only what fits. The
rules are those of c10/cuda/CUDACachingAllocator.cpp with its defaults, or with `expandable_segments:True`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

BLOCK = 512  # bytes: what it rounds up to
SMALL = 1 << 20  # bytes of its small pool's largest (kSmallSize)
SMALL_SEGMENT, LARGE_SEGMENT = 2 << 20, 20 << 20  # bytes that it takes from the device at a time (kSmallBuffer, kLargeBuffer)
LARGE_ALONE = 10 << 20  # bytes from which on a block gets a segment of its own size (kMinLargeAlloc),
ROUND = 2 << 20  # rounded up to this (kRoundLarge)
_FIRST = 0x7F00_0000_0000
_FAR = 1 << 44  # addresses that an expandable segment has for itself


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


class Segment:
    """A range of addresses taken from the device, in blocks. An expandable one grows at its end."""

    __slots__ = ("address", "first", "last", "pool", "size", "stream")

    def __init__(self, address: int, size: int, pool: str, stream: int):
        self.address, self.size, self.pool, self.stream = address, size, pool, stream
        self.first = self.last = Block(self, address, size)

    def __iter__(self) -> Iterator[Block]:
        block: Block | None = self.first
        while block is not None:
            yield block
            block = block.next


class Block:
    """A part of a segment, which is free or has a tensor's bytes."""

    __slots__ = ("address", "free", "next", "previous", "segment", "size")

    def __init__(self, segment: Segment, address: int, size: int):
        self.segment, self.address, self.size, self.free = segment, address, size, False
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def split(self) -> bool:
        """Whether it's one of several in its segment."""
        return self.previous is not None or self.next is not None


class Allocator:
    """The allocator of one device, which has `limit` bytes. `expandable` is `expandable_segments:True`."""

    def __init__(self, limit: int, expandable: bool = False):
        self.limit, self.expandable = limit, expandable
        self.segments: dict[int, Segment] = {}  # by address
        self.retries = 0  # how often it gave back what it had kept, to take something else
        # Called with "alloc", "free", "map" or "unmap", the address, the bytes and the stream, whenever the device is.
        self.tell: Callable[[str, int, int, int], None] = lambda action, address, nbytes, stream: None
        self._free: dict[tuple[str, int], list[tuple[int, int, Block]]] = {}  # by size, then address
        self._growing: dict[tuple[str, int], Segment] = {}
        self._next = _FIRST
        pools = ("all", "large", "small")
        # Bytes taken from the device, segments, free parts of segments that are in use, and their bytes.
        self.counts = {pool: (Count(), Count(), Count(), Count()) for pool in pools}

    @property
    def reserved(self) -> int:
        """Bytes that it has taken from the device."""
        return self.counts["all"][0].current

    @property
    def peak(self) -> int:
        return self.counts["all"][0].peak

    def take(self, nbytes: int, stream: int = 0, most: int | None = None) -> Block | None:
        """A block for a tensor on a stream, of `nbytes` rounded up; None if the device doesn't have it, of which it may
        use `most`."""
        size = max(BLOCK, -(-nbytes // BLOCK) * BLOCK)
        key = "small" if size <= SMALL else "large", stream
        free = self._free.setdefault(key, [])
        most = self.limit if most is None else min(most, self.limit)
        at = bisect_left(free, (size,))
        if at < len(free):
            block = free.pop(at)[2]
        else:
            found = self._from_the_device(key, size, most)
            if found is None and self.give_back_what_is_free():
                self.retries += 1
                found = self._from_the_device(key, size, most)
            if found is None:
                return None
            block = found
        self._cut(block, size)
        return block

    def give_back(self, block: Block) -> None:
        """Its tensor is gone: join it with what's free next to it, and keep it."""
        pool = block.segment.pool
        for other in (block.previous, block.next):
            if other is not None and other.free:
                self._forget(other)
                self._add(pool, 0, 0, -1, -other.size)
                if other is block.previous:
                    block.address = other.address
                    block.previous = other.previous
                    if other.previous is None:
                        block.segment.first = block
                    else:
                        other.previous.next = block
                else:
                    block.next = other.next
                    if other.next is None:
                        block.segment.last = block
                    else:
                        other.next.previous = block
                block.size += other.size
        if block.split:
            self._add(pool, 0, 0, 1, block.size)
        self._keep(block)

    def give_back_what_is_free(self) -> int:
        """Give whole free segments back to the device, of expandable ones the free pages at their end. Returns the
        bytes."""
        before = self.reserved
        for free in list(self._free.values()):
            for _, _, block in list(free):
                if not block.split:
                    self._forget(block)
                    del self.segments[block.segment.address]
                    self._growing.pop((block.segment.pool, block.segment.stream), None)
                    self._add(block.segment.pool, -block.segment.size, -1, 0, 0)
                    self.tell("free", block.address, block.size, block.segment.stream)
                elif self.expandable and block.next is None:
                    self._shorten(block)
        return before - self.reserved

    def _shorten(self, block: Block) -> None:
        segment, page = block.segment, SMALL_SEGMENT if block.segment.pool == "small" else LARGE_SEGMENT
        pages = block.size // page * page
        if pages:
            self._forget(block)
            segment.size -= pages
            self._add(segment.pool, -pages, 0, 0, -pages)
            block.size -= pages
            self.tell("unmap", block.address + block.size, pages, segment.stream)
            if block.size:
                self._keep(block)
            else:
                assert block.previous is not None
                segment.last, block.previous.next = block.previous, None
                self._add(segment.pool, 0, 0, -1, 0)

    def _from_the_device(self, key: tuple[str, int], size: int, most: int) -> Block | None:
        pool, stream = key
        page = SMALL_SEGMENT if pool == "small" else LARGE_SEGMENT
        segment = self._growing.get(key)
        if self.expandable:
            last = segment.last if segment is not None else None
            has = last.size if last is not None and last.free else 0
            asked = -(-(size - has) // page) * page
        else:
            asked = page if size < LARGE_ALONE else -(-size // ROUND) * ROUND
        if self.reserved + asked > most:
            return None
        if segment is None:
            address, self._next = self._next, self._next + (_FAR if self.expandable else asked)
            segment = self.segments[address] = Segment(address, asked, pool, stream)
            if self.expandable:
                self._growing[key] = segment
            self._add(pool, asked, 1, 0, 0)
            self.tell("alloc", address, asked, stream)
            return segment.first
        last, segment.size = segment.last, segment.size + asked
        self._add(pool, asked, 0, 0, 0)
        self.tell("map", last.address + last.size, asked, stream)
        if last.free:
            self._forget(last)
            last.size += asked
            if last.split:
                self._add(pool, 0, 0, 0, asked)
            return last
        block = Block(segment, last.address + last.size, asked)
        block.previous, last.next, segment.last = last, block, block
        self._add(pool, 0, 0, 1, asked)
        return block

    def _cut(self, block: Block, size: int) -> None:
        """Take `size` bytes of a free block, which isn't among the free ones any more, and keep the rest if it's worth
        it."""
        pool, rest = block.segment.pool, block.size - size
        block.free = False
        if block.split:
            self._add(pool, 0, 0, -1, -block.size)
        if rest >= BLOCK if pool == "small" or self.expandable else rest > SMALL:
            left = Block(block.segment, block.address + size, rest)
            left.previous, left.next = block, block.next
            if block.next is None:
                block.segment.last = left
            else:
                block.next.previous = left
            block.next, block.size = left, size
            self._keep(left)
            self._add(pool, 0, 0, 1, rest)

    def _keep(self, block: Block) -> None:
        block.free = True
        key = block.segment.pool, block.segment.stream
        insort(self._free.setdefault(key, []), (block.size, block.address, block))

    def _forget(self, block: Block) -> None:
        free = self._free[block.segment.pool, block.segment.stream]
        free.pop(bisect_left(free, (block.size, block.address)))
        block.free = False

    def _add(self, pool: str, *amounts: int) -> None:
        for counts in (self.counts["all"], self.counts[pool]):
            for count, amount in zip(counts, amounts, strict=True):
                if amount > 0:
                    count.add(amount)
                elif amount:
                    count.remove(-amount)
