"""Find what holds up a step, from the seconds of its parts, and how much a faster part could gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .validation import not_negative

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
