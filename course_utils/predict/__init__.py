"""The cost model: predict what a run costs from measured or published numbers. Pure functions, no torch.

Times are in seconds, sizes in bytes and rates per second, unless a name says otherwise. Every function cites the source
of its formula. Numbers that aren't arguments are in `constants`. `experiments` predicts published cases.
"""

from ..results.spans import Span
from .choose import Choice, Strategy, Training, choose, strategies
from .cluster import Budget, Cluster, ParallelRun, gpus_for_deadline, parallel_3d
from .collectives import (
    Link,
    SizeSweep,
    all_gather,
    all_reduce,
    broadcast,
    bus_bandwidth,
    from_bus_bandwidth,
    hierarchical_all_reduce,
    reduce_scatter,
    ring_all_reduce,
    ring_chunk,
    ring_factor,
    ring_held,
    tree_all_reduce,
    two_point_all_reduce,
)
from .compiling import BreakEven, crossing
from .data_parallel import (
    DDPStep,
    Layer,
    ShardedStep,
    Traffic,
    buckets,
    data_parallel_memory,
    data_parallel_traffic,
    ddp_step,
    ddp_traffic,
    equal_layers,
    fsdp_step,
)
from .loading import LoaderRun, copy_s, loader_run, workers_needed
from .memory import (
    ModelStates,
    checkpoint_chain,
    pipeline_activation_bytes,
    recompute_time,
    transformer_activation_bytes,
    zero_memory,
    zero_traffic,
)
from .pipeline import PipelineRun, bubble_fraction, pipeline_speedup, simulate_pipeline, spread_stages
from .precision import FORMATS, Bracket, Format, amp_bracket
from .saving import daly_interval, lost_share, lost_to_failures, save_interval
from .scaling import (
    AmdahlFit,
    Bottleneck,
    amdahl,
    bottleneck,
    efficiency,
    fit_amdahl,
    gustafson,
    karp_flatt,
    slowest_of,
    speedup_without,
)
from .transformer import TensorParallelStep, Transformer, iteration_s, mfu, tensor_parallel_step, training_days

__all__ = [
    "FORMATS", "AmdahlFit", "Bottleneck", "Bracket", "BreakEven", "Budget", "Choice", "Cluster", "DDPStep", "Format",
    "Layer", "Link", "LoaderRun", "ModelStates", "ParallelRun", "PipelineRun", "ShardedStep", "SizeSweep", "Span",
    "Strategy", "TensorParallelStep", "Traffic", "Training", "Transformer", "all_gather", "all_reduce", "amdahl",
    "amp_bracket", "bottleneck", "broadcast", "bubble_fraction", "buckets", "bus_bandwidth", "checkpoint_chain",
    "choose", "copy_s", "crossing", "daly_interval", "data_parallel_memory", "data_parallel_traffic", "ddp_step",
    "ddp_traffic", "efficiency", "equal_layers", "fit_amdahl", "from_bus_bandwidth", "fsdp_step", "gpus_for_deadline",
    "gustafson", "hierarchical_all_reduce", "iteration_s", "karp_flatt", "loader_run", "lost_share", "lost_to_failures",
    "mfu", "parallel_3d", "pipeline_activation_bytes", "pipeline_speedup", "recompute_time", "reduce_scatter",
    "ring_all_reduce", "ring_chunk", "ring_factor", "ring_held", "save_interval", "simulate_pipeline", "slowest_of",
    "speedup_without", "spread_stages", "strategies", "tensor_parallel_step", "training_days",
    "transformer_activation_bytes", "tree_all_reduce", "two_point_all_reduce", "workers_needed", "zero_memory",
    "zero_traffic",
]  # fmt: skip
