"""What one launch left: records, logs and errors of every rank, saved and loaded as JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..folders import write_whole
from ..machine import busy
from ..machine.here import usable_cores
from ..show.table import ShowsTable, Table
from ..show.units import counted, readable
from ..slurm import jobs
from .emulated import IN_SHORT, Emulated
from .provenance import Provenance
from .rank_result import RankResult, launcher_statuses, read_ranks, value_of, values_of
from .samples import Samples

SCHEMA = 2  # of run.json; goes up with a change that an older course couldn't read


@dataclass(repr=False)
class Run(ShowsTable):
    """What a launch left: a `RankResult` for each rank, the wall time and the command that repeats it by hand."""

    ranks: list[RankResult]
    script: str
    args: list[str]
    command: str
    engine: str
    placement: str
    wall_s: float
    path: str
    # finished, failed, timeout, deadlock, interrupted, or dry if nothing was started; for a Slurm job also waiting,
    # running, cancelled, lost
    outcome: str = "finished"
    provenance: Provenance = field(default_factory=Provenance)
    # cores that other programs kept busy meanwhile, and cores that had nothing to do, on average; None if unknown
    others: Sequence[float] | None = None
    job: dict[str, str] | None = None  # of Slurm: its id, state, reason and nodes, in Slurm's words

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def ok(self) -> bool:
        return self.outcome == "finished" and all(r.ok for r in self.ranks)

    @property
    def disturbed(self) -> str:
        """What other programs did meanwhile, as the beginning of a sentence, if that makes this run's times too long.
        Otherwise empty, as for an emulated run. Conclude nothing from the speed of a disturbed one."""
        known = [self.others] if self.others and self.provenance.kind == "measured" else []
        return busy.disturbed(known, usable_cores())

    @property
    def emulated(self) -> Emulated:
        """The timeline and the memory of its modelled GPUs. Raises ValueError for a run on real devices."""
        if self.provenance.kind != "emulated":
            raise ValueError("this run wasn't emulated; name a cluster, as in %%ranks 8 --cluster 8xA100")
        left = sum(1 for _ in Path(self.path).glob("rank*.emulated.json"))  # more, if a rank has spawned others
        return Emulated(Path(self.path), self.provenance.machine, max(self.world_size, left))

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records of all ranks, each with its `rank`."""
        return [{"rank": r.rank, **record} for r in self.ranks for record in r.records]

    def values(self, key: str, /, **where: Any) -> list[Any]:
        """All values reported as `key`, rank by rank and in order. `where` picks records: `values("loss", epoch=2)`.
        Raises NotReported if there are none."""
        return values_of(self.records, key, where)

    def value(self, key: str, /, **where: Any) -> Any:
        """The last value that the ranks reported as `key`, if all have the same, but for rounding. Raises RanksDiffer
        otherwise: name a rank, as in `value("loss", rank=0)`, or take `values`."""
        return value_of(self.records, key, where)

    def samples(self, key: str, /, **where: Any) -> Samples:
        """All numbers reported as `key`, as `Samples`."""
        return Samples(self.values(key, **where), key, self.provenance)

    def log(self, rank: int = 0) -> str:
        """Everything that a rank printed, and the traceback that ended it. Empty for a rank that hasn't begun."""
        log, error = Path(self.ranks[rank].log), self.ranks[rank].error
        printed = log.read_text(errors="replace") if log.exists() else ""
        if error is None or error.get("printed") or printed.endswith(error["traceback"]):
            return printed
        return printed + error["traceback"]

    def save(self, path: str | Path) -> None:
        """Write this run as JSON; `Run.load` reads it. Whoever reads the file meanwhile gets the whole old one or the
        whole new one."""
        write_whole(Path(path).resolve(), json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1))

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run that `save` wrote. Raises ValueError for a file that a newer course wrote."""
        raw = json.loads(Path(path).read_text())
        schema = raw.pop("schema", 0)  # older files have no number, and are the same otherwise
        if schema > SCHEMA:
            raise ValueError(
                f"{path} was written by a newer version of this course (schema {schema}; this one reads up to"
                f" {SCHEMA}): update the course to read it"
            )
        raw["ranks"] = [RankResult(**r) for r in raw["ranks"]]
        raw["provenance"] = Provenance(**raw["provenance"])
        return cls(**raw)

    def refresh(self, wait_s: float = 0.0) -> Run:
        """Look again at a Slurm job that was started with `detach`, waiting up to `wait_s` seconds for its end. Updates
        this run and its file, and returns it.

        Raises ValueError for a run that isn't a Slurm job.
        """
        if self.job is None:
            raise ValueError("only a Slurm job can be looked at again; this run ended with its launch")
        until = time.monotonic() + wait_s
        while True:
            now = jobs.outcome(self.job["id"], self.path)
            ended = now["cause"] not in ("waiting", "running")
            if ended or time.monotonic() >= until:
                break
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        self.job, self.wall_s = now["job"], now["wall_s"]
        self.ranks = read_ranks(
            Path(self.path), self.world_size, launcher_statuses(Path(self.path), self.world_size, now["code"] == 0)
        )
        self.outcome = now["cause"] or ("finished" if all(r.ok for r in self.ranks) else "failed")
        self.save(Path(self.path, "run.json"))
        return self

    def table(self) -> Table:
        """One row a rank: rank, how it ended, what its emulated GPUs took, records, last values. No row if all ended
        well and left nothing. The command that repeats the run waits behind a click."""
        rows: list[tuple[str, ...]] = []
        yet = {"waiting": "waits", "running": "runs", "dry": "not started"}.get(self.outcome)
        modelled = self._modelled()
        for r in self.ranks:
            last: dict[str, Any] = {}
            for record in r.records:
                last.update(
                    {k: v for k, v in record.items() if k not in ("time", "progress") and not isinstance(v, list)}
                )
            shown = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in list(last.items())[:6])
            name = f"{r.rank} on {r.node}" if r.node else str(r.rank)
            reports = (str(len(r.records)), shown) if self.records else ()
            rows.append((name, yet or r.ended, *(modelled[r.rank] if modelled else ()), *reports))
        head = ("rank", "ended", *(("virtual time", "peak memory") if modelled else ()))
        head += ("records", "last values") if self.records else ()
        align = "ll" + "rr" * bool(modelled) + "rl" * bool(self.records)
        note, label = (IN_SHORT, "on real GPUs") if self.provenance.kind == "emulated" else ("", "by hand")
        more = (label, f"`{self.command}`") if self.command else None
        if self.ok and len(head) == 2:
            head, rows, align = (), [], ""
        return Table(head, rows, align, self._headline(), note, more)

    def _modelled(self) -> list[tuple[str, str]]:
        """The virtual time and the peak memory of each rank, in words; empty if they aren't known."""
        if self.provenance.kind != "emulated":
            return []
        try:
            found = self.emulated.peaks()
        except (OSError, ValueError):  # a rank was killed, or the folder is gone
            return []
        return [(readable("s", seconds), readable("bytes", nbytes)) for seconds, nbytes in found]

    def _headline(self) -> str:
        how, real = f"{self.engine} job {self.job['id']}" if self.job else self.engine, ""
        if self.provenance.kind == "emulated":
            how, real = f"emulated on {self.provenance.machine}", " of real time"
        return (
            f"{Path(self.script).name}: {counted(self.world_size, 'rank')}, {how},"
            f" {'' if math.isnan(self.wall_s) else f'{self.wall_s:.2f} s{real}, '}{self.outcome}"
        )
