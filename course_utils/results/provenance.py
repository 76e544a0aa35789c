"""Where a number comes from: measured here, recorded, published, predicted or emulated, on which machine and when."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

KINDS = ("measured", "recorded", "published", "predicted", "emulated")


@dataclass(frozen=True)
class Provenance:
    """Where numbers come from: one of `KINDS`, the machine in words, versions and the date."""

    kind: str = "measured"
    machine: str = "this machine"
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a provenance is one of {', '.join(KINDS)}; got {self.kind!r}")

    @classmethod
    def here(cls, machine: str, kind: str = "measured") -> Provenance:
        """Measured now, on `machine`; or emulated, on a modelled one."""
        return cls(kind, machine, _versions(), time.strftime("%Y-%m-%d"))


@cache
def _versions() -> Mapping[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    try:
        versions["torch"] = version("torch")
    except PackageNotFoundError:
        pass
    return versions
