"""Train what `explore.time_to_accuracy`, `explore.staleness` and `explore.loss_scale` show, and keep it under
data/recorded/.

Each grid is a sweep over settings and seeds; seeds go round last, so whatever `--minutes` leaves out is the last seed.
Nothing of it is a time: how many steps a training needs doesn't depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


from course_utils import launch  # noqa: E402
from course_utils.results.run import Run  # noqa: E402
from course_utils.results.sweep import Sweep  # noqa: E402
from tools import record  # noqa: E402

PROGRAMS = ROOT / "course_utils" / "explore" / "programs"
# Name of the recording: its program, and the grid.
GRIDS: Mapping[str, tuple[str, Mapping[str, list[Any]]]] = {
    "04_time_to_accuracy": (
        "train_to_accuracy.py",
        {"seed": [0, 1, 2], "batch_size": [8, 32, 128, 512], "lr": [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]},
    ),
    "07_staleness": ("hogwild_steps.py", {"seed": [0, 1, 2], "trainers": [1, 2, 4, 8], "lr": [0.01, 0.02, 0.05, 0.1]}),
    "08_gradients": ("gradient_sizes.py", {"steps": [[0, 30, 120, 480]]}),
}


def commit(program: str) -> str:
    """Of this checkout; `+` when the program has been changed since."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", str(PROGRAMS / program)]).returncode
    return found + "+" * bool(found and changed)


def trained(name: str, until: float) -> Sweep:
    """A run for each point of the grid; when the time is up, only for rounds of seeds that are whole."""
    program, grid = GRIDS[name]
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    course = commit(program)
    runs: list[list[Run]] = []
    for i, point in enumerate(points):
        if time.monotonic() > until and point.get("seed"):  # the first seed always ends
            whole = [p for p in points if p["seed"] < point["seed"]]
            print(f"{name}: the time is up; kept {len(whole)} of {len(points)}", flush=True)
            return Sweep(whole, runs[: len(whole)])
        run = launch(PROGRAMS / program, 1, args=[*_words(point)], device="cpu", threads=1, timeout=600, quiet=True)
        runs.append([_of(run, course)])
        print(f"{name}: {i + 1} of {len(points)}, {point}, {run.ranks[0].records[-1]}", flush=True)
    return Sweep(points, runs)


def _words(point: Mapping[str, Any]) -> Iterator[object]:
    for key, value in point.items():
        yield f"--{key.replace('_', '-')}"
        yield from value if isinstance(value, list) else [value]


def _of(run: Run, course: str) -> Run:
    origin = dataclasses.replace(run.provenance, versions={**run.provenance.versions, "course": course})
    return dataclasses.replace(run, provenance=origin)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"{', '.join(GRIDS)}; default: all")
    parser.add_argument("--minutes", type=float, default=12, help="at most, for each; at least one seed is run")
    parser.add_argument("--out", type=Path, help="a folder other than data/recorded")
    arguments = parser.parse_args()
    for chosen in arguments.names or GRIDS:
        result = trained(chosen, time.monotonic() + 60 * arguments.minutes)
        print(f"recorded: {record.save(chosen, result, arguments.out)}", flush=True)
