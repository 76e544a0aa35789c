"""Data parallelism, event by event: one process for all devices, a step of DDP, and a fully sharded one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..results.spans import Span
from .collectives import ring_factor
from .constants import BUCKET_BYTES, FIRST_BUCKET_BYTES
from .validation import at_most, count, fraction, not_negative, one_of, positive

# One process that drives n devices, as nn.DataParallel does: what its first device sends, receives and holds in a
# step.


@dataclass(frozen=True)
class Traffic:
    """Bytes that one device sends to others and receives from them in a training step, each by what travels."""

    sent: Mapping[str, float]
    received: Mapping[str, float]

    @property
    def sent_bytes(self) -> float:
        return sum(self.sent.values())

    @property
    def received_bytes(self) -> float:
        return sum(self.received.values())

    @property
    def total_bytes(self) -> float:
        """Both directions together."""
        return self.sent_bytes + self.received_bytes


def data_parallel_traffic(
    n: int,
    parameter_bytes: float,
    input_bytes: float = 0.0,
    output_bytes: float = 0.0,
    *,
    buffer_bytes: float = 0.0,
    gradient_bytes: float | None = None,
    output_gradients: bool = True,
    by: str = "copies",
) -> Traffic:
    """What the FIRST of n devices sends and receives in a step of DataParallel. `input_bytes` and `output_bytes` are
    for the whole batch.

    `by="copies"`: device 0 sends the weights to n-1 other devices, and receives gradients from each.
    `by="ring"`: a library such as NCCL passes them on from device to device, so they leave and reach device 0 only
    once. A parameter counts once, however many names it has. If some are frozen, give the smaller `gradient_bytes`.
    The gradients of the outputs go back to the replicas, unless those compute the loss themselves and only hand back
    their outputs (`output_gradients=False`).
    """
    count(n=n)
    one_of(("copies", "ring"), by=by)
    gradient_bytes = parameter_bytes if gradient_bytes is None else gradient_bytes
    not_negative(
        parameter_bytes=parameter_bytes,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        buffer_bytes=buffer_bytes,
        gradient_bytes=gradient_bytes,
    )
    times = 0 if n == 1 else n - 1 if by == "copies" else 1
    away = (n - 1) / n  # the share of the batch that other devices compute
    sent = {
        "parameters": times * parameter_bytes,
        "buffers": times * buffer_bytes,
        "inputs": away * input_bytes,
        "gradients of outputs": away * output_bytes * output_gradients,
    }
    return Traffic(sent, {"gradients of parameters": times * gradient_bytes, "outputs": away * output_bytes})


def ddp_traffic(n: int, gradient_bytes: float) -> Traffic:
    """What EACH of n devices sends and receives in a step of DDP with a ring all-reduce: 2 (n-1)/n of the gradients in
    either direction."""
    not_negative(gradient_bytes=gradient_bytes)
    each_way = ring_factor("all_reduce", n) * gradient_bytes
    return Traffic({"gradients": each_way}, {"gradients": each_way})


def data_parallel_memory(
    n: int,
    parameter_bytes: float,
    activation_bytes: float,
    output_bytes: float,
    *,
    at: str,
    optimizer_factor: float = 2.0,
    loss_factor: float = 2.0,
) -> tuple[dict[str, float], dict[str, float]]:
    """What the first of n devices holds `at` the end of DataParallel's "forward" or "backward", and what each other
    device holds: parts for `figures.memory`.

    Every device has a copy of the weights. At the end of forward it also has the activations of its share of the batch
    (`activation_bytes` is for the whole batch). They go while backward fills the gradients, which are all there at its
    end, since they're sent together. Only the first has the optimizer's state, `optimizer_factor` times the weights (2:
    Adam), and at the end of forward the gathered outputs with what the loss keeps of them, `loss_factor` times
    `output_bytes` (2: the outputs, and the log-probabilities of a cross-entropy).
    """
    count(n=n)
    one_of(("forward", "backward"), at=at)
    not_negative(parameter_bytes=parameter_bytes, activation_bytes=activation_bytes, output_bytes=output_bytes)
    not_negative(optimizer_factor=optimizer_factor, loss_factor=loss_factor)
    other = {"parameters": parameter_bytes}
    first = {"parameters": parameter_bytes, "optimizer": optimizer_factor * parameter_bytes}
    if at == "backward":
        return first | {"gradients": parameter_bytes}, other | {"gradients": parameter_bytes}
    activations = {"activations": activation_bytes / n}
    return first | activations | {"gathered outputs and loss": loss_factor * output_bytes}, other | activations


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


# A fully sharded step (FSDP, ZeRO-3): weights are gathered before each layer, gradients scattered after it.


@dataclass(frozen=True)
class ShardedStep:
    """A predicted step; `spans` are for `figures.rank_timeline`."""

    total_s: float
    compute_s: float  # forward and backward, undisturbed
    communication_s: float  # all collectives, one after the other
    spans: tuple[Span, ...]

    @property
    def cost_s(self) -> float:
        """What communication costs: collectives that compute doesn't hide, and compute that they slow down."""
        return self.total_s - self.compute_s


