"""PyTorch's caching allocator of a modelled GPU: which blocks it takes from the device, splits, keeps and joins again.

What it holds is more than what tensors take, since a free block serves its own stream only, and only what fits. The
rules are those of c10/cuda/CUDACachingAllocator.cpp, with two of its settings: `expandable_segments` and
`max_split_size_mb`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

BLOCK = 512  # bytes: what it rounds up to
SMALL = 1 << 20  # bytes of its small pool's largest (kSmallSize)
# Bytes that it takes from the device at a time (kSmallBuffer, kLargeBuffer).
SMALL_SEGMENT, LARGE_SEGMENT = 2 << 20, 20 << 20
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
    """A range of addresses, in blocks. An expandable one grows at its end, and may have holes: addresses without
    memory."""

    __slots__ = ("address", "first", "last", "pool", "stream")

    def __init__(self, address: int, size: int, pool: str, stream: int):
        self.address, self.pool, self.stream = address, pool, stream
        self.first = self.last = Block(self, address, size)

    def __iter__(self) -> Iterator[Block]:
        block: Block | None = self.first
        while block is not None:
            yield block
            block = block.next

    @property
    def ranges(self) -> list[list[Block]]:
        """Its blocks, without the holes between them."""
        found: list[list[Block]] = [[]]
        for block in self:
            if block.hole:
                found.append([])
            else:
                found[-1].append(block)
        return [blocks for blocks in found if blocks]


class Block:
    """A part of a segment, which is free, or has a tensor's bytes, or is a hole."""

    __slots__ = ("address", "free", "hole", "next", "piece", "previous", "segment", "size")

    def __init__(self, segment: Segment, address: int, size: int):
        self.segment, self.address, self.size = segment, address, size
        self.free = self.hole = self.piece = False  # a piece is free, next to what isn't
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def split(self) -> bool:
        """Whether it's one of several in its segment."""
        return self.previous is not None or self.next is not None

    def cut(self, size: int) -> Block:
        """Keep `size` bytes, and return what comes after them."""
        rest = Block(self.segment, self.address + size, self.size - size)
        rest.hole, self.size = self.hole, size
        self.link(rest)
        return rest

    def link(self, other: Block) -> None:
        """Put another after it."""
        other.previous, other.next = self, self.next
        if self.next is None:
            self.segment.last = other
        else:
            self.next.previous = other
        self.next = other

    def swallow(self, other: Block) -> None:
        """Become one with the next or the previous one."""
        self.address, self.size = min(self.address, other.address), self.size + other.size
        if other is self.previous:
            self.previous = other.previous
            if self.previous is None:
                self.segment.first = self
            else:
                self.previous.next = self
        else:
            self.next = other.next
            if self.next is None:
                self.segment.last = self
            else:
                self.next.previous = self


