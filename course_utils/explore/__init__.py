"""Figures that you can move: each answers from the cost model at once, and some then run what you chose for real.

    explore.bits()      what a format makes of a number, bit by bit
    explore.buckets()   when DDP's gradients travel: bucket size, link, layers
    explore.checkpoints()  how often to save: time lost to saves, failures and restarts
    explore.deadlock()  two ranks and their calls: who waits for whom, and does it end
    explore.fsdp()      what each rank holds, moment by moment: gather, compute, drop, scatter
    explore.links()     what passes through each GPU in a step: DataParallel and DDP
    explore.loader()    who waits for whom: workers, loading, step
    explore.loss_scale() what a loss scale does to recorded gradients
    explore.memory()    what each GPU holds, and whether it fits: parameters, GPUs, ZeRO stage
    explore.nodes()     what more machines bring: nodes, the link between them, gradients, computing
    explore.recompute()  keep activations or recompute them: timeline and memory
    explore.ring()      an all-reduce step by step: ranks, who holds which part of the sum, bytes sent
    explore.samples()   who sees which image: the rule of DistributedSampler
    explore.scaling()   what more GPUs bring: serial share, talking, GPUs; scaling(money=True): queue, price, deadline
    explore.schedules() who computes when in a pipeline: schedule, micro-batches, a slow stage, activations
    explore.staleness()  trainers that don't wait against learning rate: what old gradients do
    explore.time_to_accuracy()  batch against learning rate: steps and images until an accuracy

Any setting can be given in code too, as in `explore.memory(stage=3)`; `print` shows it in words. A function is imported
when you first ask for it.
"""

from __future__ import annotations

from ..show.on_demand import on_demand

_HOME = {  # function: its module
    "bits": "number_bits",
    "buckets": "gradient_buckets",
    "checkpoints": "save_interval",
    "deadlock": "deadlock_steps",
    "fsdp": "fsdp_frames",
    "links": "link_traffic",
    "loader": "loader_workers",
    "loss_scale": "gradient_scale",
    "memory": "gpu_memory",
    "nodes": "several_nodes",
    "recompute": "segment_memory",
    "ring": "ring_frames",
    "samples": "sampler_rule",
    "scaling": "scaling_laws",
    "schedules": "pipeline_schedules",
    "staleness": "trainer_ages",
    "time_to_accuracy": "accuracy_time",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = on_demand(__name__, _HOME, "explorer")
