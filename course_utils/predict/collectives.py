"""Predict what collectives cost, from a latency and a bandwidth or from a sweep of measured sizes.

`n` counts ranks. `nbytes` is the size of the tensor that every rank ends up with (for reduce-scatter: starts with). A
time ends when the last rank is done. n = 1 sends nothing and costs nothing. Instead of a link you can pass a
`SizeSweep` of measured messages between two neighbours.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from .constants import CHUNK_LIMIT, GPUS_PER_NODE, HOP_S
from .validation import count, not_negative, one_of, positive

# A ring all-reduce, message by message: which chunk each rank sends in each step, and what every rank holds then.

Held = list[list[list[frozenset[int]]]]  # held[step][rank][chunk]: the ranks whose numbers are added up in that chunk


def ring_chunk(n: int, rank: int, step: int) -> int:
    """The chunk that `rank` sends to rank + 1 in `step` (1 to 2 (n-1)). It receives the chunk before that one, modulo
    n.

    In the first n-1 steps, the reduce-scatter, the receiver adds the chunk to its own. After that, in the all-gather,
    the chunk replaces its own. Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009. Raises ValueError for a step
    or a rank that doesn't exist.
    """
    count(n=n)
    if not 0 <= rank < n or not 1 <= step <= 2 * (n - 1):
        raise ValueError(f"{n} ranks go through steps 1 to {2 * (n - 1)}; got rank {rank}, step {step}")
    return (rank - step + 1) % n


def ring_held(n: int) -> Held:
    """What every rank holds before the first of the 2 (n-1) steps, and after each of them: `held[step][rank][chunk]` is
    the set of ranks added up there."""
    count(n=n)
    held: Held = [[[frozenset({rank})] * n for rank in range(n)]]
    for step in range(1, 2 * (n - 1) + 1):
        before = held[-1]
        after = [list(chunks) for chunks in before]
        for rank in range(n):
            chunk, right = ring_chunk(n, rank, step), (rank + 1) % n
            after[right][chunk] = before[rank][chunk] | (before[right][chunk] if step < n else frozenset())
        held.append(after)
    return held


# Bytes that cross each link of a ring, over the bytes of the tensor (NVIDIA/nccl-tests doc/PERFORMANCE.md).
_RING_FACTOR: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


@dataclass(frozen=True)
class Link:
    """A link between neighbours: seconds for an empty message, and bytes per second for a long one (one direction)."""

    latency_s: float
    bandwidth_Bps: float

    def __post_init__(self) -> None:
        not_negative(latency_s=self.latency_s)
        positive(bandwidth_Bps=self.bandwidth_Bps)

    def send_s(self, nbytes: float) -> float:
        """Seconds to send `nbytes` to a neighbour: latency + nbytes / bandwidth. Hockney, Parallel Computing 20,
        1994."""
        not_negative(nbytes=nbytes)
        return self.latency_s + nbytes / self.bandwidth_Bps


def ring_all_reduce(n: int, nbytes: float, link: Link | SizeSweep) -> float:
    """Seconds of a ring all-reduce: 2 (n-1) messages of nbytes/n. Patarasuk and Yuan, J. Parallel Distrib. Comput. 69,
    2009."""
    return reduce_scatter(n, nbytes, link) + all_gather(n, nbytes, link)


def reduce_scatter(n: int, nbytes: float, link: Link | SizeSweep) -> float:
    """Seconds of a ring reduce-scatter: (n-1) messages of nbytes/n; rank r then holds the sum of part r."""
    count(n=n)
    return (n - 1) * link.send_s(nbytes / n)


def all_gather(n: int, nbytes: float, link: Link | SizeSweep) -> float:
    """Seconds of a ring all-gather: (n-1) messages of nbytes/n; `nbytes` is the gathered size."""
    count(n=n)
    return (n - 1) * link.send_s(nbytes / n)


def tree_all_reduce(n: int, nbytes: float, link: Link | SizeSweep) -> float:
    """Seconds of an all-reduce up and down a pipelined double binary tree: 2 ceil(log2 n) latencies, and 2 (n-1)/n of
    the bytes.

    It takes few steps, so it wins where latency counts: with small tensors or many ranks. Sanders, Speck and Träff,
    Parallel Computing 35, 2009; NCCL 2.4.
    """
    count(n=n)
    not_negative(nbytes=nbytes)
    return 2 * math.ceil(math.log2(n)) * link.latency_s + 2 * (n - 1) / n * nbytes / link.bandwidth_Bps


def all_reduce(n: int, nbytes: float, link: Link | SizeSweep) -> float:
    """Seconds of ring or tree, whichever is faster, as a library would choose."""
    return min(ring_all_reduce(n, nbytes, link), tree_all_reduce(n, nbytes, link))


def hierarchical_all_reduce(
    nodes: int, per_node: int, nbytes: float, inside: Link | SizeSweep, between: Link | SizeSweep
) -> float:
    """Seconds of an all-reduce in three phases: reduce-scatter in each node, all-reduce of each shard between nodes,
    all-gather in each node.

    `between` is the link of ONE rank to the other nodes. All `per_node` ranks use theirs at once, each for
    nbytes/per_node. The sum of the phases is an upper bound, since libraries overlap them in part.
    """
    count(nodes=nodes, per_node=per_node)
    shard = nbytes / per_node
    return (
        reduce_scatter(per_node, nbytes, inside)
        + all_reduce(nodes, shard, between)
        + all_gather(per_node, nbytes, inside)
    )


def broadcast(n: int, nbytes: float, link: Link | SizeSweep, algorithm: str = "ring") -> float:
    """Seconds to copy `nbytes` from one rank to all.

    `tree`: ceil(log2 n) whole messages. `ring`: k chunks follow each other through n-1 hops, (k + n - 2) (latency +
    nbytes/(k bandwidth)), with the best k. Chan et al., "Collective communication: theory, practice, and experience",
    2007.
    """
    count(n=n)
    not_negative(nbytes=nbytes)
    one_of(("ring", "tree"), algorithm=algorithm)
    if n == 1:
        return 0.0
    if algorithm == "tree":
        return math.ceil(math.log2(n)) * link.send_s(nbytes)
    wire_s = nbytes / link.bandwidth_Bps
    chunks = max(1.0, math.sqrt((n - 2) * wire_s / link.latency_s)) if link.latency_s else math.inf
    return wire_s if math.isinf(chunks) else (chunks + n - 2) * (link.latency_s + wire_s / chunks)


def ring_factor(collective: str, n: int) -> float:
    """Bytes that cross each link of a ring over the bytes of the tensor: 2 (n-1)/n for all_reduce, (n-1)/n for
    all_gather ..."""
    one_of(tuple(_RING_FACTOR), collective=collective)
    count(n=n)
    return _RING_FACTOR[collective](n) if n > 1 else 0.0


def bus_bandwidth(nbytes: float, seconds: float, n: int, collective: str = "all_reduce") -> float:
    """Bytes per second on each link, the busbw column of nccl-tests. This is the rate to compare with a link's
    specification."""
    not_negative(nbytes=nbytes)
    positive(seconds=seconds)
    return nbytes / seconds * ring_factor(collective, n)


def from_bus_bandwidth(nbytes: float, busbw_Bps: float, n: int, collective: str = "all_reduce") -> float:
    """Seconds of a collective on a large tensor, given its bus bandwidth. The inverse of `bus_bandwidth`; latency isn't
    counted."""
    not_negative(nbytes=nbytes)
    positive(busbw_Bps=busbw_Bps)
    return nbytes * ring_factor(collective, n) / busbw_Bps


def two_point_all_reduce(
    nbytes: float,
    *,
    n: int,
    alpha_s: float,
    cal_bytes: float,
    cal_s: float,
    per_node: int = int(GPUS_PER_NODE.value),
    hop_s: float = HOP_S.value,
) -> float:
    """Seconds of an NCCL all-reduce, from its time for a tiny tensor (`alpha_s`) and for one huge one (`cal_s` for
    `cal_bytes`).

    t = alpha + x + 2 sqrt(tau x / (1 + x / (50 tau))), with x = nbytes / B the time on the wire. The last term is for
    the middle sizes, which a straight line between the two points misses by half. There data moves through the ring in
    chunks: the first chunk has to pass all hops before the pipeline is full, and every chunk costs a hop's latency.
    With the best chunk size both together cost 2 sqrt(tau x), where tau is the latency of all hops (the pipelined
    broadcast of Chan et al. 2007). Chunks can't outgrow the library's buffers, which bounds the term. Inside one
    machine tau = 2 (n-1) `hop_s`, at most alpha. Between machines the network's latency is most of alpha: tau = alpha.
    B is solved so that the curve passes through both points. Raises ValueError when `cal_s` is not above `alpha_s`.
    """
    count(n=n, per_node=per_node)
    not_negative(nbytes=nbytes, alpha_s=alpha_s, hop_s=hop_s)
    positive(cal_bytes=cal_bytes, cal_s=cal_s)
    if cal_s <= alpha_s:
        raise ValueError(
            f"the calibration must take longer than an empty all-reduce; got {cal_s:g} s for {cal_bytes:g} bytes and"
            f" {alpha_s:g} s for none"
        )
    tau = min(alpha_s, 2 * (n - 1) * hop_s) if n <= per_node else alpha_s

    def curve(wire_s: float) -> float:
        fill = 2 * math.sqrt(tau * wire_s / (1 + wire_s / (CHUNK_LIMIT.value * tau))) if tau else 0.0
        return alpha_s + wire_s + fill

    low, high = 0.0, cal_s - alpha_s
    for _ in range(80):  # the curve rises with x, so bisection finds the x that takes cal_s
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) < cal_s else (low, middle)
    return curve(nbytes / cal_bytes * high)


class SizeSweep:
    """Interpolate the measured times of one collective on a fixed number of ranks: `sweep(nbytes)` is seconds.

    Give it pairs (nbytes, seconds); for a size that comes several times it takes the median. Between two sizes it's
    linear in the logarithms of size and time, which follows latency, bandwidth and switches between algorithms alike.
    Below the smallest size the time stays constant (all latency); above the largest it grows with the size (all
    bandwidth).
    """

    def __init__(self, points: Iterable[tuple[float, float]]):
        by_size: dict[float, list[float]] = {}
        for nbytes, seconds in points:
            positive(nbytes=nbytes, seconds=seconds)
            by_size.setdefault(nbytes, []).append(seconds)
        if not by_size:
            raise ValueError("a sweep needs at least one measured (nbytes, seconds)")
        self.points = tuple((size, median(by_size[size])) for size in sorted(by_size))

    def __call__(self, nbytes: float) -> float:
        """Seconds for `nbytes`; 0 for nothing."""
        not_negative(nbytes=nbytes)
        if nbytes == 0:
            return 0.0
        sizes = [size for size, _ in self.points]
        at = bisect_left(sizes, nbytes)
        if at == 0:
            return self.points[0][1]
        if at == len(sizes):
            return self.points[-1][1] * nbytes / sizes[-1]
        (size0, time0), (size1, time1) = self.points[at - 1 : at + 1]
        share = math.log(nbytes / size0) / math.log(size1 / size0)
        return time0 * (time1 / time0) ** share

    @property
    def latency_s(self) -> float:
        """Seconds for the smallest size measured."""
        return self.points[0][1]

    @property
    def bandwidth_Bps(self) -> float:
        """Bytes per second at the largest size measured."""
        return self.points[-1][0] / self.points[-1][1]

    def send_s(self, nbytes: float) -> float:
        """Seconds for `nbytes`, under the name that `Link` uses."""
        return self(nbytes)

    def alpha_beta(self) -> Link:
        """The straight line through the smallest and the largest size, as a `Link`. It ignores the sizes in between."""
        (size0, time0), (size1, time1) = self.points[0], self.points[-1]
        if time1 <= time0:
            raise ValueError("the largest size was no slower than the smallest; measure sizes that are further apart")
        bandwidth = (size1 - size0) / (time1 - time0)
        return Link(max(0.0, time0 - size0 / bandwidth), bandwidth)

    def __repr__(self) -> str:
        (size0, time0), (size1, time1) = self.points[0], self.points[-1]
        return (
            f"<SizeSweep: {len(self.points)} sizes, {size0:.3g} B in {time0:.3g} s to {size1:.3g} B in {time1:.3g} s>"
        )
