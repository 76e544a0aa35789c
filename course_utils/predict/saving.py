"""How often a run should save, when it is interrupted now and then."""

from __future__ import annotations

import math

from ._check import not_negative, positive


def save_interval(save_s: float, failure_s: float) -> float:
    """Seconds between saves with which least time is lost, when a save stops the run for `save_s` and it fails every `failure_s` on average.

    sqrt(2 save_s failure_s), good while a save is short against the time between failures. Young, "A first order approximation to the optimum
    checkpoint interval", CACM 17 (1974).
    """
    positive(save_s=save_s, failure_s=failure_s)
    return math.sqrt(2 * save_s * failure_s)


def lost_share(interval_s: float, save_s: float, failure_s: float, restart_s: float = 0.0) -> float:
    """The share of the time that goes into saving every `interval_s`, into work done again, and into restarts; 1 where nothing is left.

    save_s/interval_s + (interval_s/2 + restart_s)/failure_s: a failure comes in the middle of an interval on average. Young (1974), first order.
    """
    positive(interval_s=interval_s, failure_s=failure_s)
    not_negative(save_s=save_s, restart_s=restart_s)
    return min(1.0, save_s / interval_s + (interval_s / 2 + restart_s) / failure_s)
