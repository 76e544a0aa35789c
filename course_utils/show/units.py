"""Numbers with their units, written for people: three digits, and ms rather than 0.001 s."""

from __future__ import annotations

import math
from typing import TypeGuard


def number(value: float) -> str:
    """Three significant digits, written for people: 0.046, 4.63, 1,240."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if abs(rounded) < 1e-3:
        return f"{rounded:.2e}"
    text = f"{rounded:,.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it's a whole number. True and False are none, though Python counts with them."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it's a number: whole or not, but no True, no False and no text."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def counted(n: int, noun: str) -> str:
    """A number of things in words: `1 rank`, `2 batches`, `1,024 GPUs`."""
    many = "es" if noun.endswith("tch") else "s"
    return f"{n:,} {noun}{'' if n == 1 else many}"


def readable_unit(unit: str, largest: float) -> tuple[float, str]:
    """A factor and a unit that make `largest` easy to read: 0.046 s becomes 46 ms. For seconds, bytes and B/s only."""
    steps = {
        "s": [(1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs")],
        "bytes": [
            (2.0**30, 2.0**-30, "GiB"),
            (2.0**20, 2.0**-20, "MiB"),
            (2.0**10, 2.0**-10, "KiB"),
            (0.0, 1.0, "bytes"),
        ],
        "B/s": [(1e9, 1e-9, "GB/s"), (1e6, 1e-6, "MB/s"), (0.0, 1e-3, "kB/s")],
    }
    for least, factor, name in steps.get(unit, []):
        if largest >= least:
            return factor, name
    return 1.0, unit


def unit_of_name(name: str) -> str:
    """The unit that a measurement's name ends with, as the course names things: `step_s`, `traffic_bytes`, `copy_Bps`,
    `images_per_s`."""
    if "_per_" in name:
        what, _, per = name.rpartition("_per_")
        return f"{what.replace('_', ' ')}/{per}"
    ends = {"_s": "s", "_ms": "ms", "_us": "µs", "_bytes": "bytes", "_Bps": "B/s"}
    return next((unit for end, unit in ends.items() if name.endswith(end)), "")


def is_speed(name: str) -> bool:
    """Whether a measurement is of time or of a rate, by its name: `step_s`, `seconds`, `copy_Bps`, `images_per_s`."""
    unit = unit_of_name(name)
    return unit in ("s", "ms", "µs") or unit.endswith("/s") or name.split("_")[-1] == "seconds"


def readable(unit: str, value: float) -> str:
    """A value with the unit that makes it easy to read: `46.1 ms`, `4 MiB`, `1.2 GB/s`."""
    factor, shown = readable_unit(unit, abs(value))
    return f"{number(value * factor)} {shown}".strip()


def span(unit: str, middle: float, low: float, high: float) -> str:
    """A median with its quartiles in one readable unit: `4.63 (4.5 to 4.9) ms`."""
    factor, shown = readable_unit(unit, abs(middle))
    return f"{number(middle * factor)} ({number(low * factor)} to {number(high * factor)}) {shown}".strip()
