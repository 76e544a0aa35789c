"""Launch a script at every point of a grid, several times each, and keep the runs of all points."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .engines import other_work
from .failure import LaunchError
from .launcher import busy_machine, launch
from .live import LiveView
from .machine import Machine, usable_cores
from .results import NotReported
from .run import Run
from .samples import Samples
from .table import ShowsTable, Table, print_lines
from .watch import news

_OWN_KEYS = (
    "module",
    "ranks",
    "timeout",
    "engine",
    "env",
    "nodes",
    "gpus_per_rank",
    "threads",
    "device",
    "max_restarts",
    "cluster",
    "slow",
    "one_of",
    "host",
)


MEASURE_AGAIN = (
    "Other programs are using this machine, so what this sweep measures will be too long. To measure again, stop the"
    " cell, close them, and run it once more."
)


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
        found = (other_work.disturbed(others, usable_cores()) for others in known)
        return next(filter(None, found), "")

    def table(self) -> Table:
        """One row a point: what varied, how many runs there are, and the median of their seconds."""
        keys = list(dict.fromkeys(key for point in self.points for key in point))
        rows = [
            (
                *(_shown(point.get(key, "")) for key in keys),
                str(len(runs)),
                f"{statistics.median(run.wall_s for run in runs):.2f} s" if runs else "",
            )
            for point, runs in zip(self.points, self.runs, strict=True)
        ]
        return Table((*keys, "repeats", "wall time"), rows, "r" * (len(keys) + 2))


def sweep(
    script: str | os.PathLike[str],
    over: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    repeats: int = 3,
    args: Sequence[object] = (),
    quiet: bool = False,
    **settings: Any,
) -> Sweep:
    """Launch a script at every point of a grid, `repeats` times, and return all runs.

    over      {"ranks": [1, 2], "batch_size": [32, 64]} for every combination, or a list of points. The keys ranks,
              timeout, engine, env, nodes, gpus_per_rank, threads, device, max_restarts, cluster, slow, one_of and host
              are arguments of `launch`. All others reach the script: batch_size=32 becomes `--batch-size 32`, True a
              bare flag, a list several values.
    repeats   how often each point is run. Points are interleaved, so that a machine that slows down affects all alike.
    quiet     True shows nothing while the launches run
    settings  arguments of `launch` that hold for all points, for example timeout=60.

    When a launch fails, or you interrupt, the error's `.sweep` holds the runs until then. In a notebook that's
    `sys.last_value.sweep`.
    """
    points = _points(over)
    if not points or repeats < 1:
        raise LaunchError("a sweep needs at least one point and one repeat")
    runs: list[list[Run]] = [[] for _ in points]
    total, done = len(points) * repeats, 0
    shown: set[str] = set()
    machine, warned = Machine.here(), False
    try:
        with LiveView(quiet) as view:
            for _ in range(repeats):
                for point, results in zip(points, runs, strict=True):
                    view.sweep = ", ".join(
                        [f"{done} of {total} launches done", *(f"{k}={_shown(v)}" for k, v in point.items())]
                    )
                    own = {k: v for k, v in point.items() if k in _OWN_KEYS}
                    extra = list(
                        itertools.chain.from_iterable(_option(k, v) for k, v in point.items() if k not in _OWN_KEYS)
                    )
                    run = launch(script, args=[*args, *extra], quiet=True, **{**settings, **own})
                    results.append(run)
                    done += 1
                    placed = run.provenance.machine if run.provenance.kind == "emulated" else run.placement
                    if not quiet and placed not in shown:
                        shown.add(placed)
                        print_lines(news(run.placement))
                    if not quiet and not warned and done < total and busy_machine([run], machine):
                        warned = True
                        print_lines(MEASURE_AGAIN)
            view.end(f"{total} launch{'es' * (total > 1)}, {view.seconds:.1f} s", well=True)
    except BaseException as error:
        error.sweep = Sweep(points, runs)  # type: ignore[attr-defined]
        if done and not quiet:
            print_lines(
                f"The sweep stopped after {done} of {total} launches. Their runs are kept: `import sys; found ="
                " sys.last_value.sweep`."
            )
        raise
    if not quiet and not warned and (busy := busy_machine([run for results in runs for run in results], machine)):
        print_lines(busy)
    return Sweep(points, runs)


def _points(over: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(over, Mapping):
        return [dict(point) for point in over]
    for key, values in over.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise LaunchError(f"a sweep over {key} needs a list of values, even for one; got {values!r}")
    return [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]


def _shown(value: Any) -> str:
    """A value as text; a cluster of one's own by its label, if it has one."""
    return str(value.get("label", value)) if isinstance(value, Mapping) else str(value)


def _option(key: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    name = "--" + key.replace("_", "-")
    values = value if isinstance(value, (list, tuple)) else [] if value is True else [value]
    return [name, *(str(v) for v in values)]
