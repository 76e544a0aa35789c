"""Launch a script at every point of a grid, several times each, and keep the runs of all points."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..failure.errors import LaunchError
from ..machine.here import Machine
from ..results.run import Run
from ..results.sweep import Sweep, in_words
from ..show.table import print_lines
from .launcher import launch
from .options import LaunchOptions
from .under_the_cell.cell import busy_machine
from .under_the_cell.live import LiveView
from .under_the_cell.watch import news

# What a point may hold of the arguments of `launch`; all others reach the script.
_OWN_KEYS = {field.name for field in fields(LaunchOptions)} - {"script", "args", "check", "quiet", "dry", "detach"}

MEASURE_AGAIN = (
    "Other programs are using this machine, so what this sweep measures will be too long. To measure again, stop the"
    " cell, close them, and run it once more."
)


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
                        [f"{done} of {total} launches done", *(f"{k}={in_words(v)}" for k, v in point.items())]
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


def _option(key: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    name = "--" + key.replace("_", "-")
    values = value if isinstance(value, (list, tuple)) else [] if value is True else [value]
    return [name, *(str(v) for v in values)]
