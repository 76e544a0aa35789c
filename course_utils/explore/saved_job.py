"""A job that saves and fails now and then, moment by moment: what `explore.checkpoints()` draws."""

from __future__ import annotations

import random

from ..units import number


def stretch(work: float, save: float, failure: float, restart: float, length: float) -> list[tuple[str, float, float]]:
    """What a job does from 0 to `length`, as (what, start, end): work between saves, saves, and after a failure a
    restart; what wasn't saved by then is lost. All in one unit of time."""
    dice, now, found = random.Random(3), 0.0, []
    fails = dice.expovariate(1 / failure)
    while now < length:
        ready = now + work + save
        if fails >= ready:
            found += [("work that counts", now, now + work), ("saving", now + work, ready)]
            now = ready
            continue
        found += [("work lost", now, fails)] if fails > now else []
        now = max(now, fails)
        found.append(("restart", now, now + restart))
        now += restart
        fails = now + dice.expovariate(1 / failure)
    return [(what, start, min(end, length)) for what, start, end in found if start < length]


def time_words(seconds: float) -> str:
    for size, unit in ((2 * 86400, "days"), (2 * 3600, "h"), (120, "min")):
        if seconds >= size:
            each = {"days": 86400, "h": 3600, "min": 60}[unit]
            return f"{number(float(f'{seconds / each:.2g}') if seconds / each < 10 else round(seconds / each))} {unit}"
    return f"{number(float(f'{seconds:.2g}'))} s"


def share_words(share: float) -> str:
    return f"{share:.0%}" if share >= 0.0995 else f"{100 * share:.2g}%"