def fsdp_step(
    layers: Sequence[Layer],
    all_gather_s: Callable[[float], float],
    reduce_scatter_s: Callable[[float], float] | None = None,
    *,
    reshard_after_forward: bool = True,
    interference: float = 0.0,
    rank: int = 0,
) -> ShardedStep:
    """One step of `layers` (in forward order). A layer's `nbytes` is the size of its weights, and of its gradients, as
    they travel.

    While one layer computes, the next layer's weights are gathered. Backward gathers them again (unless they were kept:
    `reshard_after_forward=False`, ZeRO-2) and reduce-scatters each layer's gradients (`reduce_scatter_s`, by default
    the time of a gather). All collectives share one link, first come, first served. They hide behind layers that
    compute for longer, except for the first gather and the last scatter. During a collective, compute loses the
    fraction `interference` of its speed. Zhao et al., "PyTorch FSDP", arXiv 2304.11277, section 3.3.
    """
    if not layers:
        raise ValueError("a step needs at least one layer")
    fraction(interference=interference)
    scatter_s = reduce_scatter_s or all_gather_s
    spans: list[Span] = []
    link = now = total_link = 0.0

    def send(earliest: float, cost: float, label: str) -> float:
        nonlocal link, total_link
        start = max(earliest, link)
        link = start + cost
        total_link += cost
        if cost:
            spans.append((rank, start, link, "communication", label))
        return link

    def compute(start: float, cost: float, label: str) -> float:
        # Every collective so far was requested by `start`, so the link is busy from then until `link` without a gap.
        busy_s = max(0.0, link - start) if cost else 0.0
        slowed = min(busy_s * interference, cost * interference / (1 - interference) if interference < 1 else busy_s)
        end = start + cost + slowed
        spans.append((rank, start, end, "compute", label))
        return end

    last = len(layers) - 1
    gathered = send(0.0, all_gather_s(layers[0].nbytes), "gather 0")
    for i, layer in enumerate(layers):
        start = max(now, gathered)
        if i < last:
            gathered = send(start, all_gather_s(layers[i + 1].nbytes), f"gather {i + 1}")
        elif reshard_after_forward:
            gathered = send(start, all_gather_s(layer.nbytes), f"gather {i}")
        now = compute(start, layer.forward_s, f"F{i}")
    for i in reversed(range(len(layers))):
        start = max(now, gathered) if reshard_after_forward else now
        if i and reshard_after_forward:
            gathered = send(start, all_gather_s(layers[i - 1].nbytes), f"gather {i - 1}")
        now = compute(start, layers[i].backward_s, f"B{i}")
        send(now, scatter_s(layers[i].nbytes), f"scatter {i}")
    return ShardedStep(
        max(now, link), sum(layer.forward_s + layer.backward_s for layer in layers), total_link, tuple(spans)
    )
