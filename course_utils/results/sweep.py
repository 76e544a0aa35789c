"""The runs of a sweep: some for each point of a grid."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..machine import busy
from ..machine.here import usable_cores
from ..show.table import ShowsTable, Table
from .rank_result import NotReported
from .run import Run
from .samples import Samples


@dataclass(repr=False)
class Sweep(ShowsTable):
    """The runs of a sweep: the repeats of each point (a dict of what varied). If the sweep stopped early, these are the
    runs up to then."""

    points: list[dict[str, Any]]
    runs: list[list[Run]]  # runs[i] are the repeats of points[i]

    def at(self, /, **point: Any) -> list[Run]:
        """The repeats of the one point that has all the given values. Raises KeyError if none has, or several do."""
        found = [
            runs for p, runs in zip(self.points, self.runs, strict=True) if all(p.get(k) == v for k, v in point.items())
        ]
        if len(found) != 1:
            raise KeyError(f"{len(found)} points of the sweep match {point}; points are {self.points}")
        return found[0]

    def samples(self, key: str, /, **point: Any) -> Samples:
        """One sample a repeat (the median of what that run reported as `key`), so the spread is the one
        between launches."""
        runs = self.at(**point)
        if not runs:
            raise NotReported(f"the sweep stopped before a run of {point} had ended")
        return Samples((run.samples(key).median for run in runs), key, runs[0].provenance)

    @property
    def disturbed(self) -> str:
        """As of a run: what other programs did meanwhile, if they were in the way of half the repeats of a point."""
        known = [[r.others for r in runs if r.others and r.provenance.kind == "measured"] for runs in self.runs]
        found = (busy.disturbed(others, usable_cores()) for others in known)
        return next(filter(None, found), "")

    def table(self) -> Table:
        """One row a point: what varied, how many runs there are, and the median of their seconds."""
        keys = list(dict.fromkeys(key for point in self.points for key in point))
        rows = [
            (
                *(in_words(point.get(key, "")) for key in keys),
                str(len(runs)),
                f"{statistics.median(run.wall_s for run in runs):.2f} s" if runs else "",
            )
            for point, runs in zip(self.points, self.runs, strict=True)
        ]
        return Table((*keys, "repeats", "wall time"), rows, "r" * (len(keys) + 2))


def in_words(value: Any) -> str:
    """A value as text; a cluster of one's own by its label, if it has one."""
    return str(value.get("label", value)) if isinstance(value, Mapping) else str(value)
