"""Speed-up over ranks: the two classical laws, how to fit them to real runs, and what waiting for the slowest rank
costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from .validation import count, not_negative, positive

# Find what holds up a step, from the seconds of its parts, and how much a faster part could gain.

INPUT, COMPUTE, UPDATE = "input", "compute", "update"
KINDS = {"load": INPUT, "move": INPUT, "forward": COMPUTE, "backward": COMPUTE, "optimizer": UPDATE}
_WORDS = {
    INPUT: (
        "getting the images to the device",
        "speed up loading first (lesson 02): more ranks would all wait for images",
    ),
    COMPUTE: ("computing, forward and backward", "more devices help: each computes a part of the images"),
    UPDATE: (
        "updating the weights",
        "try larger batches, or sharding (lesson 10): more ranks don't help, since each one updates all the weights",
    ),
}


@dataclass(frozen=True)
class Bottleneck:
    """The kind of work that takes most of a step: its `share` (0 to 1), and `at_most`, how many times as fast a step
    would be without it."""

    kind: str
    seconds: float
    share: float
    at_most: float

    def __str__(self) -> str:
        what, cure = _WORDS[self.kind]
        gain = (
            f"without it a step would be {self.at_most:.3g} times as fast"
            if self.share < 0.99
            else "there's hardly anything else"
        )
        return f"The bottleneck is {what}: {self.share:.0%} of a step ({gain}). So {cure}."


def speedup_without(parts_s: Mapping[str, float], *names: str) -> float:
    """How many times as fast everything gets when the named parts take no time: the most you can gain by making them
    faster.

    total / (total - named), which is Amdahl's law for a part that becomes infinitely fast; infinite when nothing else
    is left. Raises KeyError for an unknown part.
    """
    if missing := set(names) - set(parts_s):
        raise KeyError(f"there is no part {sorted(missing)[0]!r}; the parts are {', '.join(parts_s)}")
    total = sum(parts_s.values())
    left = sum(seconds for name, seconds in parts_s.items() if name not in names)
    return total / left if left > 0 else float("inf")


def bottleneck(parts_s: Mapping[str, float]) -> Bottleneck:
    """Find the kind of work (input, compute, update) that takes most of a step, from the seconds of load, move,
    forward, backward and optimizer.

    Load and move count together, because the device has no images during either; so do forward and backward. Raises
    ValueError for any other part, or when nothing took any time.
    """
    if unknown := set(parts_s) - set(KINDS):
        raise ValueError(f"the parts of a step are {', '.join(KINDS)}; got {sorted(unknown)[0]!r}")
    not_negative(**parts_s)
    total = sum(parts_s.values())
    if not total > 0:
        raise ValueError("no part of the step took any time")
    sums = {kind: sum(s for name, s in parts_s.items() if KINDS[name] == kind) for kind in (INPUT, COMPUTE, UPDATE)}
    kind = max(sums, key=lambda k: sums[k])
    return Bottleneck(
        kind,
        sums[kind],
        sums[kind] / total,
        speedup_without(parts_s, *(name for name in parts_s if KINDS[name] == kind)),
    )


def amdahl(n: int, serial: float) -> float:
    """Speed-up of a fixed amount of work on `n` ranks when the fraction `serial` (0 to 1) of it can't be split.

    1 / (serial + (1 - serial) / n). Amdahl, "Validity of the single processor approach", AFIPS 1967.
    """
    _ranks_and_share(n, serial)
    return 1 / (serial + (1 - serial) / n)


def gustafson(n: int, serial: float) -> float:
    """Speed-up when every rank brings its own share of work, and `serial` (0 to 1) is the unsplit fraction of the time
    on `n` ranks.

    n - serial * (n - 1). Gustafson, "Reevaluating Amdahl's law", CACM 31(5), 1988.
    """
    _ranks_and_share(n, serial)
    return n - serial * (n - 1)


def efficiency(speedup: float, n: int) -> float:
    """The speed-up as a fraction of the ideal one, `n`."""
    _ranks_and_share(n, 0.0)
    return speedup / n


def karp_flatt(speedup: float, n: int) -> float:
    """The serial fraction that would explain one measured `speedup` on `n` ranks (2 or more).

    (1/speedup - 1/n) / (1 - 1/n). If it grows with `n`, you're not losing to serial work but to an overhead that grows,
    such as communication. It's below zero for a speed-up above `n`. Karp and Flatt, "Measuring parallel processor
    performance", CACM 33(5), 1990.
    """
    count(2, n=n)
    positive(speedup=speedup)
    return (1 / speedup - 1 / n) / (1 - 1 / n)


@dataclass(frozen=True)
class AmdahlFit:
    """A fit of `serial_s + split_s / n` to measured times. `worst` is the largest relative error of the fit."""

    serial_s: float
    split_s: float
    worst: float

    @property
    def serial(self) -> float:
        """The serial fraction (0 to 1) of the time on one rank."""
        return self.serial_s / (self.serial_s + self.split_s)

    def time_s(self, n: int) -> float:
        """Seconds on `n` ranks."""
        count(n=n)
        return self.serial_s + self.split_s / n

    def speedup(self, n: int) -> float:
        """Speed-up on `n` ranks over one."""
        return self.time_s(1) / self.time_s(n)


def fit_amdahl(times_s: Mapping[int, float]) -> AmdahlFit:
    """Fit the serial and the split part of a program to its seconds on two or more rank counts: `fit_amdahl({1: 10.0,
    2: 5.6, 4: 3.4})`.

    Least squares of t(n) = serial_s + split_s / n on relative errors, with neither part below zero.
    Raises ValueError for fewer than two rank counts.
    """
    if len(times_s) < 2:
        raise ValueError(f"a fit needs times for at least two rank counts; got {len(times_s)}")
    for n, seconds in times_s.items():
        count(ranks=n)
        positive(**{f"time on {n} ranks": seconds})
    # Relative errors: each equation (serial + split/n) / t = 1 has the same weight.
    rows = [(1 / t, 1 / (n * t)) for n, t in times_s.items()]
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = sum(r[0] for r in rows), sum(r[1] for r in rows)
    determinant = aa * bb - ab * ab
    serial_s, split_s = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if serial_s < 0:
        serial_s, split_s = 0.0, b1 / bb
    elif split_s < 0:
        serial_s, split_s = a1 / aa, 0.0
    worst = max(abs((serial_s + split_s / n) / t - 1) for n, t in times_s.items())
    return AmdahlFit(serial_s, split_s, worst)


def slowest_of(n: int, variation: float) -> float:
    """How many times as long the slowest of `n` ranks takes as the average one. A synchronous step waits for it.

    1 + variation * z, where `variation` is the standard deviation of a rank's step over its mean, and z is the expected
    maximum of `n` normal numbers, by Blom's approximation: the quantile (n - 0.375) / (n + 0.25). Blom, "Statistical
    estimates", 1958. It is 1 for n = 1.
    """
    count(n=n)
    not_negative(variation=variation)
    return 1.0 if n == 1 else 1 + variation * NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def _ranks_and_share(n: int, serial: float) -> None:
    if n < 1:
        raise ValueError(f"the number of ranks must be at least 1; got {n}")
    if not 0 <= serial <= 1:
        raise ValueError(f"the serial part must be a fraction from 0 to 1; got {serial}")
