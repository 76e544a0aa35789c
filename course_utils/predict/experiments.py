"""Predict published cases: for each class a function of the case's inputs, which calls the model.

A case is a mapping with `id`, `cls`, `inputs`, `observed`, and usually `unit`, `role`, `note`, `source`. A function's
parameters before the `*` are the inputs, by their names in the case; those with a default may be left out. Constants
that a class needs beyond its inputs are in `constants`; none belongs to a single case.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_type_hints

from . import constants as k
from .collectives import from_bus_bandwidth, ring_factor, two_point_all_reduce
from .data_parallel import ddp_step, equal_layers, fsdp_step
from .loading import copy_s, loader_run
from .memory import pipeline_activation_bytes, recompute_time, transformer_activation_bytes, zero_memory
from .pipeline import pipeline_speedup
from .precision import Bracket, amp_bracket
from .scaling import slowest_of
from .transformer import Transformer, iteration_s, mfu, tensor_parallel_step, training_days
from .validation import count, fraction, not_negative, one_of, positive

# What an input may be, with what checks it.
Positive = Annotated[float, positive]
NotNegative = Annotated[float, not_negative]
Share = Annotated[float, fraction]  # from 0 to 1
Count = Annotated[int, count]  # at least 1
Whole = Annotated[int, partial(count, 0)]  # at least 0
Checkpoints = Annotated[str, partial(one_of, ("except_last", "always", "never"))]
Collective = Annotated[
    str, partial(one_of, ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"))
]


class CaseError(ValueError):
    """A case that can't be predicted, and why."""


def called(function: Callable[..., Any], inputs: Any, **constants: float) -> tuple[Any, tuple[str, ...]]:
    """What a class's function gives for a case's inputs, and the names of those that it doesn't take. Raises ValueError
    for a missing or bad one."""
    if not isinstance(inputs, Mapping):
        raise CaseError(f"inputs must be an object with names and values; got {inputs!r}")
    takes = {p.name: p for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY}
    kinds = get_type_hints(function, include_extras=True)
    given = {}
    for name, parameter in takes.items():
        if name in inputs:
            kinds[name].__metadata__[0](**{name: inputs[name]})
            given[name] = kinds[name].__origin__(inputs[name])
        elif parameter.default is parameter.empty:
            raise CaseError(f"inputs lack {name!r}; they have {', '.join(sorted(inputs)) or 'nothing'}")
    return function(**given, **constants), tuple(sorted(set(map(str, inputs)) - set(takes)))


# Predict the throughput ratios of published pipelines, and fit the two constants that no publication gives.


def _pipe(p: int, m: int, spread: float, cost: float, recompute: str = "none", share: float = 1 / 3) -> float:
    return pipeline_speedup(p, m, spread=spread, micro_batch_cost=cost, recompute=recompute, recompute_share=share)


def pipe_norm(
    p: Count, m: Count, ref_p: Count, ref_m: Count, *, spread: float = k.STAGE_SPREAD.value,
    cost: float = k.MICRO_BATCH_COST.value,
) -> float:  # fmt: skip
    """Throughput of p stages and m micro-batches over that of another pair. Both are simulated, with stages as uneven
    as whole layers make them."""
    return _pipe(p, m, spread, cost) / _pipe(ref_p, ref_m, spread, cost)


def pipe_ckpt(
    p: Count, m: Count, ckpt: Checkpoints = "except_last", recompute: Share = 1 / 3, *,
    spread: float = k.STAGE_SPREAD.value, cost: float = k.MICRO_BATCH_COST.value,
) -> float:  # fmt: skip
    """Throughput of GPipe with recomputation over that of one device with neither."""
    return _pipe(p, m, spread, cost, "none" if ckpt == "never" else ckpt, recompute)


def pipe_vs_single(
    p: Count, m: Count, naive_overhead: NotNegative = 0.0, *, spread: float = k.STAGE_SPREAD.value,
    cost: float = k.MICRO_BATCH_COST.value,
) -> float:  # fmt: skip
    """Speed-up of a pipeline over one device, where moving activations makes the unpipelined split slower by
    `naive_overhead`."""
    return _pipe(p, m, spread, cost) / (1 + naive_overhead)


