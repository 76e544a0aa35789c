"""Steps and images until an accuracy, as recorded, and what a step costs on n GPUs, as predicted: what
`explore.time_to_accuracy()` draws."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import cache

from .. import predict
from ..recorded import sweeps
from .recorded_grid import source

BATCHES, RATES, LIMIT = (8, 32, 128, 512), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), 10_000
PERCENTS = (30, 45, 60)
# A step on an A100 with a model like ResNet-50: 2,500 images/s (NVIDIA DeepLearningExamples, ResNet-50 v1.5 with mixed
# precision), some time to start it, and its gradients in fp32 over NVLink (as in `explore.buckets`).
IMAGE_S, START_S, NBYTES, LINK = 0.4e-3, 3e-3, 102e6, predict.Link(3.1e-6, 235e9)


@cache
def reached() -> tuple[Mapping[tuple[int, float, int], float], int, str]:
    """Images until an accuracy for each (batch, rate, percent) that most seeds reached; how many seeds; where."""
    sweep = sweeps("04_time_to_accuracy")[0]
    found: dict[tuple[int, float, int], list[float]] = {}
    for point, (run,) in zip(sweep.points, sweep.runs, strict=True):
        for percent in PERCENTS:
            records = [(r["images"], r["accuracy"]) for r in run.ranks[0].records if "accuracy" in r]
            found.setdefault((point["batch_size"], point["lr"], percent), []).append(crossing(records, percent / 100))
    seeds = len({point["seed"] for point in sweep.points})
    middle = {key: statistics.median_high(images) for key, images in found.items()}
    return {k: n for k, n in middle.items() if n <= LIMIT + 512}, seeds, source(sweep.runs[0][0].provenance)


def crossing(records: list[tuple[int, float]], wanted: float) -> float:
    """The images after which the accuracy was first reached, on a straight line between two tests; infinity if
    never."""
    before = (0.0, 0.0)
    for images, accuracy in records:
        if accuracy >= wanted:
            return before[0] + (images - before[0]) * (wanted - before[1]) / (accuracy - before[1])
        before = (images, accuracy)
    return float("inf")


def best(batch: int, percent: int) -> tuple[float, float] | None:
    """The fewest images that this batch needed, and the learning rate that did it."""
    images = reached()[0]
    return min(((images[batch, r, percent], r) for r in RATES if (batch, r, percent) in images), default=None)


def step_parts(batch: int, gpus: int) -> tuple[float, float]:
    """Predicted seconds of a step: computing, with the batch shared out, and the all-reduce."""
    return START_S + IMAGE_S * -(-batch // gpus), predict.ring_all_reduce(gpus, NBYTES, LINK) if gpus > 1 else 0.0
