"""What the ranks of a launch leave in its folder: how each of them ended, what it reported, where it stood."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A launcher's closing table; what torchrun says of a rank that could not speak for itself.
_FAILURE = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+)")


class NotReported(KeyError):
    """A value was asked for that no rank reported. Jupyter shows the message alone."""

    def __str__(self) -> str:
        return str(self.args[0])

    def _render_traceback_(self) -> list[str]:
        return [f"NotReported: {self}"]


def values_of(records: list[dict[str, Any]], key: str, where: dict[str, Any]) -> list[Any]:
    found = [rec[key] for rec in records if key in rec and all(rec.get(k) == v for k, v in where.items())]
    if not found:
        names = sorted({k for rec in records for k in rec} - {"rank", "time", "progress"})
        told = f"reported were: {', '.join(names)}" if names else "nothing was reported"
        raise NotReported(f"no record has {key!r}" + (f" with {where}" if where else "") + f"; {told}")
    return found


@dataclass
class RankResult:
    """One rank of a launch: how it ended, what it reported, and what it printed (`log` is the path of that)."""

    rank: int
    exitcode: int | None = None
    signal: str | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""
    error: dict[str, Any] | None = None  # {"time", "type", "message", "traceback"}
    stack: str | None = None  # where it stood when the launch was stopped
    node: str = ""  # the name of its machine, when it ran on a cluster

    @property
    def ok(self) -> bool:
        return self.exitcode == 0

    def values(self, key: str, **where: Any) -> list[Any]:
        """What this rank reported as `key`, in the order of reporting, from the records in which every `where` holds."""
        return values_of(self.records, key, where)

    @property
    def ended(self) -> str:
        if self.signal:
            return f"killed by {self.signal}"
        if self.error:
            return str(self.error["type"])
        return "finished" if self.ok else f"exit code {self.exitcode}" if self.exitcode is not None else "stopped"


def read_ranks(
    folder: Path, world_size: int, statuses: Mapping[int, Mapping[str, Any]], records: Sequence[list[dict[str, Any]]] | None = None
) -> list[RankResult]:
    """What the ranks of a launch left in its folder. `statuses` are their ends (exitcode, signal), `records` what was already read of their reports."""
    ranks, on_cluster = [], (folder / "job.sbatch").exists()
    for rank in range(world_size):
        log, error, stack = (folder / f"rank{rank}.{kind}" for kind in ("log", "error.json", "stack"))
        log.touch()
        status = statuses.get(rank, {})
        result = RankResult(rank, status.get("exitcode"), status.get("signal"), records[rank] if records else _reported(folder / f"rank{rank}.jsonl"), str(log))
        if error.exists() and not result.ok:
            result.error = json.loads(error.read_text())
            with open(log, "r+") as file:
                if not file.read().endswith(result.error["traceback"]):
                    file.write(result.error["traceback"])
        if stack.exists() and stack.stat().st_size:
            result.stack = stack.read_text(errors="replace")
        elif stack.exists() and not on_cluster:  # where it may yet be written to
            stack.unlink()
        if on_cluster and (place := folder / f"rank{rank}.pid").exists():
            result.node = "".join(place.read_text().split()[1:2])
        ranks.append(result)
    return ranks


def _reported(path: Path) -> list[dict[str, Any]]:
    records = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue  # the last line of a rank that was killed while it wrote
    return records


def launcher_statuses(folder: Path, world_size: int, ended_well: bool) -> dict[int, dict[str, Any]]:
    """How the ranks ended that a torchrun started, on one node or on several: all well, or as it says of those that it saw fail."""
    if ended_well:
        return {rank: {"exitcode": 0, "signal": None} for rank in range(world_size)}
    found = {}
    for path in [folder / "launcher.log", *folder.glob("node*.log")]:
        for rank, code in _FAILURE.findall(path.read_text(errors="replace")) if path.exists() else ():
            name = signal.Signals(-int(code)).name if -int(code) in set(signal.Signals) else None
            found[int(rank)] = {"exitcode": int(code), "signal": name}
    return found