PIPELINES: Mapping[str, Callable[..., float]] = {f.__name__: f for f in (pipe_norm, pipe_ckpt, pipe_vs_single)}


def pipeline_ratio(case: Any, spread: float, cost: float) -> float:
    """Predict the ratio of a published case whose class is in `PIPELINES`, with these two constants in place of
    STAGE_SPREAD and MICRO_BATCH_COST."""
    one_of(tuple(PIPELINES), cls=case.cls)
    ratio: float = called(PIPELINES[case.cls], case.inputs, spread=spread, cost=cost)[0]
    return ratio


SPREADS, COSTS = (
    (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08),
    (0.0, 0.02, 0.04, 0.06),
)  # what `fit_pipelines` tries


def fit_pipelines(
    cases: Sequence[Any], spreads: Sequence[float] = SPREADS, costs: Sequence[float] = COSTS
) -> tuple[float, float]:
    """Try every pair, and return the (spread, cost) whose `pipeline_ratio` comes closest to the observed ratios: the
    smallest sum of squared logarithms."""
    if not cases:
        raise ValueError("a fit needs at least one case")

    def off(pair: tuple[float, float]) -> float:
        return sum(math.log(pipeline_ratio(case, *pair) / case.observed) ** 2 for case in cases)

    return min(((spread, cost) for spread in spreads for cost in costs), key=off)


ACTIVATION_MODES: Mapping[str, tuple[bool, str]] = {  # sequence parallel, recomputation
    "none": (False, "none"),
    "seq": (True, "none"),
    "sel": (False, "selective"),
    "seqsel": (True, "selective"),
    "full": (False, "full"),
}

# Why the model of a class fails on its counterexamples.
LIMITS: Mapping[str, str] = {
    "allreduce": "the model is a smooth curve between two points; a library that switches algorithms makes steps",
    "busbw_ring": (
        "the collective does not run as a ring: NVLink SHARP (NVLS) adds inside the switch, so fewer bytes cross each"
        " link than the formula counts"
    ),
    **dict.fromkeys(
        ("ddp_overlap", "ddp_efficiency"),
        "something other than compute and the sum of gradients limits the run, such as an input pipeline that all GPUs"
        " share",
    ),
    "copy_pass": "the batches are in pageable memory, so the CPU has to copy each one to a page-locked buffer first",
    "pipe_norm": (
        "cutting a batch into micro-batches can't gain more than p m / (m + p - 1), so the two runs differed in"
        " something else"
    ),
    "pipe_ckpt": "the stages are less even than whole layers alone would make them",
    "fsdp_overlap": "the network is shared, or slower than its interfaces",
    "amp_bound": "the run changed more than its precision, for example the memory layout too",
}


def _wait(n: int, calibrated_on: int = 1) -> float:
    """How many times as long a synchronous step takes on `n` ranks as on `calibrated_on`, just from waiting for the
    slowest rank."""
    return slowest_of(n, k.STEP_VARIATION.value) / slowest_of(calibrated_on, k.STEP_VARIATION.value)


def allreduce(
    n: Count, bytes: NotNegative, alpha_us: NotNegative, cal_bytes: Positive, cal_us: Positive,
    gpus_per_node: Count = int(k.GPUS_PER_NODE.value),
) -> float:  # fmt: skip
    """Microseconds of an NCCL all-reduce, from a tiny and a huge one: `two_point_all_reduce`."""
    seconds = two_point_all_reduce(
        bytes, n=n, alpha_s=alpha_us * 1e-6, cal_bytes=cal_bytes, cal_s=cal_us * 1e-6, per_node=gpus_per_node
    )
    return seconds * 1e6


def busbw_ring(link_GBps: Positive, eff: Share = 0.8, coll: Collective = "all_reduce") -> float:
    """Bus bandwidth in GB/s of a large collective that runs as a ring: the same share of the link for all of them."""
    return link_GBps * eff


def pcie(spec_GBps: Positive, eff: Share = 0.85) -> float:
    """GB/s of a copy from page-locked memory."""
    return 1.0 / copy_s(1.0, spec_GBps, eff)


