"""Choose how to train a model that may not fit: what each strategy needs in memory and time, and which one to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..show.units import readable
from .data_parallel import Layer, ddp_step, fsdp_step
from .memory import ModelStates, checkpoint_chain, zero_memory
from .pipeline import simulate_pipeline
from .validation import count, not_negative, positive

ALIKE = 0.02  # steps closer than this count as equal, and the simpler strategy wins


@dataclass(frozen=True)
class Training:
    """A model of equal layers, and what one rank's batch costs on one device, in seconds and bytes.

    `forward_s` and `backward_s` are for the whole model. `activation_bytes` is what a forward pass keeps for backward,
    and `boundary_bytes` is the output of one layer. `weight_bytes`, `gradient_bytes` and `optimizer_bytes` are per
    parameter: 4, 4, 8 is Adam in single precision.
    """

    params: float
    layers: int
    forward_s: float
    backward_s: float
    activation_bytes: float
    boundary_bytes: float
    weight_bytes: float = 4
    gradient_bytes: float = 4
    optimizer_bytes: float = 8

    def __post_init__(self) -> None:
        count(layers=self.layers)
        positive(params=self.params)
        not_negative(**vars(self))


@dataclass(frozen=True)
class Strategy:
    """One way to train: the bytes it needs on the fullest device, and the seconds of a step."""

    name: str
    states: ModelStates
    gathered_bytes: float  # weights and gradients of other ranks, held for a moment
    activation_bytes: float
    step_s: float

    @property
    def memory_bytes(self) -> float:
        return self.states.total + self.gathered_bytes + self.activation_bytes


@dataclass(frozen=True)
class Choice:
    """The strategy to take, or None if none fits, and why."""

    best: Strategy | None
    reason: str


def strategies(
    training: Training,
    ranks: int,
    all_reduce_s: Callable[[float], float],
    all_gather_s: Callable[[float], float],
    send_s: Callable[[float], float],
    *,
    micro_batches: int = 8,
    interference: float = 0.0,
) -> list[Strategy]:
    """The ways to train on `ranks` devices, simplest first. In each of them a step computes `ranks` batches.

    `ddp_step`, `zero_memory` and `fsdp_step` predict DDP, ZeRO-1 and FSDP. On top of its share, FSDP holds the weights
    of two layers and the gradients of one. "recompute" keeps the activations of about sqrt(layers) layers and computes
    forward twice (`checkpoint_chain`). The pipeline is 1F1B with one stage per device; its first stage holds the
    activations of `ranks` micro-batches, or of all if there are fewer.

    `all_reduce_s`, `all_gather_s` (for the gathered size; reduce-scatter costs the same) and `send_s` (to a neighbour)
    take bytes and return seconds. Not counted: the optimizer's update, and DDP's buckets, a copy of the gradients that
    gradient_as_bucket_view=True saves.
    """
    count(ranks=ranks, micro_batches=micro_batches)
    t, n = training, ranks
    each = [Layer(t.forward_s / t.layers, t.backward_s / t.layers, t.params * t.gradient_bytes / t.layers)] * t.layers
    again = [Layer(x.forward_s, x.backward_s + x.forward_s, x.nbytes) for x in each]
    weights = t.params * t.weight_bytes
    working = (2 * weights + t.params * t.gradient_bytes) / t.layers
    kept = t.activation_bytes * min(1.0, checkpoint_chain(t.layers).held / t.layers)

    def states(stage: int) -> ModelStates:
        return zero_memory(
            *(t.params, n, stage),
            weight_bytes=t.weight_bytes,
            gradient_bytes=t.gradient_bytes,
            optimizer_bytes=t.optimizer_bytes,
        )

    def ddp(layers: Sequence[Layer]) -> float:
        return ddp_step(layers, all_reduce_s, interference=interference).total_s

    def fsdp(layers: Sequence[Layer], reshard: bool) -> float:
        return fsdp_step(layers, all_gather_s, reshard_after_forward=reshard, interference=interference).total_s

    message_s = send_s(t.boundary_bytes * n / micro_batches) if n > 1 else 0.0
    one_s, back_s = ([seconds / micro_batches] * n for seconds in (t.forward_s, t.backward_s))
    pipeline = simulate_pipeline("1f1b", one_s, micro_batches, backward_s=back_s, comm_s=message_s)
    return [
        Strategy("DDP", states(0), 0.0, t.activation_bytes, ddp(each)),
        Strategy("DDP, recompute", states(0), 0.0, kept, ddp(again)),
        Strategy("ZeRO-1", states(1), 0.0, t.activation_bytes, ddp(each) + all_gather_s(weights)),
        Strategy("FSDP, weights kept", states(2), 0.0, t.activation_bytes, fsdp(each, False)),
        Strategy("FSDP", states(3), working, t.activation_bytes, fsdp(each, True)),
        Strategy("FSDP, recompute", states(3), working, kept, fsdp(again, True)),
        Strategy(
            "pipeline", states(3), 0.0, t.activation_bytes * min(n, micro_batches) / micro_batches, pipeline.total_s
        ),
    ]


def choose(options: Sequence[Strategy], memory_bytes: float) -> Choice:
    """Take the fastest strategy that fits in `memory_bytes`. Among steps within 2% of the fastest, take the first.

    Raises ValueError for no options, or for memory that isn't above zero.
    """
    positive(memory_bytes=memory_bytes)
    if not options:
        raise ValueError("choose() needs at least one strategy")
    has = f"a device has {readable('bytes', memory_bytes)}"
    fit = [o for o in options if o.memory_bytes <= memory_bytes]
    if not fit:
        least = min(options, key=lambda o: o.memory_bytes)
        return Choice(
            None,
            f"none fits: even {least.name} needs {readable('bytes', least.memory_bytes)}, and {has}. Try more devices"
            " or a smaller batch",
        )
    fastest = min(o.step_s for o in fit)
    best = next(o for o in fit if o.step_s <= fastest * (1 + ALIKE))
    first = options[0]
    why = [f"{best.name} needs {readable('bytes', best.memory_bytes)} and {has}"]
    if first is not best:
        lack = "doesn't fit" if first not in fit else f"takes {readable('s', first.step_s)}"
        why.append(f"{first.name} {lack} ({readable('bytes', first.memory_bytes)})")
    others = [o for o in fit if o is not best and o is not first]
    if others:
        second = min(others, key=lambda o: o.step_s)
        why.append(f"a step takes {readable('s', best.step_s)}; {second.name} takes {readable('s', second.step_s)}")
    return Choice(best, "; ".join(why))
