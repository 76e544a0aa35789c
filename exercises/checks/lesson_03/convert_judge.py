"""Lesson 03, exercise 5: what shows that a script doesn't share its batches yet, or trains something else."""

from __future__ import annotations

import random
import tempfile
from typing import Any

from ..judging import Answer, differ, gap, require, some
from .cases import BATCH, EPOCHS, SAMPLES

ROUNDING = 1e-9


def judge_convert(answer: Answer) -> list[str]:
    said = {r"grad can be implicitly created only for scalar outputs": "vector"}
    with tempfile.TemporaryDirectory(prefix="course-convert-") as folder:
        given = {"folder": folder, "seed": random.randrange(10**6)}
        (told,) = answer.on_ranks("convert.script", ranks=1, said=said, given=given)
        (twin,) = answer.on_ranks("twins.trainings", ranks=1, given=given)
    _shared(told["seen"])
    _trained(told["weights"], twin)
    _file(told["weights"], twin["file"])
    steps = EPOCHS * -(-SAMPLES // BATCH)
    return [
        f"{steps} steps: every sample went through a replica, {max(told['seen']['replica'])} at most through each",
        "in the end the weights of one device, though the last chunks are uneven",
        "the file loads into the plain model",
    ]


def _shared(seen: dict[str, list[int]]) -> None:
    rows, through, alone = EPOCHS * SAMPLES, sum(seen["replica"]), sum(seen["alone"])
    past = f"{alone} samples through the model itself"
    require(through, "not split", [past])
    require(not seen["alone"], "past the wrapper", [f"{past}, {through} through replicas"])
    got = [f"chunks of {some(seen['replica'], 4)} samples"]
    require(max(seen["replica"]) <= -(-BATCH // 4), "one place", got, batch=BATCH, chunk=BATCH // 4)
    require(through == rows, "samples", [f"{through} samples"], epochs=EPOCHS, samples=SAMPLES, rows=rows)


def _trained(weights: dict[str, list[float]], twin: dict[str, Any]) -> None:
    away = _gap(weights, twin["right"])
    if away < ROUNDING:
        return
    for mistake in ("sum of means", "mean of means"):
        if _gap(weights, twin[mistake]) < ROUNDING:
            differ(mistake)
    differ("wrong", [f"off by {away:.1g}"])


def _file(weights: dict[str, list[float]], file: dict[str, list[float]] | None) -> None:
    if file is None:
        differ("no file")
    require(list(file) == list(weights), "keys", [some(list(file), 3)], names=some(list(weights), 3))
    require(_gap(weights, file) == 0, "other weights")


def _gap(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    return max(gap(one[name], other[name]) for name in one)
