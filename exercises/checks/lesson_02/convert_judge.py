"""Lesson 02, exercise 1: what shows that a loop still starves."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..judging import Answer, require, samples, some
from .cases import FED_BATCH, FED_CASES, FED_EPOCHS, FED_SAMPLES

STEPS = -(-FED_SAMPLES // FED_BATCH)  # in an epoch


def judge_convert(answer: Answer) -> list[str]:
    (told,) = answer.on_ranks("convert.fed", ranks=1)
    for (cores, kind), found in zip(FED_CASES, told["cases"], strict=True):
        where = f"{cores} cores, {'no GPU' if kind == 'cpu' else 'a GPU' if kind == 'cuda' else f'a GPU, {kind}'}"
        epochs = _epochs(found["steps"], where)
        _fed(epochs, max(1, cores - 1), told["loop"], where)
        _copied(found, kind, where)
    return [
        f"{len(FED_CASES)} machines: each of {samples(FED_SAMPLES)} once in each epoch, in a new order, in batches of"
        f" {FED_BATCH}",
        "as many workers as there are cores to spare; they stay from epoch to epoch, and load while the loop computes",
        "pinned memory and copies that don't wait where there's a GPU, and nothing of it where there's none",
    ]


Epoch = list[dict[str, Any]]


def _epochs(steps: Epoch, where: str) -> list[Epoch]:
    """The steps of each epoch, which together hold every sample once."""
    size: dict[str, Any] = {"n": FED_SAMPLES, "batch": FED_BATCH, "where": where}
    ok = len(steps) == STEPS * FED_EPOCHS
    require(ok, "steps", how="count", called=len(steps), epochs=FED_EPOCHS, each=STEPS, **size)
    epochs = [steps[i : i + STEPS] for i in range(0, len(steps), STEPS)]
    for number, epoch in enumerate(epochs):
        indices = _indices(epoch)
        often = Counter(indices)
        missing = [i for i in range(FED_SAMPLES) if i not in often]
        ok, got = sorted(indices) == list(range(FED_SAMPLES)), [f"missing: {some(missing)}"]
        require(ok, "samples", got, epoch=number, found=len(indices), missing=len(missing), **size)
        require(all(len(step["notes"]) == FED_BATCH for step in epoch[:-1]), "steps", how="batch", **size)
        wrong = [label for step in epoch for note, label in zip(step["notes"], step["labels"], strict=True)
                 if label != 1000 + note[0]]  # fmt: skip
        require(not wrong, "labels", where=where)
    orders = [_indices(epoch) for epoch in epochs]
    got = [f"epoch {number}: {some(order)}" for number, order in enumerate(orders)]
    require(all(a != b for a, b in zip(orders, orders[1:], strict=False)), "same every epoch", got, where=where)
    return epochs


def _indices(epoch: Epoch) -> list[int]:
    return [int(note[0]) for step in epoch for note in step["notes"]]


def _fed(epochs: list[Epoch], wanted: int, loop: int, where: str) -> None:
    """Raise unless workers loaded everything, as many as wanted, the same ones all the time, and ahead of the steps."""
    by_epoch = [{int(note[1]) for step in epoch for note in step["notes"]} for epoch in epochs]
    require(not any(loop in found for found in by_epoch), "the loop loads", where=where)
    for number, found in enumerate(by_epoch):
        symptom = "too many" if len(found) > wanted else "too few"
        require(len(found) == wanted, symptom, epoch=number, workers=len(found), wanted=wanted, where=where)
    every = len(set().union(*by_epoch))
    require(every == wanted, "started anew", workers=every, epochs=len(epochs), wanted=wanted, where=where)
    for epoch in epochs:
        last = max(note[3] for step in epoch for note in step["notes"])
        require(last >= epoch[0]["at"], "all at once", where=where)


def _copied(found: dict[str, Any], kind: str, where: str) -> None:
    if kind == "cpu":
        require(not any(found["pinned"]), "pins without a GPU", where=where)
        return
    require(all(step["there"] for step in found["steps"]), "not there", where=where)
    require(found["pinned"] and all(found["pinned"]), "not pinned", where=where)
    require(not found["blocking"], "copy waits", copies=found["blocking"], where=where)
