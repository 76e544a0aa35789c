"""What passes through GPU 0 in a step, with DataParallel and with DDP."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType

from course_utils import Provenance, Run, Samples, figures, launch, more_checks, predict
from course_utils.for_lessons import Figure, as_number, bet, figure_first, say

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "03_traffic.py"
COUNTS = (2, 4, 8)  # GPUs whose traffic is counted

Guess = float | int | str | EllipsisType | None


@figure_first
def show_traffic(guess: Guess = ...) -> Figure:
    """Bytes in and out of GPU 0 in a step: DDP's as processes around a ring sent them, DataParallel's as torch hands
    them over. That NCCL then passes them through GPU 0 only once is assumed: those bars are a prediction."""
    counted, rings = counts()
    dp, star, ddp = (through(counted, "ring"), through(counted, "star"), on_the_ring(rings))
    told = {n: _told(counted, n) for n in COUNTS}
    (most,) = COUNTS[-1:]
    times, copied = dp[most] / ddp[most], star[most] / ddp[most]
    said = bet(
        guess,
        times,
        "you know your rings.",
        over=f"If GPU 0 copied its weights to each of the others, it would be {copied:.1f} times."
        " But NCCL hands them from GPU to GPU.",
        under="The weights pass GPU 0 only once, but outputs and their gradients pass it too.",
        kind="a number, such as 2",
    )
    say(
        f"With {most} GPUs {mib(dp[most])} MiB pass through GPU 0, and {mib(ddp[most])} MiB with DDP: {times:.1f}"
        f" times as much. {said}"
    )
    weights, outputs = (mib(counted.value(name)) for name in ("weights_bytes", "outputs_bytes"))
    say(
        f"On paper: 2 x {weights} + {most - 1}/{most} x 2 x {outputs} = {mib(told[most][0])} MiB, and for DDP"
        f" 4 x {most - 1}/{most} x {weights} = {mib(told[most][1])} MiB."
    )
    gradient = {n: rings[n].values("gradient") for n in COUNTS}
    calls = {(what, n): counted.value("calls", way="ring", gpus=n, what=what) for n in COUNTS for what in _TWICE}
    more_checks(
        {
            "one NCCL call carries all weights out, and one all gradients in": set(calls.values()) == {1},
            "weights pass GPU 0 once, however many GPUs there are": len({_kind(counted, n, "weights") for n in COUNTS})
            == 1,
            "a matrix with two names travels once": _kind(counted, most, "weights") == counted.value("weights_bytes"),
            "the formulas say the same, within 1%": all(
                max(abs(told[n][0] / dp[n] - 1), abs(told[n][1] / ddp[n] - 1)) < 0.01 for n in COUNTS
            ),
            "without NCCL it's several times DDP's": copied > 3,
            "after DDP's ring all ranks hold the same gradient": all(max(g) - min(g) < 1e-6 for g in gradient.values()),
        }
    )
    by_rule = Provenance("predicted", "counted in torch's code, and NCCL's ring put in")
    found = {f"DP, {n} GPUs": Samples([dp[n]], "nbytes", by_rule) for n in COUNTS} | {
        f"DDP, {n} GPUs": float(ddp[n]) for n in COUNTS
    }
    guessed = as_number(guess)
    return figures.bars(
        found,
        predicted={f"DDP, {n} GPUs": told[n][1] for n in COUNTS},
        guess={f"DP, {most} GPUs": None if guessed is None else guessed * ddp[most]},
        unit="bytes",
        ylabel="in and out of GPU 0 in a step (MiB)",
        title=f"{most} GPUs: DataParallel moves {times:.1f} times DDP's bytes through GPU 0",
    )


_TWICE = ("weights", "gradients")


@functools.cache
def counts() -> tuple[Run, dict[int, Run]]:
    """The counts of DataParallel, ring and star, and of DDP for each number of GPUs. Bytes don't depend on the
    device, so they're counted on the CPU everywhere."""
    counted = launch(PROGRAM, 1, args=["--gpus", *COUNTS], device="cpu", quiet=True)
    return counted, {n: launch(PROGRAM, n, device="cpu", quiet=True) for n in COUNTS}


def _kind(counted: Run, n: int, what: str) -> float:
    return float(counted.value("nbytes", way="ring", gpus=n, what=what))


def through(counted: Run, way: str) -> dict[int, float]:
    """Bytes in and out of GPU 0 with DataParallel, for each number of GPUs."""
    return {n: float(sum(counted.values("nbytes", way=way, gpus=n))) for n in COUNTS}


def on_the_ring(rings: Mapping[int, Run]) -> dict[int, float]:
    """Bytes in and out of the busiest rank."""
    return {n: float(max(rings[n].values("ddp_bytes"))) for n in COUNTS}


def _told(counted: Run, n: int) -> tuple[float, float]:
    """What the formulas say for DataParallel with NCCL, and for DDP."""
    weights, inputs, outputs = (counted.value(f"{name}_bytes") for name in ("weights", "inputs", "outputs"))
    dp = predict.data_parallel_traffic(n, weights, inputs, outputs, by="ring")
    return dp.total_bytes, predict.ddp_traffic(n, weights).total_bytes


def mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:.1f}"
