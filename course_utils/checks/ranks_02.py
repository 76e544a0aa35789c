"""Lesson 02 on the ranks: one adapter a task runs the student's code, in real workers where it must, and tells what it saw."""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from course_utils.checks import inside
from course_utils.checks.cases_02 import AUGMENTED, EPOCHS, LENGTHS, STREAM_CASES, WORKER_CASES
from course_utils.checks.inside import RANK
from course_utils.rank import report

HANG_S = 8  # a worker that gives nothing for so long
MOST_BATCHES = 500


def loaded(doing: str, dataset: Dataset[Any], num_workers: int, **options: Any) -> list[Any]:
    """All batches of a DataLoader. Its workers are forked, for they could not import the answer; what ends one badly becomes one sentence."""
    started: dict[str, Any] = {"multiprocessing_context": "fork", "timeout": HANG_S} if num_workers else {}
    report(call=doing)
    try:
        batches = list(itertools.islice(DataLoader(dataset, num_workers=num_workers, **started, **options), MOST_BATCHES))
    except Exception as error:
        text = str(error).strip()
        if "in DataLoader worker process" in text:
            at = re.findall(r'File "[^"]*exercise_02[^"]*", line (\d+)', text)
            where = f" in line {int(at[-1]) + 1} of the cell" if at else ""  # its first line is the magic
            inside.problem(f"Your code stopped in a worker{where}, while {doing}: {text.splitlines()[-1]}", f"raised {type(error).__name__}")
        if "timed out" in text:
            inside.problem(f"A worker gave nothing for {HANG_S} s, while {doing}: your code did not come to its end.", "endless")
        if "exited unexpectedly" in text:
            inside.problem(f"A worker died, while {doing}.", "killed")
        raise
    if len(batches) == MOST_BATCHES:
        inside.problem(f"After {MOST_BATCHES} batches there was still no end, while {doing}.", "endless")
    report(call="")
    return batches


# --- 02.1 -------------------------------------------------------------------------------------------------------------------


def workers(answer: ModuleType) -> None:
    function = inside.function(answer, "choose_workers", "load_s", "compute_s", "cores", "batch_nbytes", "shm_nbytes", "prefetch_factor")
    chosen = []
    for _, *given in WORKER_CASES:
        value = function(*given, doing=f"choosing for {given}")
        if isinstance(value, bool) or not isinstance(value, int):
            inside.problem(f"`choose_workers` returned {value!r}, a {type(value).__name__}; num_workers must be an int.", "type")
        chosen.append(value)
    inside.tell(chosen=chosen)


# --- 02.2 -------------------------------------------------------------------------------------------------------------------


class Sentences(Dataset[tuple[Tensor, int]]):
    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.arange(self.lengths[index]), index + 1


def collate(answer: ModuleType) -> None:
    function = inside.function(answer, "pad_collate", "samples")
    batches = []
    for lengths in LENGTHS:
        samples = [Sentences(lengths)[i] for i in range(len(lengths))]
        batches.append(_batch(function(samples, doing=f"a batch of lengths {lengths}")))
        if [s.tolist() for s, _ in samples] != [list(range(n)) for n in lengths] or [label for _, label in samples] != list(range(1, len(lengths) + 1)):
            inside.problem("After `pad_collate` its samples are no longer what they were: they belong to the dataset.", "changed input")
    every = [n for lengths in LENGTHS for n in lengths if n]
    in_workers = [_batch(b) for b in loaded("collating in two workers", Sentences(every), 2, batch_size=4, collate_fn=answer.pad_collate)]
    inside.tell(batches=batches, in_workers=in_workers, every=every)


def _batch(value: Any) -> dict[str, Any]:
    if not isinstance(value, tuple | list) or len(value) != 3 or not all(isinstance(t, Tensor) for t in value):
        what = f"{len(value)} things" if isinstance(value, tuple | list) else f"a {type(value).__name__}"
        inside.problem(f"`pad_collate` returned {what}; it must return three tensors: tokens, real, labels.", "type")
    tokens, real, labels = value
    named = zip(("tokens", "real", "labels"), value, (torch.int64, torch.bool, torch.int64), strict=True)
    wrong = [f"`{name}` is {tensor.dtype}, and must be {dtype}" for name, tensor, dtype in named if tensor.dtype != dtype]
    return {"tokens": tokens.tolist(), "real": real.long().tolist(), "labels": labels.tolist(), "shape": list(tokens.shape), "wrong": wrong}


# --- 02.3 -------------------------------------------------------------------------------------------------------------------