def loader_des(
    batches: Count, load_s: NotNegative, compute_s: NotNegative, workers: Whole, prefetch: Count = 2,
    startup_s: NotNegative = 0.0,
) -> float:  # fmt: skip
    """Seconds of an epoch that aren't compute, from `loader_run`."""
    run = loader_run(batches, load_s, compute_s, workers=workers, prefetch=prefetch, startup_s=startup_s)
    return run.loading_s


def copy_pass(wait_s: NotNegative, copies: Whole, nbytes: Positive, link_GBps: Positive) -> float:
    """Seconds of a pass over a loader that aren't compute: `wait_s`, plus the `copies` to the device that compute
    doesn't hide."""
    return wait_s + copies * copy_s(nbytes, link_GBps * 1e9)


def ddp_overlap(
    thr1: Positive, batch_per_gpu: Count, n: Count, params: Positive, busbw_GBps: Positive, accum: Count = 1,
    bytes_per_grad: Positive = 4, bwd_frac: Share = 2 / 3,
) -> float:  # fmt: skip
    """Samples per second of all GPUs. Buckets and overlap are simulated, and the slowest rank sets the pace."""
    step = ddp_step(
        equal_layers(batch_per_gpu / thr1, params * bytes_per_grad, backward_fraction=bwd_frac),
        lambda size: from_bus_bandwidth(size, busbw_GBps * 1e9, n),
        accumulate=accum,
        interference=k.INTERFERENCE.value if n > 1 else 0.0,
    )
    return step.images_per_s(batch_per_gpu * accum, n) / _wait(n)


def ddp_efficiency(
    thr1: Positive, batch_per_gpu: Count, n: Count, params: Positive, busbw_GBps: Positive, accum: Count = 1,
    bytes_per_grad: Positive = 4, bwd_frac: Share = 2 / 3,
) -> float:  # fmt: skip
    """Samples per second per GPU, as a fraction of what one GPU does alone."""
    whole = ddp_overlap(thr1, batch_per_gpu, n, params, busbw_GBps, accum, bytes_per_grad, bwd_frac)
    return whole / (n * thr1)


def strong_scaling_accum(
    thr_node: Positive, micro: Count, accum: Count, gpus: Count, params: Positive, busbw_GBps: Positive,
    bytes_per_grad: Positive = 2, gpus_per_node: Count = int(k.GPUS_PER_NODE.value),
) -> float:  # fmt: skip
    """Sequences per second of a fixed global batch on more nodes: each GPU accumulates fewer micro-batches before one
    sum that nothing hides."""
    layers = equal_layers(micro * gpus_per_node / thr_node, params * bytes_per_grad)
    inside = gpus <= gpus_per_node  # the measured rate of one node already includes its sum
    step = ddp_step(
        layers,
        lambda size: 0.0 if inside else from_bus_bandwidth(size, busbw_GBps * 1e9, gpus),
        accumulate=accum,
        overlap=False,
    )
    return micro * accum * gpus / (step.total_s * _wait(gpus, min(gpus, gpus_per_node)))


def goyal_bw(params: Positive, bytes: Positive, window_s: Positive) -> float:
    """Gbit/s that a server needs to sum its gradients in `window_s`: every byte goes out and comes in, twice the size
    in all."""
    return 2 * params * bytes * 8 / window_s / 1e9


def megatron_tp(
    l: Count, h: Count, V: Count, s: Count, b: Count, t: Count, base_tflops: Positive, busbw_GBps: Positive  # noqa: E741
) -> float:  # fmt: skip
    """Milliseconds of an iteration of a GPT split over t GPUs of a node, with recomputation: `tensor_parallel_step`."""
    model = Transformer(layers=l, hidden=h, vocab=V, seq=s)
    step = tensor_parallel_step(model, b, t, flops_per_gpu=base_tflops * 1e12, busbw_Bps=busbw_GBps * 1e9)
    return step.total_s * 1e3


