"""Runs that were made before, on hardware that the reader may not have: a reader and a writer of `data/recorded/`.

A file is one `Run` or `Sweep` of a lesson, `NAME.MACHINE.json`, with the program that made it, versions and date. It holds what the ranks
reported and nothing that names a user, a host or a path. `make record` writes one for every cell of a lesson that is tagged `record=VARIABLE`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .results import RankResult
from .run import Provenance, Run, Sweep

_LEFT_OUT = ("time", "progress")  # of each record
_PATH = re.compile(r"(?<![\w/:.])(?:~|/[\w.+-]+)(?:/[\w.+-]+)+")  # an absolute path, and no unit or address


def default_folder() -> Path:
    """`data/recorded` of the checkout that this package is imported from."""
    return Path(__file__).resolve().parent.parent / "data" / "recorded"


def sweeps(name: str, folder: str | Path | None = None) -> list[Sweep]:
    """The recorded sweeps of this name, one for each machine; their samples say *recorded on* that machine. Empty when there is none."""
    return [Sweep(points, runs) for points, runs in _read(name, folder) if points is not None]


def runs(name: str, folder: str | Path | None = None) -> list[Run]:
    """The recorded runs of this name, one for each machine. Empty when there is none."""
    return [found[0][0] for points, found in _read(name, folder) if points is None]


def save(name: str, result: Run | Sweep, folder: str | Path | None = None) -> Path:
    """Write a run, or a sweep, that finished; a file of the same name and machine is replaced. Returns where.

    Raises ValueError for a result with a failed run, with runs of several machines, that was itself recorded, or whose arguments or
    reports name a path.
    """
    several = isinstance(result, Sweep)
    points, repeats = (result.points, result.runs) if isinstance(result, Sweep) else ([{}], [[result]])
    everything = [run for one in repeats for run in one]
    first = everything[0].provenance
    if not all(run.ok for run in everything):
        raise ValueError(f"{name} has a run that failed; record runs that finished")
    if first.kind != "measured" or len({run.provenance.machine for run in everything}) > 1:
        raise ValueError(f"{name} is not measured on one machine: {sorted({f'{r.provenance.kind} on {r.provenance.machine}' for r in everything})}")
    raw = {
        "name": name,
        "machine": first.machine,
        "versions": dict(first.versions),
        "date": first.date,
        "placement": everything[0].placement,
        "engine": everything[0].engine,
        "script": Path(everything[0].script).name,
        "source": Path(everything[0].script).read_text(encoding="utf-8").splitlines(),
        "kind": "sweep" if several else "run",
        "points": [
            {"point": point, "args": one[0].args, "repeats": [{"wall_s": run.wall_s, "ranks": [_spare(r.records) for r in run.ranks]} for run in one]}
            for point, one in zip(points, repeats, strict=True)
        ],
    }
    if named := paths(raw):
        raise ValueError(f"{name} names {', '.join(named)}: a recording is for others, so report no path and give none as an argument")
    folder = Path(folder) if folder is not None else default_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{_slug(first.machine)}.json"
    path.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    return path


def paths(raw: Any) -> list[str]:
    """The absolute paths in whatever a recording holds, without repeats, in order."""
    if isinstance(raw, str):
        return [found[0] for found in _PATH.finditer(raw)]
    inside = raw.values() if isinstance(raw, Mapping) else raw if isinstance(raw, list) else ()
    return list(dict.fromkeys(path for value in inside for path in paths(value)))


def _spare(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without their clock, and with numbers as short as they are meant."""
    return [{k: _short(v) for k, v in record.items() if k not in _LEFT_OUT} for record in records]


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _slug(machine: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")[:80]


def _read(name: str, folder: str | Path | None) -> list[tuple[list[dict[str, Any]] | None, list[list[Run]]]]:
    found = []
    for path in sorted((Path(folder) if folder is not None else default_folder()).glob(f"{name}.*.json")):
        raw = json.loads(path.read_text(encoding="utf-8"))
        blocks = [[_run(raw, block["args"], repeat) for repeat in block["repeats"]] for block in raw["points"]]
        found.append(([block["point"] for block in raw["points"]] if raw["kind"] == "sweep" else None, blocks))
    return found


def _run(raw: Mapping[str, Any], args: list[str], repeat: Mapping[str, Any]) -> Run:
    ranks = [RankResult(i, 0, records=records) for i, records in enumerate(repeat["ranks"])]
    provenance = Provenance("recorded", raw["machine"], raw["versions"], raw["date"])
    return Run(ranks, raw["script"], args, "", raw["engine"], raw["placement"], repeat["wall_s"], "", provenance=provenance)
