"""Lesson 02, exercise 4, on the ranks: each loads one part of what is compared, so that no process has seen what it
must repeat."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .. import rank_side
from .cases import AUGMENTED, UNIT, noises
from .ranks import loaded

Noise = list[list[int]]  # for each image its numbers, in units of `UNIT`


def augmented(answer: ModuleType, given: list[dict[str, Any]]) -> None:
    """Does what this rank is asked, in its order, and tells the noise: what the answer has added."""
    make = rank_side.function(answer, "Augmented", "images", "seed")
    asked = given[rank_side.RANK]
    for name, ask in asked.items():
        noise = TASKS[ask["task"]](answer, make, **{k: v for k, v in ask.items() if k != "task"})
        rank_side.tell(**{name: noise})


def _images() -> Tensor:
    return torch.rand(AUGMENTED, 3, 8, 8, generator=torch.Generator().manual_seed(7))


def _units(noise: Tensor) -> Noise:
    return noise.flatten(1).div(UNIT).round().int().tolist()


def load(answer: ModuleType, make: Callable[..., Any], seed: int, epoch: int, workers: int, order: list[int]) -> Noise:
    """The noise of all images, by a loader."""
    images = _images()
    kept = images.clone()
    dataset = make(images, seed, doing="making the dataset")
    if not callable(getattr(dataset, "set_epoch", None)):
        rank_side.problem("`Augmented` has no method `set_epoch(epoch)`. Keep its name as it was given.", "missing")
    dataset.set_epoch(epoch)
    doing = f"loading epoch {epoch} with {workers} workers"
    batches = loaded(doing, dataset, workers, batch_size=4, sampler=order)
    got = torch.cat(batches) if all(isinstance(b, Tensor) for b in batches) else torch.zeros(0)
    if got.shape != images.shape or got.dtype != images.dtype:
        rank_side.problem(
            f"`dataset[i]` must be a tensor like an image, {list(images.shape[1:])} of {images.dtype}.", "type"
        )
    if not torch.equal(images, kept):
        rank_side.problem(
            "After loading, the images themselves are other ones: noise was added in place, and adds up from epoch"
            " to epoch.",
            "in place",
        )
    back = torch.empty_like(got)
    back[order] = got - kept[order]
    return _units(back)


def items(answer: ModuleType, make: Callable[..., Any], epoch: int, indices: list[int]) -> dict[str, Any]:
    """The noise of single images, and the global random states that changed. (A loader draws from torch's itself.)"""
    images = _images()
    dataset = make(images, 0)
    dataset.set_epoch(epoch)
    before = rank_side.random_states()
    noise = _units(torch.stack([dataset[i] - images[i] for i in indices]))
    after = rank_side.random_states()
    return {"noise": noise, "touched": [name for name, state in before.items() if after[name] != state]}


def black(
    answer: ModuleType, make: Callable[..., Any], n: int, size: int, seed: int, epoch: int, salted: bool = False
) -> Noise:
    """The noise of n images of zeros, 3 x size x size. `salted`: `hash` of a text differs, as in a new Python."""
    if salted:
        answer.__dict__["hash"] = _salted
    dataset = make(torch.zeros(n, 3, size, size), seed)
    dataset.set_epoch(epoch)
    try:
        return _units(torch.stack([dataset[i] for i in range(n)]))
    finally:
        answer.__dict__.pop("hash", None)


def many(answer: ModuleType, make: Callable[..., Any], draw: int) -> Noise:
    """The noise of many (seed, epoch, index), of small images."""
    images = torch.zeros(100_002, 1, 2, 2)
    datasets: dict[int, Any] = {}
    found = []
    for seed, epoch, index in noises(draw):
        if seed not in datasets:
            datasets[seed] = make(images, seed, doing=f"making a dataset of {len(images):,} images")
        datasets[seed].set_epoch(epoch)
        found.append(datasets[seed][index])
    return _units(torch.stack(found))


TASKS: dict[str, Callable[..., Any]] = {"load": load, "items": items, "black": black, "many": many}


def _salted(value: Any) -> int:
    return hash(value) if isinstance(value, (int, float)) or _numbers(value) else hash(("another process", value))


def _numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, (int, float)) or _numbers(v) for v in value)
