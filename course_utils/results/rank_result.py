"""What the ranks of a launch leave in its folder: how each of them ended, what it reported, where it stood."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..folders import json_lines

# In torchrun's closing table, what it says about a rank that left no error itself.
_FAILURE = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+)")


ROUNDING = 1e-6  # relative; in float32 the same sum in another order differs by less


class NotReported(KeyError):
    """You asked for a value that no rank reported. Jupyter shows the message alone."""

    def __str__(self) -> str:
        return str(self.args[0])

    def _render_traceback_(self) -> list[str]:
        return [f"NotReported: {self}"]


class RanksDiffer(ValueError):
    """You asked for the value of a launch, and its ranks reported different ones. Jupyter shows the message alone."""

    def _render_traceback_(self) -> list[str]:
        return [f"RanksDiffer: {self}"]


def values_of(records: list[dict[str, Any]], key: str, where: dict[str, Any]) -> list[Any]:
    found = [rec[key] for rec in records if key in rec and all(rec.get(k) == v for k, v in where.items())]
    if not found:
        names = sorted({k for rec in records for k in rec} - {"rank", "time", "progress"})
        there = f"reported were: {', '.join(names)}" if names else "nothing was reported"
        raise NotReported(f"no record has {key!r}" + (f" with {where}" if where else "") + f"; {there}")
    return found


def value_of(records: list[dict[str, Any]], key: str, where: dict[str, Any]) -> Any:
    """The last value that each rank reported as `key`, if they're all the same but for rounding. Raises NotReported,
    or RanksDiffer."""
    values_of(records, key, where)
    last = {rec["rank"]: rec[key] for rec in records if key in rec and all(rec.get(k) == v for k, v in where.items())}
    (first, value), *others = last.items()
    other = next((rank for rank, theirs in others if not _alike(value, theirs)), None)
    if other is not None:
        chosen = "".join(f", {k}={v!r}" for k, v in where.items())
        raise RanksDiffer(
            f"the ranks differ in {key!r}: {_brief(value)} on rank {first}, {_brief(last[other])} on rank {other}."
            f" .values({key!r}{chosen}) has them all, .value({key!r}{chosen}, rank={first}) is one rank's"
        )
    return value


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=ROUNDING) or math.isnan(a) and math.isnan(b)
    return bool(a == b)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]} ..."


@dataclass
class RankResult:
    """One rank of a launch: how it ended, what it reported, and what it printed (`log` is the path of that)."""

    rank: int
    exitcode: int | None = None
    signal: str | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""
    # {"time", "type", "message", "traceback", "printed": whether the rank printed it itself}
    error: dict[str, Any] | None = None
    stack: str | None = None  # where it stood when the launch was stopped
    node: str = ""  # the name of its machine, when it ran on a cluster

    @property
    def ok(self) -> bool:
        return self.exitcode == 0

    def values(self, key: str, /, **where: Any) -> list[Any]:
        """All values that this rank reported as `key`, in order. `where` picks records: `values("loss", epoch=2)`."""
        return values_of(self.records, key, where)

    @property
    def ended(self) -> str:
        if self.signal:
            return f"killed by {self.signal}"
        if self.error:
            return str(self.error["type"])
        return "finished" if self.ok else f"exit code {self.exitcode}" if self.exitcode is not None else "stopped"


def gather(
    folder: Path,
    world_size: int,
    outcome: Mapping[str, Any],
    records: Sequence[list[dict[str, Any]]],
    by_torchrun: bool,
) -> tuple[list[RankResult], str]:
    """The ranks of a launch that has ended, with this `outcome` of what watched them, and in a word how it ended:
    "finished", "failed", or what ended it."""
    statuses: dict[int, dict[str, Any]] = {int(rank): status for rank, status in outcome["ranks"].items()}
    if by_torchrun:
        statuses = launcher_statuses(folder, world_size, statuses.get(-1, {}).get("exitcode") == 0)
    ranks = read_ranks(folder, world_size, statuses, records)
    return ranks, outcome["cause"] or ("finished" if all(rank.ok for rank in ranks) else "failed")


def read_ranks(
    folder: Path,
    world_size: int,
    statuses: Mapping[int, Mapping[str, Any]],
    records: Sequence[list[dict[str, Any]]] | None = None,
) -> list[RankResult]:
    """What the ranks of a launch left in its folder. `statuses` says how they ended (exitcode, signal); `records` are
    their reports, if they have been read already.

    Once all ranks have ended, the traceback that ended a rank is added to its log. If a job may still run on a cluster,
    its files stay as they are, because its ranks may be writing to them.
    """
    ranks, on_cluster = [], (folder / "job.sbatch").exists()
    may_run = on_cluster and not (folder / "exitcode").exists()  # the job's script writes it at its end
    for rank in range(world_size):
        log, error, stack = (folder / f"rank{rank}.{kind}" for kind in ("log", "error.json", "stack"))
        status = statuses.get(rank, {})
        result = RankResult(
            rank,
            status.get("exitcode"),
            status.get("signal"),
            records[rank] if records else [*json_lines(folder / f"rank{rank}.jsonl")],
            str(log),
        )
        if error.exists() and not result.ok:
            result.error = json.loads(error.read_text())
            if not may_run and not result.error.get("printed"):
                with suppress(OSError):  # a full disk; `Run.log` adds it
                    _append(log, result.error["traceback"])
        if stack.exists() and stack.stat().st_size:
            result.stack = stack.read_text(errors="replace")
        elif stack.exists() and not on_cluster:  # where a rank may still write to it
            stack.unlink()
        if on_cluster and (place := folder / f"rank{rank}.pid").exists():
            result.node = "".join(place.read_text().split()[1:2])
        ranks.append(result)
    return ranks


def _append(log: Path, traceback: str) -> None:
    """Write the traceback at the end of a log, unless it's there already."""
    said = traceback.encode(errors="backslashreplace")
    with open(log, "a+b") as file:
        file.seek(max(0, file.tell() - len(said)))
        if file.read() != said:
            file.write(said)


def launcher_statuses(folder: Path, world_size: int, ended_well: bool) -> dict[int, dict[str, Any]]:
    """How the ranks ended that torchrun started, on one node or on several. If not all ended well, these are only the
    ones that torchrun saw fail."""
    if ended_well:
        return {rank: {"exitcode": 0, "signal": None} for rank in range(world_size)}
    found = {}
    for path in [folder / "launcher.log", *folder.glob("node*.log")]:
        for rank, code in _FAILURE.findall(path.read_text(errors="replace")) if path.exists() else ():
            name = signal.Signals(-int(code)).name if -int(code) in set(signal.Signals) else None
            found[int(rank)] = {"exitcode": int(code), "signal": name}
    return found
