"""The gradients that a training really had, and which share of them a format makes zero or infinite: what
`explore.loss_scale()` draws."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ..predict import Format
from ..recorded import sweeps
from .recorded_grid import source

MOST = 40  # the largest scale, as a power of two


@cache
def counts() -> tuple[Mapping[tuple[int, str], Mapping[int, int]], str]:
    """Numbers by exponent for each (steps, of), and where and when they were recorded."""
    ((run,),) = sweeps("08_gradients")[0].runs
    found: dict[tuple[int, str], dict[int, int]] = {}
    for record in run.ranks[0].records:
        if "exponent" in record:
            found.setdefault((record["step"], record["what"]), {})[record["exponent"]] = record["count"]
    return found, source(run.provenance)


def shares(row: Mapping[int, int], scale: int, held: Format) -> tuple[float, float, float]:
    """The shares that become zero, that keep fewer digits than the format has, and that become infinite. From 2^e to
    2^(e+1) all have one fate: below half of the smallest number, a power of two, they round to zero."""
    total = sum(row.values())
    zero = sum(n for e, n in row.items() if 2.0 ** (e + scale) < held.smallest / 2)
    fewer = sum(n for e, n in row.items() if held.smallest / 2 <= 2.0 ** (e + scale) < held.smallest_normal)
    return zero / total, fewer / total, sum(n for e, n in row.items() if 2.0 ** (e + scale) > held.max) / total


def good(row: Mapping[int, int], held: Format) -> list[int]:
    """The scales that make nothing infinite, and as little zero as any of them."""
    safe = [s for s in range(MOST + 1) if not shares(row, s, held)[2]]
    least = min(shares(row, s, held)[0] for s in safe)
    return [s for s in safe if shares(row, s, held)[0] <= max(least, 0.0005)]
