"""Predict whole runs on many GPUs: tensor, pipeline and data parallelism together, and the GPU hours of a deadline."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .collectives import Link, hierarchical_all_reduce, ring_all_reduce
from .constants import GPUS_PER_NODE, HOP_S, NETWORK_HOP_S
from .memory import RECOMPUTE, transformer_activation_bytes, zero_memory
from .pipeline import SCHEDULES, simulate_pipeline
from .transformer import Transformer, mfu, tensor_parallel_step
from .validation import count, fraction, not_negative, one_of, positive


@dataclass(frozen=True)
class Cluster:
    """GPUs of one kind. `flops_per_gpu` is what large matrix products reach (FLOP/s). Rates are per GPU and direction
    (B/s)."""

    gpus: int
    peak_flops: float
    flops_per_gpu: float
    memory_bytes: float
    inside_Bps: float  # bus bandwidth of a collective inside a node
    between_Bps: float  # what one GPU's network interface really carries
    per_node: int = int(GPUS_PER_NODE.value)

    def __post_init__(self) -> None:
        count(gpus=self.gpus, per_node=self.per_node)
        positive(**vars(self))


@dataclass(frozen=True)
class ParallelRun:
    """A predicted step of a 3-D parallel run."""

    step_s: float
    pipeline_s: float  # forward and backward of all micro-batches, bubbles and tensor-parallel traffic included
    data_parallel_s: float  # summing the gradients afterwards
    bubble: float  # fraction of the pipeline's time
    tokens_per_s: float
    mfu: float
    states_bytes: float  # weights, gradients and optimizer on the fullest GPU
    activation_bytes: float
    fits: bool
    data: int  # data-parallel replicas
    micro_batches: int

    def days(self, tokens: float) -> float:
        """Days to train on `tokens`."""
        positive(tokens=tokens)
        return tokens / self.tokens_per_s / 86_400


def parallel_3d(
    model: Transformer,
    cluster: Cluster,
    *,
    tensor: int,
    pipeline: int,
    global_batch: int,
    micro_batch: int = 1,
    schedule: str = "1f1b",
    chunks: int = 1,
    recompute: str = "selective",
    zero_stage: int = 1,
) -> ParallelRun:
    """Predict a step of `global_batch` sequences, with the layers split over `tensor` ranks of a node and over
    `pipeline` stages. The other GPUs hold replicas.

    A stage takes a `tensor_parallel_step` of its layers; its memory counts on sequence parallelism. The pipeline is
    simulated, and its last stage also computes the logits. The gradients (2 bytes each) are summed over the replicas
    after the last backward, with nothing to hide behind. Narayanan et al., arXiv 2104.04473, sections 2 and 3. Raises
    ValueError when layers, GPUs or batch don't divide evenly.
    """
    count(tensor=tensor, pipeline=pipeline, global_batch=global_batch, micro_batch=micro_batch, chunks=chunks)
    one_of(RECOMPUTE, recompute=recompute)
    one_of(SCHEDULES, schedule=schedule)
    data, left = divmod(cluster.gpus, tensor * pipeline)
    if left or not data:
        raise ValueError(f"{cluster.gpus} GPUs do not divide evenly into replicas of {tensor} x {pipeline}")
    if tensor > cluster.per_node:
        raise ValueError(f"tensor-parallel ranks share a node, and a node has {cluster.per_node} GPUs; got {tensor}")
    parts = pipeline * chunks
    if model.layers % parts:
        raise ValueError(f"{model.layers} layers do not divide evenly over {parts} parts of a pipeline")
    m, left = divmod(global_batch, data * micro_batch)
    if left or not m:
        raise ValueError(
            f"a batch of {global_batch} does not divide evenly over {data} replicas in micro-batches of {micro_batch}"
        )

    # The layers without the embedding: only the last part of the pipeline computes logits.
    body = Transformer(model.layers, model.hidden, 1, model.seq, model.heads)
    whole = tensor_parallel_step(
        body,
        micro_batch,
        tensor,
        flops_per_gpu=cluster.flops_per_gpu,
        busbw_Bps=cluster.inside_Bps,
        recompute=recompute,
    )
    share = {"none": 1 / 3, "selective": 1 / 3, "full": 1 / 4}[recompute]
    forward_s = whole.total_s * share / parts
    backward_s = whole.total_s * (1 - share) / parts  # including what it recomputes
    logits_s = 2 * micro_batch * model.seq * model.hidden * model.vocab / (tensor * cluster.flops_per_gpu)
    forwards, backwards = [forward_s] * parts, [backward_s] * parts
    forwards[-1] += logits_s
    backwards[-1] += 2 * logits_s
    message = 2 * micro_batch * model.seq * model.hidden / tensor
    hop = Link(NETWORK_HOP_S.value, cluster.between_Bps).send_s(message)
    layer_bytes = transformer_activation_bytes(
        batch=micro_batch,
        seq=model.seq,
        hidden=model.hidden,
        heads=model.heads or max(1, model.hidden // 128),
        tensor=tensor,
        sequence_parallel=tensor > 1,
        recompute=recompute,
    )
    run = simulate_pipeline(
        schedule,
        forwards,
        m,
        backward_s=backwards,
        chunks=chunks,
        comm_s=hop if pipeline > 1 else 0.0,
        activation_bytes=layer_bytes * model.layers / parts,
    )

    params = body.params / (tensor * pipeline) + model.vocab * model.hidden / tensor
    inside = Link(HOP_S.value, cluster.inside_Bps)
    between = Link(NETWORK_HOP_S.value, cluster.between_Bps)
    replicas_in_node = min(data, max(1, cluster.per_node // (tensor * pipeline)))
    if replicas_in_node == data:
        sum_s = ring_all_reduce(data, 2 * params, inside)
    elif data % replicas_in_node == 0:
        sum_s = hierarchical_all_reduce(data // replicas_in_node, replicas_in_node, 2 * params, inside, between)
    else:
        sum_s = ring_all_reduce(data, 2 * params, between)
    states = zero_memory(params, data, zero_stage).total
    step_s = run.total_s + sum_s
    tokens = global_batch * model.seq
    used = mfu(
        tokens / step_s,
        params=model.params,
        layers=model.layers,
        hidden=model.hidden,
        seq=model.seq,
        gpus=cluster.gpus,
        peak_flops=cluster.peak_flops,
    )
    activations = max(run.peak_bytes)
    fits = states + activations <= cluster.memory_bytes
    return ParallelRun(
        step_s, run.total_s, sum_s, run.bubble, tokens / step_s, used, states, activations, fits, data, m
    )


@dataclass(frozen=True)
class Budget:
    """The fewest GPUs that meet a deadline: the hours until they finish, the GPU hours, and their price."""

    gpus: int
    hours: float
    gpu_hours: float
    price: float


def gpus_for_deadline(
    one_gpu_hours: float,
    deadline_hours: float,
    efficiency: Callable[[int], float],
    *,
    queue_hours: Callable[[int], float] | float = 0.0,
    price_per_gpu_hour: float = 0.0,
    most: int = 16_384,
) -> Budget | None:
    """Find the fewest GPUs that finish `one_gpu_hours` of work within `deadline_hours`, including the wait in the
    queue. Returns None when even `most` can't.

    `efficiency(n)` is the speed-up on n GPUs divided by n (0 to 1), from a model or from runs. `queue_hours` is a
    number or a function of n. Only powers of two are tried, since jobs get whole nodes. The work takes
    one_gpu_hours / (n efficiency) after the queue, and the GPU hours are n times that.
    """
    positive(one_gpu_hours=one_gpu_hours, deadline_hours=deadline_hours)
    not_negative(price_per_gpu_hour=price_per_gpu_hour)
    count(most=most)
    for power in range(int(math.log2(most)) + 1):
        n = 2**power
        reached = efficiency(n)
        fraction(efficiency=reached)
        positive(efficiency=reached)
        run_hours = one_gpu_hours / (n * reached)
        waiting = queue_hours(n) if callable(queue_hours) else queue_hours
        not_negative(queue_hours=waiting)
        if waiting + run_hours <= deadline_hours:
            return Budget(n, waiting + run_hours, n * run_hours, n * run_hours * price_per_gpu_hour)
    return None
