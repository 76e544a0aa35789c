"""Lesson 02 on the ranks: each task runs the student's code, often in real workers, and tells what it saw."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from course_utils.rank import report

from .. import rank_side
from ..rank_side import RANK
from .cases import LENGTHS, Sentence, passes, sample_of, sentences, stream_cases, workers_of

HANG_S = 30  # after so long without a batch, a worker counts as hanging
MOST_BATCHES = 500


def loaded(doing: str, dataset: Dataset[Any], num_workers: int, **options: Any) -> list[Any]:
    """All batches of a DataLoader. Its workers are forked, because new processes couldn't import the answer. Whatever
    ends a worker becomes one sentence."""
    started: dict[str, Any] = {"multiprocessing_context": "fork", "timeout": HANG_S} if num_workers else {}
    report(call=doing)
    try:
        batches = list(
            itertools.islice(DataLoader(dataset, num_workers=num_workers, **started, **options), MOST_BATCHES)
        )
    except Exception as error:
        text = str(error).strip()
        if "in DataLoader worker process" in text:
            at = re.findall(r'File "[^"]*exercise_02[^"]*", line (\d+)', text)
            where = f" in line {int(at[-1]) + 1} of the cell" if at else ""  # its first line is the magic
            rank_side.problem(
                f"Your code stopped in a worker{where}, while {doing}: {text.splitlines()[-1]}",
                f"raised {type(error).__name__}",
            )
        if "timed out" in text:
            rank_side.problem(f"A worker gave nothing for {HANG_S} s, while {doing}: your code doesn't end.", "endless")
        if "exited unexpectedly" in text:
            rank_side.problem(f"A worker died, while {doing}.", "killed")
        raise
    if len(batches) == MOST_BATCHES:
        rank_side.problem(f"There was no end after {MOST_BATCHES} batches, while {doing}.", "endless")
    report(call="")
    return batches


# --- 02.2 -------------------------------------------------------------------------------------------------------------


class Sentences(Dataset[tuple[Tensor, int]]):
    def __init__(self, samples: list[Sentence]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        tokens, label = self.samples[index]
        return torch.tensor(tokens, dtype=torch.int64), label


def collate(answer: ModuleType) -> None:
    """Keeps the batches and looks at them at the end: one that shares memory with a later one has changed by then."""
    function = rank_side.function(answer, "pad_collate", "samples")
    batches = []
    for samples in sentences(rank_side.draw_seed()):
        dataset = Sentences(samples)
        lengths = [len(tokens) for tokens, _ in samples]
        given = [dataset[i] for i in range(len(dataset))]
        batches.append(function(given, doing=f"collating a batch of lengths {lengths}"))
        if _batch(batches[-1])["shapes"]["tokens"] != [len(lengths), max(lengths)]:
            break  # the next batch may raise an exception, which says less
    every = Sentences([sample for samples in sentences(0)[: len(LENGTHS)] for sample in samples if sample[0]])
    in_workers = loaded("collating in two workers", every, 2, batch_size=4, collate_fn=answer.pad_collate)
    rank_side.tell(batches=[_batch(b) for b in batches], in_workers=[_batch(b) for b in in_workers])


def _batch(value: Any) -> dict[str, Any]:
    if not isinstance(value, tuple | list) or len(value) != 3 or not all(isinstance(t, Tensor) for t in value):
        what = f"{len(value)} things" if isinstance(value, tuple | list) else f"a {type(value).__name__}"
        rank_side.problem(f"`pad_collate` returned {what}; it must return three tensors: tokens, real, labels.", "type")
    tokens, real, labels = value
    named = zip(("tokens", "real", "labels"), value, (torch.int64, torch.bool, torch.int64), strict=True)
    wrong = [
        f"`{name}` is {tensor.dtype}, and must be {dtype}" for name, tensor, dtype in named if tensor.dtype != dtype
    ]
    return {
        "tokens": tokens.tolist(),
        "real": real.long().tolist(),
        "labels": labels.tolist(),
        "shapes": {name: list(tensor.shape) for name, tensor in zip(("tokens", "real", "labels"), value, strict=True)},
        "wrong": wrong,
    }


# --- 02.3 -------------------------------------------------------------------------------------------------------------


def stream(answer: ModuleType) -> None:
    """Iterates the answer's stream for some epochs on every rank, with several numbers of workers. `read` notes its
    calls in a file."""
    make = rank_side.function(answer, "Stream", "read", "n_samples", "rank", "world_size")
    told: list[dict[str, Any] | None] = []
    seed = int(os.environ["MASTER_PORT"])  # the same on all ranks of a launch, and another in the next
    for number, (n, ranks, workers) in enumerate(stream_cases(seed)):
        if ranks <= RANK:
            told.append(None)
            continue
        num_workers = workers_of(workers, RANK)
        notes = rank_side.folder() / f"reads.{number}.{RANK}"
        notes.touch()
        with_workers = f"{n} samples, {ranks} rank{'s' * (ranks > 1)}, {num_workers} workers"
        dataset = make(_Read(notes), n, RANK, ranks, doing=f"making a stream of {with_workers}")
        if not isinstance(dataset, IterableDataset):
            rank_side.problem("`Stream` must be an IterableDataset.", "type")
        epochs = [
            [int(v) for batch in loaded(f"iterating {with_workers}", dataset, num_workers, batch_size=2) for v in batch]
            for _ in range(passes(workers, RANK))
        ]
        told.append({"epochs": epochs, "reads": len(notes.read_text().split())})
    rank_side.tell(cases=told, seed=seed)


class _Read:
    """Reads a sample of the stream. Notes each call in a file, because workers are processes of their own."""

    def __init__(self, notes: Path) -> None:
        self.notes = str(notes)

    def __call__(self, index: int) -> int:
        fd = os.open(self.notes, os.O_WRONLY | os.O_APPEND)
        os.write(fd, f"{index}\n".encode())
        os.close(fd)
        return sample_of(index)