def stream(answer: ModuleType) -> None:
    """Iterates the answer's stream on every rank, with several numbers of workers, for two epochs; `read` notes each of its calls in a file."""
    make = inside.function(answer, "Stream", "read", "n_samples", "rank", "world_size")
    told: list[dict[str, Any] | None] = []
    for number, (n, ranks, num_workers) in enumerate(STREAM_CASES):
        if ranks <= RANK:
            told.append(None)
            continue
        notes = inside.folder() / f"reads.{number}.{RANK}"
        notes.touch()
        with_workers = f"{n} samples, {ranks} rank{'s' * (ranks > 1)}, {num_workers} workers"
        dataset = make(_Read(notes), n, RANK, ranks, doing=f"making a stream of {with_workers}")
        if not isinstance(dataset, IterableDataset):
            inside.problem("`Stream` must be an IterableDataset.", "type")
        epochs = [[int(i) for batch in loaded(f"iterating {with_workers}", dataset, num_workers, batch_size=2) for i in batch] for _ in range(2)]
        told.append({"epochs": epochs, "reads": len(notes.read_text().split())})
    inside.tell(cases=told)


class _Read:
    """Sample `index` of the stream, at some cost: each call is noted, from whichever process."""

    def __init__(self, notes: Path) -> None:
        self.notes = str(notes)

    def __call__(self, index: int) -> int:
        fd = os.open(self.notes, os.O_WRONLY | os.O_APPEND)
        os.write(fd, f"{index}\n".encode())
        os.close(fd)
        return index


# --- 02.4 -------------------------------------------------------------------------------------------------------------------


def augmented(answer: ModuleType) -> None:
    """Draws every epoch with 0 to 3 workers, and in another order, and compares; noise is what the answer added."""
    make = inside.function(answer, "Augmented", "images", "seed")
    images = torch.rand(AUGMENTED, 3, 8, 8, generator=torch.Generator().manual_seed(7))
    kept = images.clone()

    def noise(seed: int, epoch: int, num_workers: int, order: list[int] | None = None) -> Tensor:
        dataset = make(images, seed, doing="making the dataset")
        order = list(range(AUGMENTED)) if order is None else order
        if not callable(getattr(dataset, "set_epoch", None)):
            inside.problem("`Augmented` has no method `set_epoch(epoch)`. Keep its name as it was given.", "missing")
        dataset.set_epoch(epoch)
        batches = loaded(f"loading epoch {epoch} with {num_workers} workers", dataset, num_workers, batch_size=4, sampler=order)
        got = torch.cat(batches) if all(isinstance(b, Tensor) for b in batches) else torch.zeros(0)
        if got.shape != images.shape or got.dtype != images.dtype:
            inside.problem(f"`dataset[i]` must be a tensor like an image, {list(images.shape[1:])} of {images.dtype}.", "type")
        if not torch.equal(images, kept):
            inside.problem("After loading, the images themselves are other ones: noise was added in place, and adds up from epoch to epoch.", "in place")
        back = torch.empty_like(got)
        back[order] = got - kept[order]
        return back

    alone = [noise(0, epoch, 0) for epoch in range(EPOCHS)]
    asked = make(images, 0)
    asked.set_epoch(1)
    before = inside.random_states()  # of the dataset alone: a loader draws its base seed from torch's
    for index in range(4):
        asked[index]
    after = inside.random_states()
    shuffled = noise(0, 1, 0, order=list(range(AUGMENTED))[::-1])
    by_workers = {n: [noise(0, epoch, n) for epoch in range(2)] for n in (1, 2, 3)}
    other_seed = noise(1, 0, 0)
    flat = [epoch.flatten(1) for epoch in alone]
    everything = torch.cat(flat)
    rows = [tuple(row) for row in everything.mul(1e4).round().int()[:, :6].tolist()]
    seen: dict[tuple[int, ...], int] = {}
    pairs = []
    for number, row in enumerate(rows):
        if row in seen:
            pairs.append([divmod(seen[row], AUGMENTED), divmod(number, AUGMENTED)])
        seen.setdefault(row, number)
    inside.tell(
        workers=[n for n, epochs in by_workers.items() if not all(torch.allclose(a, b, atol=1e-6) for a, b in zip(alone, epochs, strict=False))],
        order=torch.allclose(alone[1], shuffled, atol=1e-6),
        seed=not torch.allclose(alone[0], other_seed, atol=1e-6),
        pairs=pairs,
        mean=everything.mean().item(),
        std=everything.std().item(),
        touched=[name for name, state in before.items() if after[name] != state],
    )


TASKS = {"workers": workers, "collate": collate, "stream": stream, "augmented": augmented}

if __name__ == "__main__":
    task, path = sys.argv[1:]
    TASKS[task](inside.load(path))
