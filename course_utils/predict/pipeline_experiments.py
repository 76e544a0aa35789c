"""Predict the throughput ratios of published pipelines, and fit the two constants that no publication gives.

STAGE_SPREAD and MICRO_BATCH_COST were fitted on the tables of GPipe and torchgpipe, so with them the model fits those
tables and doesn't predict them. A test holds rows out: it fits on some publications with `fit_pipelines` and predicts
the others with `pipeline_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import constants as k
from .experiment_inputs import Inputs
from .pipeline import pipeline_speedup
from .validation import one_of


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
