"""Predict published cases: for each class a function that reads the inputs and calls the model.

A case is a mapping with `id`, `cls`, `inputs`, `observed`, and usually `unit`, `role`, `note` and `source`. Constants
that a class needs beyond its inputs are in `constants`; none belongs to a single case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import constants as k
from .collectives import from_bus_bandwidth, ring_factor, two_point_all_reduce
from .data_parallel import DDPStep, ddp_step, equal_layers, fsdp_step
from .loading import copy_s, loader_run
from .memory import pipeline_activation_bytes, recompute_time, transformer_activation_bytes, zero_memory
from .pipeline import pipeline_speedup
from .precision import Bracket, amp_bracket
from .scaling import slowest_of
from .transformer import Transformer, iteration_s, mfu, tensor_parallel_step, training_days
from .validation import count, fraction, one_of, positive

# Read the inputs of a published case by name. Each read checks the value, and inputs that nobody read are reported.


class CaseError(ValueError):
    """A case that can't be predicted, and why."""


class Inputs:
    """The inputs of one case. Every method raises ValueError for a missing or bad value."""

    def __init__(self, raw: Any):
        if not isinstance(raw, Mapping):
            raise CaseError(f"inputs must be an object with names and values; got {raw!r}")
        self.raw = raw
        self.read: set[str] = set()

    def _get(self, name: str, default: Any) -> Any:
        self.read.add(name)
        if name not in self.raw and default is None:
            raise CaseError(f"inputs lack {name!r}; they have {', '.join(sorted(self.raw)) or 'nothing'}")
        return self.raw.get(name, default)

    def number(self, name: str, default: float | None = None, zero: bool = False) -> float:
        """A finite number above zero. With `zero`, zero is allowed too."""
        value = self._get(name, default)
        if not (zero and value == 0 and not isinstance(value, bool)):
            positive(**{name: value})
        return float(value)

    def whole(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number, at least `minimum`."""
        value = self._get(name, default)
        count(minimum, **{name: value})
        return int(value)

    def share(self, name: str, default: float | None = None) -> float:
        """A number from 0 to 1."""
        value = self._get(name, default)
        fraction(**{name: value})
        return float(value)

    def word(self, name: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of `choices`."""
        value = self._get(name, default)
        one_of(choices, **{name: value})
        return str(value)

    @property
    def unused(self) -> list[str]:
        return sorted(set(map(str, self.raw)) - self.read)


# Predict the throughput ratios of published pipelines, and fit the two constants that no publication gives.


def _pipe(p: int, m: int, spread: float, cost: float, recompute: str = "none", share: float = 1 / 3) -> float:
    return pipeline_speedup(p, m, spread=spread, micro_batch_cost=cost, recompute=recompute, recompute_share=share)


def pipe_norm(i: Inputs, spread: float = k.STAGE_SPREAD.value, cost: float = k.MICRO_BATCH_COST.value) -> float:
    """Throughput of p stages and m micro-batches over that of another pair. Both are simulated, with stages as uneven
    as whole layers make them."""
    return _pipe(i.whole("p"), i.whole("m"), spread, cost) / _pipe(i.whole("ref_p"), i.whole("ref_m"), spread, cost)


def pipe_ckpt(i: Inputs, spread: float = k.STAGE_SPREAD.value, cost: float = k.MICRO_BATCH_COST.value) -> float:
    """Throughput of GPipe with recomputation over that of one device with neither."""
    mode = i.word("ckpt", ("except_last", "always", "never"), "except_last")
    return _pipe(
        i.whole("p"), i.whole("m"), spread, cost, "none" if mode == "never" else mode, i.share("recompute", 1 / 3)
    )


def pipe_vs_single(i: Inputs, spread: float = k.STAGE_SPREAD.value, cost: float = k.MICRO_BATCH_COST.value) -> float:
    """Speed-up of a pipeline over one device, where moving activations makes the unpipelined split slower by
    `naive_overhead`."""
    return _pipe(i.whole("p"), i.whole("m"), spread, cost) / (1 + i.number("naive_overhead", 0.0, zero=True))


PIPELINES: Mapping[str, Callable[[Inputs, float, float], float]] = {
    f.__name__: f for f in (pipe_norm, pipe_ckpt, pipe_vs_single)
}


def pipeline_ratio(case: Any, spread: float, cost: float) -> float:
    """Predict the ratio of a published case whose class is in `PIPELINES`, with these two constants in place of
    STAGE_SPREAD and MICRO_BATCH_COST."""
    one_of(tuple(PIPELINES), cls=case.cls)
    return PIPELINES[case.cls](Inputs(case.inputs), spread, cost)


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


def allreduce(i: Inputs) -> float:
    """Microseconds of an NCCL all-reduce, from a tiny and a huge one: `two_point_all_reduce`."""
    seconds = two_point_all_reduce(
        i.number("bytes", zero=True),
        n=i.whole("n"),
        alpha_s=i.number("alpha_us", zero=True) * 1e-6,
        cal_bytes=i.number("cal_bytes"),
        cal_s=i.number("cal_us") * 1e-6,
        per_node=i.whole("gpus_per_node", int(k.GPUS_PER_NODE.value)),
    )
    return seconds * 1e6


def busbw_ring(i: Inputs) -> float:
    """Bus bandwidth in GB/s of a large collective that runs as a ring: the same share of the link for all of them."""
    i.word("coll", ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"), "all_reduce")
    return i.number("link_GBps") * i.share("eff", 0.8)


def pcie(i: Inputs) -> float:
    """GB/s of a copy from page-locked memory."""
    return 1.0 / copy_s(1.0, i.number("spec_GBps"), i.share("eff", 0.85))


def loader_des(i: Inputs) -> float:
    """Seconds of an epoch that aren't compute, from `loader_run`."""
    run = loader_run(
        i.whole("batches"),
        i.number("load_s", zero=True),
        i.number("compute_s", zero=True),
        workers=i.whole("workers", minimum=0),
        prefetch=i.whole("prefetch", 2),
        startup_s=i.number("startup_s", 0.0, zero=True),
    )
    return run.loading_s


def copy_pass(i: Inputs) -> float:
    """Seconds of a pass over a loader that aren't compute: `wait_s`, plus the `copies` to the device that compute
    doesn't hide."""
    return i.number("wait_s", zero=True) + i.whole("copies", minimum=0) * copy_s(
        i.number("nbytes"), i.number("link_GBps") * 1e9
    )


def _ddp(i: Inputs) -> tuple[DDPStep, int, float, int]:
    """Predict a DDP step of equal layers. Returns the step, its ranks, one rank's rate, and the samples per rank."""
    rate, batch, n, accumulate = i.number("thr1"), i.whole("batch_per_gpu"), i.whole("n"), i.whole("accum", 1)
    nbytes, busbw = i.number("params") * i.number("bytes_per_grad", 4), i.number("busbw_GBps") * 1e9
    layers = equal_layers(batch / rate, nbytes, backward_fraction=i.share("bwd_frac", 2 / 3))
    step = ddp_step(
        layers,
        lambda size: from_bus_bandwidth(size, busbw, n),
        accumulate=accumulate,
        interference=k.INTERFERENCE.value if n > 1 else 0.0,
    )
    return step, n, rate, batch * accumulate


def ddp_overlap(i: Inputs) -> float:
    """Samples per second of all GPUs. Buckets and overlap are simulated, and the slowest rank sets the pace."""
    step, n, _, samples = _ddp(i)
    return step.images_per_s(samples, n) / _wait(n)


def ddp_efficiency(i: Inputs) -> float:
    """Samples per second per GPU, as a fraction of what one GPU does alone."""
    step, n, rate, samples = _ddp(i)
    return samples / (step.total_s * _wait(n)) / rate


def strong_scaling_accum(i: Inputs) -> float:
    """Sequences per second of a fixed global batch on more nodes: each GPU accumulates fewer micro-batches before one
    sum that nothing hides."""
    per_node = i.whole("gpus_per_node", int(k.GPUS_PER_NODE.value))
    node_rate, micro, accumulate, gpus = i.number("thr_node"), i.whole("micro"), i.whole("accum"), i.whole("gpus")
    layers = equal_layers(micro * per_node / node_rate, i.number("params") * i.number("bytes_per_grad", 2))
    busbw = i.number("busbw_GBps") * 1e9
    inside = gpus <= per_node  # the measured rate of one node already includes its sum
    step = ddp_step(
        layers,
        lambda size: 0.0 if inside else from_bus_bandwidth(size, busbw, gpus),
        accumulate=accumulate,
        overlap=False,
    )
    return micro * accumulate * gpus / (step.total_s * _wait(gpus, min(gpus, per_node)))


def goyal_bw(i: Inputs) -> float:
    """Gbit/s that a server needs to sum its gradients in `window_s`: every byte goes out and comes in, twice the size
    in all."""
    return 2 * i.number("params") * i.number("bytes") * 8 / i.number("window_s") / 1e9


def megatron_tp(i: Inputs) -> float:
    """Milliseconds of an iteration of a GPT split over t GPUs of a node, with recomputation: `tensor_parallel_step`."""
    model = Transformer(layers=i.whole("l"), hidden=i.whole("h"), vocab=i.whole("V"), seq=i.whole("s"))
    step = tensor_parallel_step(
        model,
        i.whole("b"),
        i.whole("t"),
        flops_per_gpu=i.number("base_tflops") * 1e12,
        busbw_Bps=i.number("busbw_GBps") * 1e9,
    )
    return step.total_s * 1e3


def add_allreduce(i: Inputs) -> float:
    """Milliseconds of an iteration when `n` replicas add one unhidden all-reduce, and wait for the slowest."""
    n = i.whole("n")
    sum_s = from_bus_bandwidth(i.number("params_per_gpu") * i.number("bytes"), i.number("busbw_GBps") * 1e9, n)
    return i.number("base_ms") * _wait(n) + sum_s * 1e3


def gpt_params(i: Inputs) -> float:
    """Billions of parameters of a GPT, to the one decimal that such tables print (1.652 and 1.7 are the same model);
    unrounded below 1."""
    billions = Transformer(layers=i.whole("l"), hidden=i.whole("h"), vocab=i.whole("V"), seq=i.whole("s")).params / 1e9
    return round(billions, 1) if billions >= 1 else billions


def gpt_iter(i: Inputs) -> float:
    """Seconds of an iteration, recomputation included, at a known rate of each GPU."""
    model = Transformer(layers=i.whole("l"), hidden=i.whole("h"), vocab=i.whole("V"), seq=i.whole("s"))
    return iteration_s(model, i.number("B"), i.whole("n"), i.number("tflops") * 1e12)


def train_days(i: Inputs) -> float:
    """Days of training with a recomputed forward."""
    return training_days(i.number("T"), i.number("P"), i.whole("n"), i.number("tflops") * 1e12)


def recompute_ratio(i: Inputs) -> float:
    """Time with full recomputation over time with selective recomputation. Published is the ratio to selective
    recomputation with sequence parallelism, which gains a little more."""
    hidden, seq = i.number("h"), i.number("s")
    return recompute_time("full", seq=seq, hidden=hidden) / recompute_time("selective", seq=seq, hidden=hidden)


def _activation(i: Inputs, mode: str, batch: int = 1) -> float:
    split, recompute = ACTIVATION_MODES[mode]
    return transformer_activation_bytes(
        batch=batch,
        seq=i.whole("s"),
        hidden=i.whole("h"),
        heads=i.whole("a"),
        tensor=i.whole("t"),
        sequence_parallel=split,
        recompute=recompute,
    )


def act_frac(i: Inputs) -> float:
    """Activation memory of a layer, in percent of what it needs with tensor parallelism alone."""
    return 100 * _activation(i, i.word("mode", tuple(ACTIVATION_MODES))) / _activation(i, "none")


def act_gib(i: Inputs) -> float:
    """GiB of activations on the fullest GPU."""
    layer = _activation(i, i.word("mode", tuple(ACTIVATION_MODES)), i.whole("b"))
    return pipeline_activation_bytes(layer, i.whole("L"), i.whole("p", 1), i.whole("v", 1)) / 2**30


def zero(i: Inputs) -> float:
    """GB (1e9 B) of model states on each GPU."""
    optimizer_bytes = i.number("K", k.OPTIMIZER_BYTES.value)
    states = zero_memory(i.number("P"), i.whole("N"), i.whole("stage", minimum=0), optimizer_bytes=optimizer_bytes)
    return states.total / 1e9


def mfu_percent(i: Inputs) -> float:
    """Model FLOPs utilisation in percent."""
    used = mfu(
        i.number("tok_s"),
        params=i.number("N"),
        layers=i.whole("L"),
        hidden=i.whole("d"),
        seq=i.whole("s"),
        gpus=i.whole("gpus"),
        peak_flops=i.number("peak_tflops") * 1e12,
    )
    return 100 * used


def hfu_percent(i: Inputs) -> float:
    """Hardware FLOPs utilisation in percent. It counts recomputed work too: 4/3 of MFU when whole layers are
    recomputed."""
    return i.number("mfu") * 4 / 3


def util(i: Inputs) -> float:
    """Achieved over peak, in percent."""
    return 100 * i.number("tflops") / i.number("peak")


def fsdp_overlap(i: Inputs) -> float:
    """Tokens per second per GPU of FSDP on n GPUs: the measured rate on the 8 GPUs of one node, slowed down by what
    `fsdp_step` costs more on n than on 8.

    A ring through many nodes enters each node over all its network interfaces at once, so its bus bandwidth is that of
    one GPU's interface times the GPUs of a node. If the number of layers isn't given, the model gets the usual shape:
    hidden = 128 layers, so N = 12 * 128^2 * layers^3.
    """
    params, tokens, n, alone = i.number("N"), i.number("tokens"), i.whole("n"), i.number("tok_s_gpu_8")
    per_node = i.whole("gpus_per_node", int(k.GPUS_PER_NODE.value))
    busbw = i.number("nic_GBps") * 1e9 * per_node
    layers = equal_layers(
        tokens / alone, 2 * params, i.whole("layers", max(1, round((params / (12 * 128**2)) ** (1 / 3))))
    )

    def cost_s(ranks: int) -> float:
        hop_s = k.HOP_S.value if ranks <= per_node else k.NETWORK_HOP_S.value
        step = fsdp_step(
            layers,
            lambda size: size * ring_factor("all_gather", ranks) / busbw + (ranks - 1) * hop_s,
            interference=k.INTERFERENCE.value,
        )
        return step.cost_s

    more_s = 0.0 if n <= per_node else max(0.0, cost_s(n) - cost_s(per_node))
    return tokens / ((tokens / alone + more_s) * max(1.0, _wait(n, per_node)))


def amp_bound(i: Inputs) -> Bracket:
    """The bracket of a mixed-precision speed-up."""
    return amp_bracket(i.number("tc_ratio"), i.number("mem_ratio", 2.0))


def times_faster(i: Inputs) -> float:
    """The ratio of two published times."""
    return i.number("before_us") / i.number("after_us")


CLASSES: Mapping[str, Callable[[Inputs], float | Bracket]] = {
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
        inputs = Inputs(case.get("inputs"))
        answer = CLASSES[cls](inputs)
    except (ValueError, OverflowError, ZeroDivisionError) as problem:
        return failed(str(problem))
    value = answer.middle if isinstance(answer, Bracket) else answer
    if not math.isfinite(value):
        return failed(f"the prediction is {value}: an input is out of all proportion")
    cause = "; ".join(filter(None, (note, LIMITS.get(cls)))) if role == "counterexample" else ""
    common: dict[str, Any] = {"note": note, "cause": cause, "unused": tuple(inputs.unused)}
    if isinstance(answer, Bracket):
        outside = None if observed is None else answer.outside(observed)
        return Prediction(name, cls, role, unit, value, observed, outside, answer.low, answer.high, **common)
    error = None if observed is None else value / observed - 1
    return Prediction(name, cls, role, unit, value, observed, error, **common)