class Allocator:
    """The allocator of one device, which has `limit` bytes. `expandable` is `expandable_segments:True`; from
    `oversize` bytes on (`max_split_size_mb`) a block is given out whole, and only for what is as large."""

    def __init__(self, limit: int, expandable: bool = False, oversize: int | None = None):
        self.limit, self.expandable, self.oversize = limit, expandable, oversize
        self.segments: dict[int, Segment] = {}  # by address
        self.retries = 0  # how often it gave back what it had kept, to take something else
        self.device_calls = Count()  # allocated: how often the device was asked for memory; freed: got some back
        # Called with "alloc", "free", "map" or "unmap", the address, the bytes and the stream, whenever the device is.
        self.tell: Callable[[str, int, int, int], None] = lambda action, address, nbytes, stream: None
        self._free: dict[tuple[str, int], list[tuple[int, int, Block]]] = {}  # by size, then address
        self._growing: dict[tuple[str, int], Segment] = {}
        self._next = _FIRST
        pools = ("all", "large", "small")
        # Bytes taken from the device, segments, pieces, and their bytes.
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
        block = self._fitting(free, size)
        if block is not None:
            self._forget(block)
        else:
            take = self._grow if self.expandable else self._new_segment
            block = take(key, size, most)
            if block is None and self._give_back_oversize(key, size):
                block = take(key, size, most)
            if block is None and self.give_back_what_is_free():
                self.retries += 1
                block = take(key, size, most)
        if block is None:
            return None
        rest = block.size - size
        small = key[0] == "small" or self.expandable
        if rest >= BLOCK if small else rest > SMALL and not self._is_oversize(size):
            self._keep(block.cut(size))
        return block

    def _is_oversize(self, size: int) -> bool:
        return self.oversize is not None and size >= self.oversize

    def _fitting(self, free: list[tuple[int, int, Block]], size: int) -> Block | None:
        """The smallest free block that has room for `size`; None if there's none, or only one of the other kind."""
        at = bisect_left(free, (size,))
        if at == len(free):
            return None
        if self.expandable:  # what can grow counts as large as it can become, so that what can't is taken first
            while at + 1 < len(free) and _could_be(free[at + 1][2]) < _could_be(free[at][2]):
                at += 1
        block = free[at][2]
        if self._is_oversize(size):
            return block if block.size < size + LARGE_SEGMENT else None
        return None if self._is_oversize(block.size) else block

    def _give_back_oversize(self, key: tuple[str, int], size: int) -> bool:
        """Where `oversize` is set: give back free blocks of this stream that are too large to be cut, until there's
        room for `size`, the smallest that suffices or else the largest ones. Returns whether that will do."""
        if self.oversize is None or self.expandable:
            return False
        least = max(size, self.oversize)
        free = [found for found in self._free[key] if self._is_oversize(found[0])]
        enough = bisect_left(free, (least,))
        given = 0
        for _, _, block in free[enough : enough + 1] or reversed(free):
            if given >= least:
                break
            given += block.size
            self._give_back_segment(block)
        return given >= least

    def give_back(self, block: Block) -> None:
        """Its tensor is gone: join it with what's free next to it, and keep it."""
        for other in (block.previous, block.next):
            if other is not None and other.free:
                self._forget(other)
                block.swallow(other)
        self._keep(block)

    def give_back_what_is_free(self) -> int:
        """Give whole free segments back to the device, and the free pages of expandable ones. Returns the bytes."""
        before = self.reserved
        for free in list(self._free.values()):
            for _, _, block in list(free):
                if self.expandable:
                    self._make_a_hole(block)
                elif not block.split:
                    self._give_back_segment(block)
        for segment in list(self.segments.values()):
            if all(block.hole for block in segment):
                self._drop(segment)
        return before - self.reserved

    def _give_back_segment(self, block: Block) -> None:
        """Give the whole segment of a free block back to the device."""
        self._forget(block)
        self._unmapped("free", block)
        self._drop(block.segment)

    def _drop(self, segment: Segment) -> None:
        del self.segments[segment.address]
        self._growing.pop((segment.pool, segment.stream), None)
        if not self.expandable:  # whose segments torch doesn't count
            self._add(segment.pool, 0, -1)

    def _mapped(self, action: str, address: int, size: int, segment: Segment) -> None:
        self.device_calls.add(1)
        self._add(segment.pool, size, action == "alloc")
        self.tell(action, address, size, segment.stream)

    def _unmapped(self, action: str, block: Block) -> None:
        self.device_calls.remove(1)
        self._add(block.segment.pool, -block.size)
        self.tell(action, block.address, block.size, block.segment.stream)

    def _new_segment(self, key: tuple[str, int], size: int, most: int, room: int = 0) -> Block | None:
        """A segment for a block, with addresses for `room` bytes."""
        pool, stream = key
        asked = -(-size // ROUND) * ROUND if size >= LARGE_ALONE and not room else -(-size // _page(pool)) * _page(pool)
        if self.reserved + asked > most:
            return None
        address, self._next = self._next, self._next + (room or asked)
        segment = self.segments[address] = Segment(address, asked, pool, stream)
        self._mapped("map" if room else "alloc", address, asked, segment)
        return segment.first

    def _make_a_hole(self, block: Block) -> None:
        """Give back the whole pages of a free block."""
        segment, page = block.segment, _page(block.segment.pool)
        begins = block.address - segment.address
        start, end = -(-begins // page) * page, (begins + block.size) // page * page
        if start >= end:
            return
        self._forget(block)
        if start > begins:
            before, block = block, block.cut(start - begins)
            self._keep(before)
        if block.size > end - start:
            self._keep(block.cut(end - start))
        block.hole = True
        self._unmapped("unmap", block)
        for other in (block.previous, block.next):
            if other is not None and other.hole:
                block.swallow(other)
        if block.next is None and block.previous is not None:  # the segment ends before it
            segment.last, block.previous.next = block.previous, None

    def _grow(self, key: tuple[str, int], size: int, most: int) -> Block | None:
        """A block of an expandable segment: what's free and holes next to each other, and what comes after its end."""
        segment = self._growing.get(key)
        if segment is None:
            first = self._new_segment(key, size, most, _FAR)
            if first is not None:
                self._growing[key] = first.segment
            return first
        page, start, found, asked = _page(key[0]), self._room(segment, size), 0, 0
        block = start
        while block is not None and found < size:
            part = min(block.size, -(-(size - found) // page) * page) if block.hole else block.size
            found, asked, block = found + part, asked + part * block.hole, block.next
        beyond = -(-max(0, size - found) // page) * page
        if self.reserved + asked + beyond > most:
            return None
        whole: Block | None = None
        block = start
        while block is not None and (whole is None or whole.size < size):
            if block.hole:
                need = -(-(size - (whole.size if whole else 0)) // page) * page
                if need < block.size:
                    block.cut(need)
                block.hole = False
                self._mapped("map", block.address, block.size, segment)
            else:
                self._forget(block)
            if whole is None:
                whole = block
            else:
                whole.swallow(block)
            block = whole.next
        if beyond:
            last = segment.last
            more = Block(segment, last.address + last.size, beyond)
            self._mapped("map", more.address, beyond, segment)
            last.link(more)
            if whole is None:
                whole = more
            else:
                whole.swallow(more)
        if whole is not None and whole.next is not None and whole.next.free:
            self._forget(whole.next)
            whole.swallow(whole.next)
        return whole

    def _room(self, segment: Segment, size: int) -> Block | None:
        """Where so many bytes begin that are free or a hole, or that may lie beyond the end; None is the end."""
        for hole in segment:
            if hole.hole:
                start = hole.previous if hole.previous is not None and hole.previous.free else hole
                found = 0
                at: Block | None = start
                while at is not None and (at.free or at.hole):
                    found, at = found + at.size, at.next
                if found >= size or at is None:
                    return start
        return segment.last if segment.last.free else None

    def _keep(self, block: Block) -> None:
        block.free, block.piece = True, block.split and not self.expandable  # whose pieces torch doesn't count
        key = block.segment.pool, block.segment.stream
        insort(self._free.setdefault(key, []), (block.size, block.address, block))
        if block.piece:
            self._add(block.segment.pool, 0, 0, 1, block.size)

    def _forget(self, block: Block) -> None:
        free = self._free[block.segment.pool, block.segment.stream]
        free.pop(bisect_left(free, (block.size, block.address)))
        if block.piece:
            self._add(block.segment.pool, 0, 0, -1, -block.size)
        block.free = block.piece = False

    def _add(self, pool: str, *amounts: int) -> None:
        for counts in (self.counts["all"], self.counts[pool]):
            for count, amount in zip(counts, amounts, strict=False):  # those that change
                if amount > 0:
                    count.add(amount)
                elif amount:
                    count.remove(-amount)


def _could_be(block: Block) -> int:
    """The bytes of a free block of an expandable segment, with those that it can grow by."""
    after = block.next
    return block.size + (_FAR if after is None else after.size if after.hole else 0)


def _page(pool: str) -> int:
    return SMALL_SEGMENT if pool == "small" else LARGE_SEGMENT
