"""What holds a step up, from the seconds of its parts, and what is left to gain when one part is made faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ._check import not_negative

INPUT, COMPUTE, UPDATE = "input", "compute", "update"
KINDS = {"load": INPUT, "move": INPUT, "forward": COMPUTE, "backward": COMPUTE, "optimizer": UPDATE}
_WORDS = {
    INPUT: ("getting the images to the device", "more ranks would all wait for images: first load them better (lesson 02)"),
    COMPUTE: ("computing, forward and backward", "more devices, each with a part of the images, make this shorter"),
    UPDATE: ("updating the weights", "every rank updates all weights, so more ranks do not shorten this: larger batches, or sharding (lesson 10), do"),
}


@dataclass(frozen=True)
class Bottleneck:
    """The kind of work that takes most of a step: `share` of it (0 to 1), and how many times as fast a step would be without it, `at_most`."""

    kind: str
    seconds: float
    share: float
    at_most: float

    def __str__(self) -> str:
        what, cure = _WORDS[self.kind]
        gain = f"without it a step would be {self.at_most:.3g} times as fast" if self.share < 0.99 else "there is hardly anything else"
        return f"The bottleneck is {what}: {self.share:.0%} of a step ({gain}). So {cure}."


def speedup_without(parts_s: Mapping[str, float], *names: str) -> float:
    """How many times as fast everything is when the named parts take no time: the most that making them faster can give.

    total / (total - named), which is Amdahl's law for a part that becomes infinitely fast; infinite when nothing else is left. Raises KeyError for
    a part that is not there.
    """
    if missing := set(names) - set(parts_s):
        raise KeyError(f"there is no part {sorted(missing)[0]!r}; there are {', '.join(parts_s)}")
    total = sum(parts_s.values())
    left = sum(seconds for name, seconds in parts_s.items() if name not in names)
    return total / left if left > 0 else float("inf")


def bottleneck(parts_s: Mapping[str, float]) -> Bottleneck:
    """The kind of work (input, compute, update) that takes most of a step, from the seconds of load, move, forward, backward and optimizer.

    Load and move count together, for both leave the device without images; so do forward and backward. Raises ValueError for another part, or
    when nothing took any time.
    """
    if unknown := set(parts_s) - set(KINDS):
        raise ValueError(f"the parts of a step are {', '.join(KINDS)}; got {sorted(unknown)[0]!r}")
    not_negative(**parts_s)
    total = sum(parts_s.values())
    if not total > 0:
        raise ValueError("no part of the step took any time")
    sums = {kind: sum(s for name, s in parts_s.items() if KINDS[name] == kind) for kind in (INPUT, COMPUTE, UPDATE)}
    kind = max(sums, key=lambda k: sums[k])
    return Bottleneck(kind, sums[kind], sums[kind] / total, speedup_without(parts_s, *(name for name in parts_s if KINDS[name] == kind)))
