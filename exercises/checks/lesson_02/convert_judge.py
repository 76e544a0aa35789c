"""Lesson 02, exercise 1: what shows that a loop still starves."""

from __future__ import annotations

from collections import Counter
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Difference, samples, some
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
    if len(steps) != STEPS * FED_EPOCHS:
        raise Difference(
            "steps",
            f"`step` was called {len(steps)} times in {FED_EPOCHS} epochs ({where}).",
            f"{STEPS} steps an epoch: {samples(FED_SAMPLES)} in batches of {FED_BATCH}, the last one smaller",
        )
    epochs = [steps[i : i + STEPS] for i in range(0, len(steps), STEPS)]
    for number, epoch in enumerate(epochs):
        indices = _indices(epoch)
        often = Counter(indices)
        if sorted(indices) != list(range(FED_SAMPLES)):
            missing = [i for i in range(FED_SAMPLES) if i not in often]
            raise Difference(
                "samples",
                f"In epoch {number} the steps got {samples(len(indices))}, and {len(missing)} are missing ({where}).",
                f"each of {samples(FED_SAMPLES)} once",
                [f"missing: {some(missing)}"],
            )
        if any(len(step["notes"]) != FED_BATCH for step in epoch[:-1]):
            raise Difference(
                "steps", f"Not all batches have {FED_BATCH} samples ({where}).", "only the last is smaller"
            )
        wrong = [label for step in epoch for note, label in zip(step["notes"], step["labels"], strict=True)
                 if label != 1000 + note[0]]  # fmt: skip
        if wrong:
            raise Difference("labels", f"Labels don't belong to their images ({where}).", "those of `dataset[i]`")
    orders = [_indices(epoch) for epoch in epochs]
    if any(a == b for a, b in zip(orders, orders[1:], strict=False)):
        raise Difference(
            "same every epoch",
            f"Two epochs go through the samples in the same order ({where}).",
            "a new order in each epoch",
            [f"epoch {number}: {some(order)}" for number, order in enumerate(orders)],
        )
    return epochs


def _indices(epoch: Epoch) -> list[int]:
    return [int(note[0]) for step in epoch for note in step["notes"]]


def _fed(epochs: list[Epoch], wanted: int, loop: int, where: str) -> None:
    """Raise unless workers loaded everything, as many as wanted, the same ones all the time, and ahead of the steps."""
    by_epoch = [{int(note[1]) for step in epoch for note in step["notes"]} for epoch in epochs]
    if any(loop in found for found in by_epoch):
        raise Difference(
            "the loop loads",
            f"The loop loads samples itself, and the device waits meanwhile ({where}).",
            "worker processes load",
        )
    for number, found in enumerate(by_epoch):
        if len(found) != wanted:
            raise Difference(
                "too many" if len(found) > wanted else "too few",
                f"In epoch {number} {counted(len(found), 'worker')} loaded ({where}).",
                f"{wanted}: one for each core but the loop's, and at least one",
            )
    if len(set().union(*by_epoch)) != wanted:
        raise Difference(
            "started anew",
            f"Every epoch starts workers of its own: {len(set().union(*by_epoch))} in {len(epochs)} epochs ({where}).",
            f"{wanted} workers, which stay",
        )
    for epoch in epochs:
        if max(note[3] for step in epoch for note in step["notes"]) < epoch[0]["at"]:
            raise Difference(
                "all at once",
                f"The first step of an epoch waits until all of its samples are loaded ({where}).",
                "steps that begin when their batch is there",
            )


def _copied(found: dict[str, Any], kind: str, where: str) -> None:
    if kind == "cpu":
        if any(found["pinned"]):
            raise Difference(
                "pins without a GPU", f"The loader is asked to pin memory, and warns ({where}).", "no pinned memory"
            )
        return
    if not all(step["there"] for step in found["steps"]):
        raise Difference(
            "not there", f"`step` got a batch that's not on `device` ({where}).", "images and labels on it"
        )
    if not found["pinned"] or not all(found["pinned"]):
        raise Difference("not pinned", f"The batches come from pageable memory ({where}).", "pinned memory")
    if found["blocking"]:
        raise Difference(
            "copy waits", f"{found['blocking']} copies make the loop wait ({where}).", "copies that return at once"
        )
