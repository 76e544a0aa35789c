"""What lies in the memory of a modelled GPU: live bytes, their peak, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

BLOCK = 512  # bytes: PyTorch's CUDA allocator rounds up to it
SEGMENT = 2 << 20  # bytes: what it takes from the device at a time
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

    __slots__ = ("kind", "nbytes")

    def __init__(self, nbytes: int, kind: str):
        self.nbytes, self.kind = nbytes, kind


class Memory:
    """The bytes of one device, as PyTorch's allocator would count them. `limit` is all that it has.

    `where` says where the program stands; it's asked at each new peak, and its answer kept as `peak_at`.
    """

    def __init__(self, limit: int, where: Callable[[], tuple[float, str]] = lambda: (0.0, "")):
        self.limit, self.where = limit, where
        self.tell: Callable[[int], None] = lambda reserved: None  # called with `reserved` where it may have changed
        self.live = 0
        self.most = 0  # since the program began
        self.allocations = 0
        self.fraction = 1.0
        self._chunks: set[Chunk] = set()
        self.reset_peak()

    def reset_peak(self) -> None:
        self.peak, self.peak_at = self.live, self.where()
        # What lay here at the peak: what lies here now, without what came since, with what went since.
        self._came: set[Chunk] = set()
        self._went: set[Chunk] = set()
        self.tell(self.reserved)

    def take(self, nbytes: int, kind: str) -> Chunk:
        """Count `nbytes` more."""
        rounded = -(-nbytes // BLOCK) * BLOCK
        chunk = Chunk(rounded, kind)
        self.live += rounded
        self.allocations += 1
        self._chunks.add(chunk)
        if self.live > self.peak:
            self.most = max(self.most, self.live)
            self.reset_peak()
        else:
            self._came.add(chunk)
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        self.live -= chunk.nbytes
        self._chunks.discard(chunk)
        if chunk in self._came:
            self._came.discard(chunk)
        else:
            self._went.add(chunk)

    @property
    def reserved(self) -> int:
        """Bytes that the allocator would hold of the device at its peak, in whole segments."""
        return min(self.limit, -(-self.peak // SEGMENT) * SEGMENT)

    @property
    def by_kind(self) -> dict[str, int]:
        """Live bytes of each kind."""
        return _sums(self._chunks)

    @property
    def at_peak(self) -> dict[str, int]:
        """Bytes of each kind at the peak."""
        return _sums((self._chunks - self._came) | self._went)

    def breakdown(self) -> str:
        """The kinds of what is live, and what would help."""
        kinds = sorted(self.by_kind.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{kind} {nbytes / 2**30:.2f} GiB" for kind, nbytes in kinds)
        return f"{listed or 'nothing'}. {HELP[kinds[0][0]] if kinds else HELP['activations']}"


def _sums(chunks: Iterable[Chunk]) -> dict[str, int]:
    found: dict[str, int] = {}
    for chunk in chunks:
        if chunk.nbytes:
            found[chunk.kind] = found.get(chunk.kind, 0) + chunk.nbytes
    return found