def add_allreduce(
    n: Count, base_ms: Positive, params_per_gpu: Positive, bytes: Positive, busbw_GBps: Positive
) -> float:
    """Milliseconds of an iteration when `n` replicas add one unhidden all-reduce, and wait for the slowest."""
    return base_ms * _wait(n) + from_bus_bandwidth(params_per_gpu * bytes, busbw_GBps * 1e9, n) * 1e3


def gpt_params(l: Count, h: Count, V: Count, s: Count) -> float:  # noqa: E741
    """Billions of parameters of a GPT, to the one decimal that such tables print (1.652 and 1.7 are the same model);
    unrounded below 1."""
    billions = Transformer(layers=l, hidden=h, vocab=V, seq=s).params / 1e9
    return round(billions, 1) if billions >= 1 else billions


def gpt_iter(l: Count, h: Count, V: Count, s: Count, B: Positive, n: Count, tflops: Positive) -> float:  # noqa: E741
    """Seconds of an iteration, recomputation included, at a known rate of each GPU."""
    return iteration_s(Transformer(layers=l, hidden=h, vocab=V, seq=s), B, n, tflops * 1e12)


def train_days(T: Positive, P: Positive, n: Count, tflops: Positive) -> float:
    """Days of training with a recomputed forward."""
    return training_days(T, P, n, tflops * 1e12)


def recompute_ratio(h: Positive, s: Positive) -> float:
    """Time with full recomputation over time with selective recomputation. Published is the ratio to selective
    recomputation with sequence parallelism, which gains a little more."""
    return recompute_time("full", seq=s, hidden=h) / recompute_time("selective", seq=s, hidden=h)


Mode = Annotated[str, partial(one_of, tuple(ACTIVATION_MODES))]


def _activation(s: int, h: int, a: int, t: int, mode: str, batch: int = 1) -> float:
    split, recompute = ACTIVATION_MODES[mode]
    return transformer_activation_bytes(
        batch=batch, seq=s, hidden=h, heads=a, tensor=t, sequence_parallel=split, recompute=recompute
    )


def act_frac(s: Count, h: Count, a: Count, t: Count, mode: Mode) -> float:
    """Activation memory of a layer, in percent of what it needs with tensor parallelism alone."""
    return 100 * _activation(s, h, a, t, mode) / _activation(s, h, a, t, "none")


def act_gib(
    s: Count, h: Count, a: Count, t: Count, mode: Mode, b: Count, L: Count, p: Count = 1, v: Count = 1
) -> float:
    """GiB of activations on the fullest GPU."""
    return pipeline_activation_bytes(_activation(s, h, a, t, mode, b), L, p, v) / 2**30


def zero(P: Positive, N: Count, stage: Whole, K: Positive = k.OPTIMIZER_BYTES.value) -> float:
    """GB (1e9 B) of model states on each GPU."""
    return zero_memory(P, N, stage, optimizer_bytes=K).total / 1e9


def mfu_percent(
    tok_s: Positive, N: Positive, L: Count, d: Count, s: Count, gpus: Count, peak_tflops: Positive
) -> float:
    """Model FLOPs utilisation in percent."""
    return 100 * mfu(tok_s, params=N, layers=L, hidden=d, seq=s, gpus=gpus, peak_flops=peak_tflops * 1e12)


def hfu_percent(mfu: Positive) -> float:
    """Hardware FLOPs utilisation in percent. It counts recomputed work too: 4/3 of MFU when whole layers are
    recomputed."""
    return mfu * 4 / 3


def util(tflops: Positive, peak: Positive) -> float:
    """Achieved over peak, in percent."""
    return 100 * tflops / peak


