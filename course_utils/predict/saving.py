"""How often to save a run that fails now and then."""

from __future__ import annotations

import math

from .validation import not_negative, positive


def save_interval(save_s: float, failure_s: float) -> float:
    """The seconds between saves that lose the least time, if a save stops the run for `save_s` and the run fails every
    `failure_s` on average.

    sqrt(2 save_s failure_s), valid while a save is much shorter than the time between failures. Young, "A first order
    approximation to the optimum checkpoint interval", CACM 17 (1974).
    """
    positive(save_s=save_s, failure_s=failure_s)
    return math.sqrt(2 * save_s * failure_s)


def lost_share(interval_s: float, save_s: float, failure_s: float, restart_s: float = 0.0) -> float:
    """The share of the time lost to saving every `interval_s`, to repeated work, and to restarts; 1 when the run gets
    nowhere.

    save_s/interval_s + (interval_s/2 + restart_s)/failure_s, since a failure comes halfway between saves on average.
    Young (1974), first order.
    """
    positive(interval_s=interval_s, failure_s=failure_s)
    not_negative(save_s=save_s, restart_s=restart_s)
    return min(1.0, save_s / interval_s + (interval_s / 2 + restart_s) / failure_s)


def daly_interval(save_s: float, failure_s: float) -> float:
    """The seconds of work between saves that lose the least time, also where a save isn't short against `failure_s`.

    sqrt(2 d M) (1 + sqrt(d/2M)/3 + d/18M) - d for a save of d seconds, shorter than twice the M between failures, else
    M. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006), eq. 37.
    """
    positive(save_s=save_s, failure_s=failure_s)
    if save_s >= 2 * failure_s:
        return failure_s
    small = save_s / (2 * failure_s)
    return math.sqrt(2 * save_s * failure_s) * (1 + math.sqrt(small) / 3 + small / 9) - save_s


def lost_to_failures(interval_s: float, save_s: float, failure_s: float, restart_s: float = 0.0) -> float:
    """The share of the time lost when every `interval_s` of work is saved and failures come by chance, at any moment,
    while saving and restarting too; `lost_share` is its first order.

    1 - t / (M e^(R/M) (e^((t+d)/M) - 1)) for an interval t, a save d, a restart R and M seconds between failures. Daly
    (2006), eq. 20.
    """
    positive(interval_s=interval_s, failure_s=failure_s)
    not_negative(save_s=save_s, restart_s=restart_s)
    risk = (interval_s + save_s) / failure_s
    if risk + restart_s / failure_s > 700:  # beyond what a float holds
        return 1.0
    return 1 - interval_s / (failure_s * math.exp(restart_s / failure_s) * math.expm1(risk))
