"""What the button of `explore.loader()` runs: the real DataLoader at its settings, on this machine's cores."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from .. import predict
from ..launcher import launch
from ..machine import Machine
from ..spans import Span


def run_loader(batches: int, load_s: float, step_s: float, workers: int) -> dict[str, Any]:
    """Launch it, and play the cost model through once more with the time that each batch took to load. Returns what
    `loader_workers.render` draws."""
    args = ["--batches", batches, "--workers", workers, "--load-s", load_s, "--step-s", step_s]
    program = Path(__file__).with_name("timed_loader.py")
    run = launch(program, 1, args=args, timeout=300, device="cpu", threads=1, quiet=True, engine="local")
    spans: list[Span] = []
    for number, record in enumerate(record for record in run.records if "times" in record):
        began, ended, asked, came, done = record["times"]
        spans.append((record["worker"], began, ended, "loading", f"{number}"))
        if record["worker"]:
            spans.append((0, asked, came, "waiting", ""))
        spans.append((0, came, done, "compute", f"{number}"))
    loads = [end - start for _, start, end, what, _ in spans if what == "loading"]
    replayed = predict.loader_run(batches, loads, step_s, workers=workers)
    return {
        "spans": spans, "total_s": run.value("total_s"), "replayed_s": replayed.total_s, "load_s": median(loads),
        "cores": Machine.here().cores,
    }  # fmt: skip
