"""Compare predicted with measured step times of lesson 04's program, for configurations that the prediction was not
calibrated on.

We calibrate on one and on two ranks at the corners of a grid of batch sizes and model widths, without sending gradients
(`no_sync`), and on the machine's all-reduce at several sizes. We predict batches, widths and bucket sizes inside the
grid, on one and on two ranks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_utils import predict
from course_utils.benchmarks.calibration import calibrate
from course_utils.launching.launcher import launch
from course_utils.results.run import Run
from course_utils.show.units import counted

SCRIPT = Path(__file__).resolve().parent / "bench_step.py"
CORNERS = [(batch, width) for batch in (32, 192) for width in (0.5, 1.5)]
FRESH = [
    (48, 0.75, 0), (64, 0.75, 0.25), (64, 1.0, 0), (96, 0.75, 0), (96, 1.0, 0.25), (96, 1.25, 0),
    (128, 0.75, 0.1), (128, 1.0, 0), (128, 1.25, 0.25), (160, 0.75, 0), (160, 1.0, 0.1), (160, 1.25, 0),
]  # fmt: skip
SETTINGS: dict[str, Any] = {"device": "cpu", "threads": 1, "quiet": True, "timeout": 300}


def key(batch: float, width: float, bucket_mb: float = 0) -> str:
    return f"{batch}:{width}:{bucket_mb}"


class Compute:
    """Seconds that a step computes on one of `n` ranks: linear in the batch, and between the two measured widths a
    power of the FLOPs."""

    def __init__(self, run: Run):
        # width -> fixed seconds, seconds an image, FLOPs an image
        self.points: dict[float, tuple[float, float, float]] = {}
        for width in sorted({w for _, w in CORNERS}):
            (b0, t0), (b1, t1) = sorted(
                (b, run.samples("compute_s", configuration=key(b, w)).median) for b, w in CORNERS if w == width
            )
            slope = (t1 - t0) / (b1 - b0)
            self.points[width] = (max(t0 - slope * b0, 1e-6), slope, flops_per_image(run, b0, width))

    def __call__(self, batch: float, flops: float) -> float:
        (a0, c0, f0), (a1, c1, f1) = self.points.values()
        at = math.log(flops / f0) / math.log(f1 / f0)
        return a0 ** (1 - at) * a1**at + batch * c0 ** (1 - at) * c1**at


def flops_per_image(run: Run, batch: float, width: float, bucket_mb: float = 0) -> float:
    return sum(run.value("flops", configuration=key(batch, width, bucket_mb))) / batch


def layers_of(run: Run, name: str, compute_s: float) -> list[predict.Layer]:
    """The model's layers with their share of the computing, by FLOPs, and their gradients."""
    flops, nbytes = run.value("flops", configuration=name), run.value("nbytes", configuration=name)
    total = sum(flops)
    return [
        predict.Layer(compute_s * f / total / 3, compute_s * f / total * 2 / 3, b)
        for f, b in zip(flops, nbytes, strict=True)
    ]


def main() -> None:
    calibration = calibrate()
    corners = [key(b, w) for b, w in CORNERS]
    fresh = [key(*f) for f in FRESH]
    compute = {n: Compute(launch(SCRIPT, n, args=corners, **SETTINGS)) for n in (1, 2)}
    errors: Mapping[int, list[float]] = {1: [], 2: []}
    print(f"Step of lesson 04's program, {len(FRESH)} configurations, on {calibration.provenance.machine}")
    print(f"{'ranks':>5} {'batch':>5} {'width':>5} {'bucket':>7} {'predicted':>10} {'measured':>9} {'error':>6}")
    for n in (1, 2):
        run = launch(SCRIPT, n, args=fresh, **SETTINGS)
        for batch, width, bucket_mb in FRESH:
            name = key(batch, width, bucket_mb)
            compute_s = compute[n](batch, flops_per_image(run, batch, width, bucket_mb))
            predicted_s = compute_s
            if n > 1:
                # On a CPU the threads that send need the cores that compute, so interference is 1.
                size: dict[str, Any] = {"bucket_bytes": bucket_mb * 2**20} if bucket_mb else {}
                predicted_s = predict.ddp_step(
                    layers_of(run, name, compute_s), calibration.sweep(n), interference=1.0, **size
                ).total_s
            measured_s = run.samples("step_s", configuration=name).median
            errors[n].append(predicted_s / measured_s - 1)
            bucket = f"{bucket_mb:g} MB" if bucket_mb else "default"
            print(
                f"{n:5} {batch:5} {width:5} {bucket:>7} {predicted_s * 1e3:7.1f} ms {measured_s * 1e3:6.1f} ms"
                f" {errors[n][-1]:+6.0%}"
            )
    for n, found in errors.items():
        print(
            f"{counted(n, 'rank')}: median error {statistics.median(map(abs, found)):.1%}, worst"
            f" {max(map(abs, found)):.0%}"
        )
    everything = [abs(e) for found in errors.values() for e in found]
    print(
        f"all {len(everything)}: median error {statistics.median(everything):.1%} (goal: 10%), worst"
        f" {max(everything):.0%}"
    )


if __name__ == "__main__":
    main()
