"""One way up: the lesson's first program, changed step by step (`programs/14_steps.toml`)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from .toy import NAIVE

STEPS = NAIVE.with_name("14_steps.toml")


@dataclass(frozen=True)
class Step:
    """A program on the way up, and why it's faster than the one before."""

    name: str
    why: str
    program: str


def way_up() -> list[Step]:
    """All programs, from the slowest on. Raises ValueError for a change that doesn't fit the program before."""
    program = NAIVE.read_text(encoding="utf-8")
    found = [Step("naive", "", program)]
    for row in tomllib.loads(STEPS.read_text(encoding="utf-8"))["step"]:
        for change in row["change"]:
            if program.count(change["was"]) != 1:
                raise ValueError(f"{row['name']}: {change['was']!r} occurs {program.count(change['was'])} times")
            program = program.replace(change["was"], change["is"])
        found.append(Step(row["name"], row["why"], program))
    return found
