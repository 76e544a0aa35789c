"""Read `data/published.json`: results that other people published, for the course to compare with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..folders import COURSE

PATH = COURSE / "data" / "published.json"
EMULATED = PATH.with_name("emulated_cases.json")  # what the emulated cluster was fitted to, and is judged by
ROLES = ("identity", "validation", "rule", "bound", "calibration", "counterexample")


@dataclass(frozen=True)
class Case:
    """One published number: what was measured with which `inputs`, where it's published, and what we use it for.

    `cls` names the kind of experiment, and so the keys of `inputs`. `expected_rel_err` is the largest relative error
    that the cost model may have on it (for a counterexample: the error it's known to have; None for a bound). `role`
    is one of `ROLES`.
    """

    id: str
    cls: str
    source: str
    inputs: Mapping[str, Any]
    observed: float
    unit: str
    expected_rel_err: float | None
    role: str
    note: str = ""
    label: str = ""  # a few words for the legend of a figure

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"{self.id}: the role must be one of {', '.join(ROLES)}; got {self.role!r}")


class Point(NamedTuple):
    """A published speed-up: `n` GPUs did `speedup` times the work per second of one."""

    label: str
    n: int
    speedup: float
    source: str


def load(path: Path = PATH) -> list[Case]:
    """All published cases, in the order of the file. Raises FileNotFoundError where there is no such file."""
    if not path.is_file():
        raise FileNotFoundError(
            f"no published results at {path}: they come with the course's folder, so install the package from there:"
            " `pip install .`"
        )
    return [Case(**raw) for raw in json.loads(path.read_text(encoding="utf-8"))]


def cases(cls: str | None = None, prefix: str = "") -> list[Case]:
    """The cases of one class, or with an id that starts with `prefix`, or both. Raises KeyError when there is none."""
    everything = load()
    found = [case for case in everything if (cls is None or case.cls == cls) and case.id.startswith(prefix)]
    if not found:
        known = ", ".join(sorted({case.cls for case in everything}))
        raise KeyError(
            f"no published case with class {cls!r} and an id that starts with {prefix!r}; classes are {known}"
        )
    return found


def ddp_scaling() -> list[Point]:
    """Published speed-ups of data-parallel training on the GPUs of one machine: the rate on n GPUs over that on one."""
    return [
        Point(case.label or case.id, case.inputs["n"], case.observed / case.inputs["thr1"], case.source)
        for case in cases("ddp_overlap")
    ]
