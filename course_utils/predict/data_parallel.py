"""A DistributedDataParallel step, event by event: layers run, buckets fill, collectives start as soon as a bucket is
full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..results.spans import Span
from .constants import BUCKET_BYTES, FIRST_BUCKET_BYTES
from .validation import at_most, count, fraction, not_negative, positive


@dataclass(frozen=True)
class Layer:
    """A layer as DDP sees it: seconds forward and backward for one micro-batch, and bytes of its gradients."""

    forward_s: float
    backward_s: float
    nbytes: float
    name: str = ""

    def __post_init__(self) -> None:
        not_negative(forward_s=self.forward_s, backward_s=self.backward_s, nbytes=self.nbytes)


def equal_layers(compute_s: float, nbytes: float, layers: int = 50, backward_fraction: float = 2 / 3) -> list[Layer]:
    """Split a model of which you only know the totals into `layers` equal layers. Together they compute for `compute_s`
    and have `nbytes` of gradients.

    Backward takes `backward_fraction` of the time: 2/3, since it has two matrix products for each one in forward.
    """
    count(layers=layers)
    at_most(1e5, "layers", layers)
    not_negative(compute_s=compute_s, nbytes=nbytes)
    fraction(backward_fraction=backward_fraction)
    one = compute_s / layers
    return [Layer(one * (1 - backward_fraction), one * backward_fraction, nbytes / layers) for _ in range(layers)]


def buckets(
    layer_bytes: Sequence[float], bucket_bytes: float | None = None, first_bytes: float | None = None
) -> list[list[int]]:
    """How DDP groups gradients: lists of layer numbers in the order of sending, so the last layers come first.

    A bucket takes gradients, from the last layer to the first, until it holds `bucket_bytes` or more. The default is
    DDP's: 25 MiB, and 1 MiB for the first bucket. As in DDP, a size that you give, even 25 MiB, also applies to the
    first bucket; `first_bytes` overrides that. A layer without gradients is in no bucket.
    torch.nn.parallel.distributed, `_BucketCapacityConfig`.
    """
    if first_bytes is None:
        first_bytes = FIRST_BUCKET_BYTES.value if bucket_bytes is None else bucket_bytes
    bucket_bytes = BUCKET_BYTES.value if bucket_bytes is None else bucket_bytes
    positive(bucket_bytes=bucket_bytes)
    found: list[list[int]] = []
    filled, limit = 0.0, first_bytes
    current: list[int] = []
    for i in reversed(range(len(layer_bytes))):
        if layer_bytes[i] <= 0:
            continue
        current.append(i)
        filled += layer_bytes[i]
        if filled >= limit:
            found.append(current)
            current, filled, limit = [], 0.0, bucket_bytes
    return [*found, current] if current else found


@dataclass(frozen=True)
class DDPStep:
    """A predicted step. `total_s` = `compute_s` + `exposed_s` + `slowed_s` + `optimizer_s`; `spans` are for
    `figures.rank_timeline`."""

    total_s: float
    compute_s: float  # forward and backward, undisturbed
    communication_s: float  # all collectives, one after the other
    exposed_s: float  # communication after the last layer's backward, where nothing hides it
    slowed_s: float  # how much longer compute took because of overlapping communication
    optimizer_s: float
    bucket_bytes: tuple[float, ...]  # in the order of sending
    spans: tuple[Span, ...]

    @property
    def hidden(self) -> float:
        """The fraction of the communication that cost no time: 1 when the step is as long as its compute."""
        if not self.communication_s:
            return 1.0
        return 1 - (self.exposed_s + self.slowed_s) / self.communication_s

    def images_per_s(self, batch: float, ranks: int = 1) -> float:
        """Samples per second of all ranks together, `batch` being what one rank computes in this step."""
        return batch * ranks / self.total_s


def ddp_step(
    layers: Sequence[Layer],
    all_reduce_s: Callable[[float], float],
    *,
    bucket_bytes: float | None = None,
    first_bytes: float | None = None,
    accumulate: int = 1,
    no_sync: bool = True,
    interference: float = 0.0,
    optimizer_s: float = 0.0,
    overlap: bool = True,
    rank: int = 0,
) -> DDPStep:
    """One optimizer step of DDP: `accumulate` micro-batches through `layers` (in forward order), gradients summed by
    `all_reduce_s(nbytes)`.

    Backward goes from the last layer to the first, and fills `buckets`. Each full bucket waits for the one before it,
    then travels during the rest of backward. With `no_sync` only the last micro-batch sends; without it each one does,
    as if you'd forgotten the context manager. While a collective runs, compute loses the fraction `interference` of its
    speed (1: both want the same cores, so overlap gains nothing). `overlap=False` sends only after backward, as a plain
    loop over the gradients would. Li et al., "PyTorch Distributed", VLDB 13(12), 2020, section 4.

    Seconds and bytes throughout; `all_reduce_s` may be a `SizeSweep`. Raises ValueError for no layers or a bad number.
    """
    if not layers:
        raise ValueError("a step needs at least one layer")
    count(accumulate=accumulate)
    at_most(1e7, "layers times micro-batches", len(layers) * accumulate)
    fraction(interference=interference)
    not_negative(optimizer_s=optimizer_s)
    groups = buckets([layer.nbytes for layer in layers], bucket_bytes, first_bytes)
    sizes = tuple(sum(layers[i].nbytes for i in group) for group in groups)
    last_of = {group[-1]: k for k, group in enumerate(groups)}  # the layer whose backward fills bucket k
    costs = [all_reduce_s(size) for size in sizes]
    forward_s, backward_s = sum(layer.forward_s for layer in layers), sum(layer.backward_s for layer in layers)

    spans: list[Span] = []
    now = exposed_s = slowed_s = 0.0
    sent = 0
    for micro in range(accumulate):
        spans.append((rank, now, now + forward_s, "compute", "forward"))
        now += forward_s
        began, link_free = now, now
        sync = micro == accumulate - 1 or not no_sync
        for i in reversed(range(len(layers))):
            # Compute runs at full speed unless a collective is under way, then at 1 - interference of it.
            left, busy_s = layers[i].backward_s, max(0.0, link_free - now)
            if busy_s and interference < 1:
                done = min(left, busy_s * (1 - interference))
                slowed_s += done / (1 - interference) - done
                now += done / (1 - interference)
                left -= done
            elif busy_s and left:
                slowed_s += busy_s
                now += busy_s
            now += left
            if sync and overlap and i in last_of:
                k = last_of[i]
                start = max(now, link_free)
                link_free = start + costs[k]
                spans.append((rank, start, link_free, "communication", f"bucket {k}"))
        spans.append((rank, began, now, "compute", "backward"))
        if sync:
            sent += 1
            if not overlap:
                link_free = now
                for k, cost in enumerate(costs):
                    spans.append((rank, link_free, link_free + cost, "communication", f"bucket {k}"))
                    link_free += cost
            exposed_s += max(0.0, link_free - now)
            now = max(now, link_free)
    if optimizer_s:
        spans.append((rank, now, now + optimizer_s, "compute", "step"))
    compute_s = accumulate * (forward_s + backward_s)
    return DDPStep(
        now + optimizer_s, compute_s, sent * sum(costs), exposed_s, slowed_s, optimizer_s, sizes, tuple(spans)
    )
