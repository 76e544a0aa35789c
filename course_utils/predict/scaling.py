"""Speed-up over ranks: the two classical laws, and the simplest model of a data-parallel step."""

from __future__ import annotations


def amdahl(n: int, serial: float) -> float:
    """Speed-up of a fixed amount of work on `n` ranks when the fraction `serial` (0 to 1) of it cannot be split.

    1 / (serial + (1 - serial) / n). Amdahl, "Validity of the single processor approach", AFIPS 1967.
    """
    _check(n, serial)
    return 1 / (serial + (1 - serial) / n)


def gustafson(n: int, serial: float) -> float:
    """Speed-up when every rank brings its own share of work, and `serial` (0 to 1) is the unsplit fraction of the time on `n` ranks.

    n - serial * (n - 1). Gustafson, "Reevaluating Amdahl's law", CACM 31(5), 1988.
    """
    _check(n, serial)
    return n - serial * (n - 1)


def efficiency(speedup: float, n: int) -> float:
    """The speed-up as a fraction of the ideal one, `n`."""
    _check(n, 0.0)
    return speedup / n


def data_parallel_step(compute_s: float, sum_s: float, hidden: float = 0.0) -> float:
    """Seconds of a data-parallel step: `compute_s` on one rank's batch, and the sum of the gradients over all ranks, `sum_s`.

    `hidden` (0 to 1) is the fraction of the sum that runs behind the backward pass; 0 is the pessimist's answer, 1 the optimist's.
    """
    if compute_s < 0 or sum_s < 0 or not 0 <= hidden <= 1:
        raise ValueError(f"times are not negative and hidden is 0 to 1; got {compute_s}, {sum_s}, {hidden}")
    return compute_s + (1 - hidden) * sum_s


def _check(n: int, serial: float) -> None:
    if n < 1:
        raise ValueError(f"the number of ranks is at least 1; got {n}")
    if not 0 <= serial <= 1:
        raise ValueError(f"the serial part is a fraction from 0 to 1; got {serial}")
