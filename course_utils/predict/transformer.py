"""A transformer's parameters and operations, how well hardware is used, how long training takes, and a tensor-parallel
step."""

from __future__ import annotations

from dataclasses import dataclass

from .collectives import from_bus_bandwidth
from .constants import TP_BALANCE, TP_REPEATED_BYTES
from .memory import RECOMPUTE
from .validation import count, one_of, positive


@dataclass(frozen=True)
class Transformer:
    """A GPT: `layers` blocks of width `hidden` with a 4x feed-forward part, `vocab` tokens (tied embedding), sequences
    of `seq`."""

    layers: int
    hidden: int
    vocab: int
    seq: int
    heads: int = 0  # only activation memory needs it; 0 means hidden / 128

    def __post_init__(self) -> None:
        count(layers=self.layers, hidden=self.hidden, vocab=self.vocab, seq=self.seq)
        count(0, heads=self.heads)

    @property
    def params(self) -> float:
        """12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)). Narayanan et al., arXiv 2104.04473, equation 2."""
        return (
            12
            * self.layers
            * self.hidden**2
            * (1 + 13 / (12 * self.hidden) + (self.vocab + self.seq) / (12 * self.layers * self.hidden))
        )

    @property
    def beyond_matrices(self) -> float:
        """FLOPs of a step over those of its layers' weight matrices: 1 + s/(6 h) + V/(16 l h), with a recomputed
        forward."""
        return 1 + self.seq / (6 * self.hidden) + self.vocab / (16 * self.layers * self.hidden)

    def step_flops(self, batch: float, recompute: str = "full") -> float:
        """Floating-point operations of forward and backward for `batch` sequences.

        `full` recomputation: 96 B s l h^2 (1 + s/(6h) + V/(16 l h)), arXiv 2104.04473, equation 3. `none`: 72 B s l h^2
        (1 + s/(6h) + V/(12 l h)). `selective` adds the forward of the attention core, 4 B s^2 h l.
        """
        positive(batch=batch)
        one_of(RECOMPUTE, recompute=recompute)
        matrices = batch * self.seq * self.layers * self.hidden**2
        if recompute == "full":
            return 96 * matrices * self.beyond_matrices
        once = 72 * matrices * (1 + self.seq / (6 * self.hidden) + self.vocab / (12 * self.layers * self.hidden))
        return once + (4 * batch * self.seq**2 * self.hidden * self.layers if recompute == "selective" else 0.0)


def iteration_s(model: Transformer, batch: float, gpus: int, flops_per_gpu: float, recompute: str = "full") -> float:
    """Seconds of a step of `batch` sequences on `gpus` that each reach `flops_per_gpu` (FLOP/s). arXiv 2104.04473,
    equation 3."""
    count(gpus=gpus)
    positive(flops_per_gpu=flops_per_gpu)
    return model.step_flops(batch, recompute) / (gpus * flops_per_gpu)


def training_days(tokens: float, params: float, gpus: int, flops_per_gpu: float, flops_per_token: float = 8) -> float:
    """Days to train on `tokens`: 8 T P / (n X) seconds with a recomputed forward, 6 T P / (n X) without
    (`flops_per_token=6`).

    Narayanan et al., arXiv 2104.04473, equation 4; Kaplan et al., arXiv 2001.08361, for 6.
    """
    positive(tokens=tokens, params=params, flops_per_gpu=flops_per_gpu, flops_per_token=flops_per_token)
    count(gpus=gpus)
    return flops_per_token * tokens * params / (gpus * flops_per_gpu) / 86_400


def mfu(
    tokens_per_s: float, *, params: float, layers: int, hidden: int, seq: int, gpus: int, peak_flops: float
) -> float:
    """Model FLOPs utilisation (0 to 1): (6 N + 12 l h s) tokens/s over the peak of all GPUs; recomputation does not
    count as work.

    PaLM, arXiv 2204.02311, appendix B.
    """
    positive(tokens_per_s=tokens_per_s, params=params, peak_flops=peak_flops)
    count(layers=layers, hidden=hidden, seq=seq, gpus=gpus)
    return (6 * params + 12 * layers * hidden * seq) * tokens_per_s / (gpus * peak_flops)


@dataclass(frozen=True)
class TensorParallelStep:
    """Seconds of a step on each tensor-parallel rank, by part."""

    divided_s: float  # matrix products, 1/t of them
    repeated_s: float  # layer norms, dropouts, residuals: the same on every rank
    communication_s: float  # all-reduces; this model hides none of them

    @property
    def total_s(self) -> float:
        return self.divided_s + self.repeated_s + self.communication_s


def tensor_parallel_step(
    model: Transformer,
    batch: int,
    ranks: int,
    *,
    flops_per_gpu: float,
    busbw_Bps: float,
    recompute: str = "full",
    balance: float = TP_BALANCE.value,
) -> TensorParallelStep:
    """A step of `batch` sequences with every layer split over `ranks` (Megatron-LM without sequence parallelism).

    `flops_per_gpu` is what one GPU reaches on a whole layer; `busbw_Bps` is the bus bandwidth of an all-reduce among
    the ranks. Each layer all-reduces its residual stream (2 bytes a value) twice forward, twice backward, and twice
    more when it is recomputed. What every rank repeats moves 88 bytes a value, at `balance` FLOP/s per byte/s.
    Shoeybi et al., arXiv 1909.08053, section 3.
    """
    count(batch=batch, ranks=ranks)
    positive(flops_per_gpu=flops_per_gpu, busbw_Bps=busbw_Bps, balance=balance)
    alone_s = model.step_flops(batch, recompute) / flops_per_gpu
    repeated = min(1.0, TP_REPEATED_BYTES.value * balance / (96 * model.hidden * model.beyond_matrices))
    reductions = model.layers * (6 if recompute == "full" else 4)
    one_s = from_bus_bandwidth(2 * batch * model.seq * model.hidden, busbw_Bps, ranks)
    return TensorParallelStep(alone_s * (1 - repeated) / ranks, alone_s * repeated, reductions * one_s)
