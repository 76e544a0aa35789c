"""The constants of the cost model. Each belongs to a kind of machine or to a class of cases, and has a source.

None is tuned to a single published row. If a constant was fitted, its `source` says on what.
"""

from __future__ import annotations

from typing import NamedTuple


class Constant(NamedTuple):
    """A constant: its value, its unit, what it belongs to, and where it comes from."""

    value: float
    unit: str
    belongs_to: str
    source: str


HOP_S = Constant(
    1.0e-6,
    "s",
    "one hop of a ring inside a machine (NVLink, NVSwitch)",
    "NCCL's tuning table gives 0.47 (LL), 1.9 (LL128) and 3.4 µs (Simple) a hop on NVLink; 1.0 fits the sweeps of 8"
    " A100, H100, H200 and B200 in stas00/ml-engineering network/README.md and aws-samples/awsome-distributed-training"
    " micro-benchmarks/nccl-tests",
)
NETWORK_HOP_S = Constant(
    3.35e-6,
    "s",
    "one hop of a ring between machines",
    "the middle of 2.7 (LL) and 4.0 µs (LL128), a hop on a network in NCCL's tuning table, NVIDIA/nccl"
    " src/graph/tuning.cc",
)
GPUS_PER_NODE = Constant(
    8, "GPUs", "a machine, unless the case says otherwise", "DGX-1 to DGX B200, HGX, AWS p3 to p6: 8 GPUs"
)
CHUNK_LIMIT = Constant(
    50,
    "",
    "a collective: time on the wire, in units of the fill latency, at which NCCL's chunks stop growing",
    "NCCL's chunks end at its 4 MiB buffers; 50 fits the six sweeps named at HOP_S",
)
BUCKET_BYTES = Constant(
    25 * 2**20,
    "B",
    "DistributedDataParallel without bucket_cap_mb",
    "_DEFAULT_BUCKET_CAP_MB of torch.nn.parallel.distributed",
)
FIRST_BUCKET_BYTES = Constant(
    2**20,
    "B",
    "DistributedDataParallel without bucket_cap_mb: its first bucket",
    "dist._DEFAULT_FIRST_BUCKET_BYTES of torch: gradients should start to travel early",
)
OPTIMIZER_BYTES = Constant(
    12, "B", "Adam in mixed precision: fp32 weights, momentum, variance", "ZeRO, arXiv 1910.02054, section 3.1 (K = 12)"
)
STEP_VARIATION = Constant(
    0.007,
    "",
    "synchronous training on GPUs: standard deviation of a rank's step over its mean",
    "what 8 to 128 GPUs lose where almost nothing is sent: BERT with 32 and 64 accumulated micro-batches"
    " (NVIDIA/DeepLearningExamples) loses 1.1%, Megatron-LM with 128 replicas 1.7% beyond its all-reduce",
)
INTERFERENCE = Constant(
    0.25,
    "",
    "compute during a collective on the same GPU: its delay, as a share of the hidden time",
    "horovod docs/benchmarks.rst, Inception V3, ResNet-101 (90% each) and VGG-16 (68%) on 512 P100",
)
STAGE_SPREAD = Constant(
    0.03,
    "",
    "pipelines cut from whole layers: the slowest stage is 1 + spread * (p - 1) times the average one",
    "fitted on kakaobrain/torchgpipe docs/benchmarks.rst, ResNet-101 and AmoebaNet-D with 2 to 8 stages; GPipe, arXiv"
    " 1811.06965, tables 2 and 3",
)
MICRO_BATCH_COST = Constant(
    0.04,
    "",
    "splitting a batch: m micro-batches take 1 + cost * (1 - 1/m) times as long as one",
    "fitted on GPipe, arXiv 1811.06965, table 2 (Transformer, evenly cut, 2 to 8 stages, m = 32); torchgpipe's"
    " ResNet-101 on one stage",
)
TP_BALANCE = Constant(
    65.0,
    "FLOP/B",
    "tensor parallel ranks: achieved FLOP/s over achieved memory rate, for the parts that each rank repeats",
    "fitted on Megatron-LM with 2B and 8B parameters on A100 (NVIDIA/Megatron-LM images/cases.png); 150 TFLOP/s over"
    " 2.0 TB/s would be 75",
)
TP_REPEATED_BYTES = Constant(
    88.0,
    "B",
    "one transformer layer, for each value of the residual stream",
    "2 layer norms and 2 dropouts with residual in fp16 read and write 22 B; forward, recomputed forward, and twice"
    " that in backward: 4 * 22. Megatron-LM, arXiv 1909.08053, section 3, repeats them on every rank",
)