def fsdp_overlap(
    N: Positive, tokens: Positive, n: Count, tok_s_gpu_8: Positive, nic_GBps: Positive,
    gpus_per_node: Count = int(k.GPUS_PER_NODE.value), layers: Whole = 0,
) -> float:  # fmt: skip
    """Tokens per second per GPU of FSDP on n GPUs: the measured rate on the 8 GPUs of one node, slowed down by what
    `fsdp_step` costs more on n than on 8.

    A ring through many nodes enters each node over all its network interfaces at once, so its bus bandwidth is that of
    one GPU's interface times the GPUs of a node. If the number of layers isn't given, the model gets the usual shape:
    hidden = 128 layers, so N = 12 * 128^2 * layers^3.
    """
    step_s, busbw = tokens / tok_s_gpu_8, nic_GBps * 1e9 * gpus_per_node
    parts = equal_layers(step_s, 2 * N, layers or max(1, round((N / (12 * 128**2)) ** (1 / 3))))

    def cost_s(ranks: int) -> float:
        hop_s = k.HOP_S.value if ranks <= gpus_per_node else k.NETWORK_HOP_S.value
        step = fsdp_step(
            parts,
            lambda size: size * ring_factor("all_gather", ranks) / busbw + (ranks - 1) * hop_s,
            interference=k.INTERFERENCE.value,
        )
        return step.cost_s

    more_s = 0.0 if n <= gpus_per_node else max(0.0, cost_s(n) - cost_s(gpus_per_node))
    return tokens / ((step_s + more_s) * max(1.0, _wait(n, gpus_per_node)))


def amp_bound(tc_ratio: Positive, mem_ratio: Positive = 2.0) -> Bracket:
    """The bracket of a mixed-precision speed-up."""
    return amp_bracket(tc_ratio, mem_ratio)


def times_faster(before_us: Positive, after_us: Positive) -> float:
    """The ratio of two published times."""
    return before_us / after_us


CLASSES: Mapping[str, Callable[..., float | Bracket]] = {
    function.__name__.removesuffix("_percent"): function
    for function in (
        *(allreduce, busbw_ring, pcie, loader_des, copy_pass, ddp_overlap, ddp_efficiency, strong_scaling_accum),
        *(goyal_bw, megatron_tp, add_allreduce, gpt_params, gpt_iter, train_days, pipe_norm, pipe_ckpt, pipe_vs_single),
        *(recompute_ratio, act_frac, act_gib, zero, mfu_percent, hfu_percent, util, fsdp_overlap, amp_bound),
        times_faster,
    )
}


@dataclass(frozen=True)
class Prediction:
    """A case and its prediction. `error` is predicted / observed - 1; for a bracket it's how far outside the observed
    value lies."""

    id: str
    cls: str = ""
    role: str = ""
    unit: str = ""
    predicted: float | None = None
    observed: float | None = None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    cause: str = ""  # for a counterexample: why the model fails on it
    unused: tuple[str, ...] = ()
    problem: str = ""  # why there is no prediction


def predict_case(case: Any, number: int = 0) -> Prediction:
    """Predict one case. Never raises: `problem` says what is wrong with a bad case. `number` names one without an
    id."""
    if not isinstance(case, Mapping):
        wrong = f"a case must be an object with id, cls, inputs and observed; got {case!r}"
        return Prediction(f"case {number}", problem=wrong)
    name, cls = str(case.get("id") or f"case {number}"), str(case.get("cls", ""))
    role, unit, note = (str(case.get(key) or "") for key in ("role", "unit", "note"))

    def failed(problem: str) -> Prediction:
        return Prediction(name, cls, role, unit, note=note, problem=problem)

    if cls not in CLASSES:
        return failed(f"unknown class {cls!r}; the classes are {', '.join(sorted(CLASSES))}")
    observed = case.get("observed")
    try:
        if observed is not None:
            positive(observed=observed)
        answer, unused = called(CLASSES[cls], case.get("inputs"))
    except (ValueError, OverflowError, ZeroDivisionError) as problem:
        return failed(str(problem))
    value = answer.middle if isinstance(answer, Bracket) else answer
    if not math.isfinite(value):
        return failed(f"the prediction is {value}: an input is out of all proportion")
    cause = "; ".join(filter(None, (note, LIMITS.get(cls)))) if role == "counterexample" else ""
    common: dict[str, Any] = {"note": note, "cause": cause, "unused": unused}
    if isinstance(answer, Bracket):
        outside = None if observed is None else answer.outside(observed)
        return Prediction(name, cls, role, unit, value, observed, outside, answer.low, answer.high, **common)
    error = None if observed is None else value / observed - 1
    return Prediction(name, cls, role, unit, value, observed, error, **common)
