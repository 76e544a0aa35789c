"""Read `data/recorded/`: earlier runs on hardware that the reader may not have.

Each file, `NAME.MACHINE.json`, has one `Run` or `Sweep` of a lesson, with its program, versions and date. It holds what
the ranks reported, and nothing that names a user, a host or a path. `make record` writes one for every cell of a lesson
that is tagged `record=VARIABLE` (`tools/record.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..folders import COURSE
from .provenance import Provenance
from .rank_result import RankResult
from .run import Run
from .sweep import Sweep

FOLDER = COURSE / "data" / "recorded"


def sweeps(name: str, folder: str | Path = FOLDER) -> list[Sweep]:
    """The recorded sweeps of this name, one for each machine. Their samples say *recorded on* that machine. Empty when
    there is none."""
    return [Sweep(points, runs) for points, runs in _read(name, folder) if points is not None]


def runs(name: str, folder: str | Path = FOLDER) -> list[Run]:
    """The recorded runs of this name, one for each machine. Empty when there is none."""
    return [found[0][0] for points, found in _read(name, folder) if points is None]


def _read(name: str, folder: str | Path) -> list[tuple[list[dict[str, Any]] | None, list[list[Run]]]]:
    found = []
    for path in sorted(Path(folder).glob(f"{name}.*.json")):
        raw = json.loads(path.read_text(encoding="utf-8"))
        blocks = [[_run(raw, block["args"], repeat) for repeat in block["repeats"]] for block in raw["points"]]
        found.append(([block["point"] for block in raw["points"]] if raw["kind"] == "sweep" else None, blocks))
    return found


def _run(raw: Mapping[str, Any], args: list[str], repeat: Mapping[str, Any]) -> Run:
    ranks = [RankResult(i, 0, records=records) for i, records in enumerate(repeat["ranks"])]
    provenance = Provenance("recorded", raw["machine"], raw["versions"], raw["date"])
    return Run(
        ranks, raw["script"], args, "", raw["engine"], raw["placement"], repeat["wall_s"], "", provenance=provenance
    )
