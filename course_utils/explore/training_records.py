"""What trainers that don't wait for each other learned at several learning rates, as recorded: what
`explore.staleness()` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..recorded import sweeps
from .recorded_grid import source


@dataclass(frozen=True)
class Training:
    """A training: loss by updates (None from where it was no number), test accuracy at the end, mean staleness."""

    losses: Sequence[tuple[float, float | None]]
    accuracy: float
    stale: float

    @property
    def diverged(self) -> bool:
        return any(loss is None or loss > 20 for _, loss in self.losses)

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]]) -> Training:
        losses = [(r["updates"], r["loss"]) for r in records if "updates" in r]
        return cls(losses, records[-1]["accuracy"], records[-1]["stale"])


@cache
def trainings() -> tuple[Mapping[tuple[int, float], list[Training]], str]:
    """The trainings of each (trainers, rate), a seed each, and where they were recorded."""
    sweep = sweeps("07_staleness")[0]
    found: dict[tuple[int, float], list[Training]] = {}
    for point, (run,) in zip(sweep.points, sweep.runs, strict=True):
        found.setdefault((point["trainers"], point["lr"]), []).append(Training.of(run.ranks[0].records))
    return found, source(sweep.runs[0][0].provenance)


def middle(trainers: int, lr: float) -> Training:
    """The training in the middle of the seeds, by its accuracy; of two the worse."""
    seeds = sorted(trainings()[0][trainers, lr], key=lambda t: (not t.diverged, t.accuracy))
    return seeds[(len(seeds) - 1) // 2]
