"""What training holds in memory, and what it costs to hold less: recomputed activations, and model states divided by
ZeRO or FSDP."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .constants import OPTIMIZER_BYTES
from .validation import count, not_negative, one_of, positive

RECOMPUTE = ("none", "selective", "full")


def transformer_activation_bytes(
    *,
    batch: int,
    seq: int,
    hidden: int,
    heads: int,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Bytes that one transformer layer keeps for backward, on one rank, in 16-bit precision, for a micro-batch of
    `batch` sequences.

    s b h times: 10 + 24/t + 5 a s/(h t) with `tensor` = t ranks, or (34 + 5 a s/h)/t if the sequence is split too.
    `selective` recomputes attention and drops the term with a. `full` recomputes the whole layer and keeps only its
    input, on every rank: 2. Korthikanti et al., "Reducing activation recomputation", arXiv 2205.05198, table 2.
    """
    count(batch=batch, seq=seq, hidden=hidden, heads=heads, tensor=tensor)
    one_of(RECOMPUTE, recompute=recompute)
    attention = 0.0 if recompute == "selective" else 5 * heads * seq / (hidden * tensor)
    if recompute == "full":
        each = 2.0
    elif sequence_parallel:
        each = 34 / tensor + attention
    else:
        each = 10 + 24 / tensor + attention
    return seq * batch * hidden * each


def pipeline_activation_bytes(layer_bytes: float, layers: int, stages: int = 1, chunks: int = 1) -> float:
    """Bytes on the first stage of a 1F1B pipeline of `layers`. It holds the most: as many micro-batches as there are
    stages.

    layers * layer_bytes for any number of `stages`, times 1 + (p-1)/(p v) with v > 1 interleaved `chunks`. arXiv
    2205.05198, section 4.2.3.
    """
    not_negative(layer_bytes=layer_bytes)
    count(layers=layers, stages=stages, chunks=chunks)
    return layer_bytes * layers * (1 + (stages - 1) / (stages * chunks) if chunks > 1 else 1)


def recompute_time(recompute: str, *, seq: float, hidden: float) -> float:
    """How many times as long a step of transformer layers takes when activations are recomputed: 1 for `none`, 4/3 for
    `full`.

    Backward costs two forwards, so a step costs 3, and `full` makes it 4. `selective` repeats only the attention
    core (the products with s x s matrices), s/(6h + s) of a forward. arXiv 2205.05198, section 5; FLOPs as in arXiv
    2104.04473, appendix.
    """
    one_of(RECOMPUTE, recompute=recompute)
    positive(seq=seq, hidden=hidden)
    extra = {"none": 0.0, "selective": seq / (6 * hidden + seq), "full": 1.0}[recompute]
    return (3 + extra) / 3


@dataclass(frozen=True)
class Checkpointing:
    """Activation checkpointing of a chain of equal layers. `held` is the peak, counted in activations of one layer, and
    `time` is how many times as long a step takes."""

    segments: int
    held: float
    time: float


def checkpoint_chain(layers: int, segments: int | None = None, *, input_share: float = 1.0) -> Checkpointing:
    """Keep only the input of each of `segments` equal parts of a chain of `layers`, and recompute a part when backward
    needs it.

    Holds segments + layers/segments activations instead of `layers`. The default, about sqrt(layers) segments, holds
    the least. It costs one more forward: 4/3 of the time. Chen et al., "Training deep nets with sublinear memory cost",
    arXiv 1604.06174. In the paper a layer keeps one activation, as large as its input. For layers that keep more,
    `input_share` is the input's share of it, and segments * input_share + layers/segments are held.
    """
    count(layers=layers)
    positive(input_share=input_share)
    if segments is None:
        segments = max(1, round(math.sqrt(layers)))
    count(segments=segments)
    if segments > layers:
        raise ValueError(f"{layers} layers divide into at most {layers} segments; got {segments}")
    return Checkpointing(segments, segments * input_share + math.ceil(layers / segments), 4 / 3)


@dataclass(frozen=True)
class ModelStates:
    """Bytes a rank holds before any activation."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def zero_memory(
    params: float,
    ranks: int,
    stage: int,
    *,
    weight_bytes: float = 2,
    gradient_bytes: float = 2,
    optimizer_bytes: float = OPTIMIZER_BYTES.value,
) -> ModelStates:
    """Bytes of model states on each of `ranks`. ZeRO `stage` 0 is DDP; 1 divides the optimizer state, 2 the gradients
    too, and 3 (FSDP) the weights too.

    The arguments in bytes are per parameter: 2 + 2 + 12 for Adam in mixed precision. ZeRO, arXiv 1910.02054, section
    3.1 and figure 1.
    """
    positive(params=params)
    count(ranks=ranks)
    _stage(stage)
    not_negative(weight_bytes=weight_bytes, gradient_bytes=gradient_bytes, optimizer_bytes=optimizer_bytes)
    share = params / ranks
    return ModelStates(
        weight_bytes * (share if stage >= 3 else params),
        gradient_bytes * (share if stage >= 2 else params),
        optimizer_bytes * (share if stage >= 1 else params),
    )


def zero_traffic(params: float, ranks: int, stage: int, *, nbytes: float = 2) -> float:
    """Bytes that each rank sends in a step, `nbytes` for each parameter: 2 P (n-1)/n for stages 0 to 2, and 3 P (n-1)/n
    for stage 3.

    Stages 0 to 2 reduce-scatter gradients and gather gradients (0) or weights (1, 2); stage 3 gathers weights for
    forward and again for backward. ZeRO, arXiv 1910.02054, section 7.
    """
    positive(params=params, nbytes=nbytes)
    count(ranks=ranks)
    _stage(stage)
    return (3 if stage == 3 else 2) * params * nbytes * (ranks - 1) / ranks


def _stage(stage: int) -> None:
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ValueError(f"stage must be 0, 1, 2 or 3; got {stage!r}")
