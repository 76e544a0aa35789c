"""The results of a launch: records, logs and errors of every rank, saved and loaded as JSON."""

from __future__ import annotations

import html
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from . import jobs
from .results import RankResult, launcher_statuses, read_ranks, values_of
from .units import readable, span, unit_of_name

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
    def here(cls, machine: str) -> Provenance:
        """Measured now, on `machine`."""
        return cls("measured", machine, _versions(), time.strftime("%Y-%m-%d"))


@cache
def _versions() -> Mapping[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    try:
        versions["torch"] = version("torch")
    except PackageNotFoundError:
        pass
    return versions


@dataclass(frozen=True)
class Verdict:
    """What a comparison of two measurements says: `shown`, `not shown` or `contradicted`, and the sentence with its numbers."""

    status: str
    detail: str

    def __bool__(self) -> bool:
        raise TypeError("a Verdict has three values; give it to claim(), or look at .status")


class Samples:
    """Repeated measurements of one quantity, with the median and the quartiles that figures draw.

    Comparisons look at the same bars the reader sees. A is *shown* to be smaller than B when the upper quartile of A lies
    below the lower quartile of B, and *contradicted* when the bars lie apart the other way round and the medians
    differ by more than 10%. Anything else is *not shown*: a busy machine then gives no red cell. With a factor, it takes the factor
    to be shown, and the opposite direction to be contradicted.
    """

    def __init__(self, values: Iterable[float], name: str = "", provenance: Provenance | None = None):
        self.values = tuple(float(v) for v in values)
        self.name = name
        self.provenance = provenance or Provenance()
        if not self.values:
            raise ValueError(f"no samples of {name or 'this quantity'}: did a rank report it?")

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def q1(self) -> float:
        return self._quantile(0.25)

    @property
    def q3(self) -> float:
        return self._quantile(0.75)

    def _quantile(self, q: float) -> float:
        ordered = sorted(self.values)
        at = q * (len(ordered) - 1)
        low = math.floor(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    def __len__(self) -> int:
        return len(self.values)

    def map(self, function: Callable[[float], float], name: str = "") -> Samples:
        """The same samples in another unit, for example `step_s.map(lambda s: 64 / s, "images_per_s")`."""
        return Samples((function(v) for v in self.values), name or self.name, self.provenance)

    def faster_than(self, other: Samples, factor: float = 1.0) -> Verdict:
        """Both are times. Shown when `other` takes at least `factor` times as long as this; contradicted when it takes less time than this."""
        return _compare(self, other, f"{_span(self)} against {_span(other)}", factor)

    def more_than(self, other: Samples, factor: float = 1.0) -> Verdict:
        """Both are rates or sizes. Shown when this is at least `factor` times `other`; contradicted when it is less than `other`."""
        return _compare(other, self, f"{_span(self)} against {_span(other)}", factor)

    def not_slower_than(self, other: Samples) -> Verdict:
        """Both are times. Shown when the median of this lies below the upper quartile of `other`."""
        detail = f"{_span(self)} against {_span(other)}"
        if self.median <= other.q3:
            return Verdict("shown", detail)
        return _compare(self, other, detail)

    def near(self, expected: float, within: float) -> Verdict:
        """Shown when the median is within the fraction `within` of `expected`; contradicted when the bar is off by three times that."""
        error = abs(self.median - expected) / abs(expected)
        nearest = min(max(expected, self.q1), self.q3)
        off = abs(nearest - expected) / abs(expected)
        status = "shown" if error <= within else "contradicted" if off > 3 * within else "not shown"
        return Verdict(status, f"{_span(self)} against {readable(unit_of_name(self.name), expected)}, {error:.0%} apart")

    def __repr__(self) -> str:
        return f"<{self.name or 'samples'}: {_span(self)}, {len(self)} values, {self.provenance.kind}>"


def _span(samples: Samples) -> str:
    return span(unit_of_name(samples.name), samples.median, samples.q1, samples.q3)


def _compare(small: Samples, large: Samples, detail: str, factor: float = 1.0) -> Verdict:
    if small.q3 * factor < large.q1:
        return Verdict("shown", detail)
    if small.q1 > large.q3 and small.median > 1.1 * large.median:
        return Verdict("contradicted", detail)
    return Verdict("not shown", detail)


@dataclass
class Run:
    """What a launch left: a `RankResult` for each rank, the wall time and the command that repeats it by hand."""

    ranks: list[RankResult]
    script: str
    args: list[str]
    command: str
    engine: str
    placement: str
    wall_s: float
    path: str
    outcome: str = "finished"  # finished, failed, timeout, interrupted; of a job also waiting, running, cancelled, lost, or dry for one that was only written
    provenance: Provenance = field(default_factory=Provenance)
    job: dict[str, str] | None = None  # of Slurm: its id, state, reason and nodes, in Slurm's words

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def ok(self) -> bool:
        return self.outcome == "finished" and all(r.ok for r in self.ranks)

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records of all ranks, each with its `rank`."""
        return [{"rank": r.rank, **record} for r in self.ranks for record in r.records]

    def values(self, key: str, **where: Any) -> list[Any]:
        """What was reported as `key`, rank by rank in the order of reporting, from the records in which every `where` holds."""
        return values_of(self.records, key, where)

    def value(self, key: str, **where: Any) -> Any:
        """The last value reported as `key`."""
        return self.values(key, **where)[-1]

    def samples(self, key: str, **where: Any) -> Samples:
        """All numbers reported as `key`, as `Samples`."""
        return Samples(self.values(key, **where), key, self.provenance)

    def log(self, rank: int = 0) -> str:
        """Everything that a rank printed."""
        return Path(self.ranks[rank].log).read_text(errors="replace")

    def save(self, path: str | Path) -> None:
        """Write this run as JSON; `Run.load` reads it."""
        Path(path).write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: str | Path) -> Run:
        raw = json.loads(Path(path).read_text())
        raw["ranks"] = [RankResult(**r) for r in raw["ranks"]]
        raw["provenance"] = Provenance(**raw["provenance"])
        return cls(**raw)

    def refresh(self, wait_s: float = 0.0) -> Run:
        """Look again at a job that was left to itself (`detach`), for at most `wait_s` seconds until it ends; keeps and returns what is known now.

        Raises ValueError for a run that is no job of Slurm.
        """
        if self.job is None:
            raise ValueError("only a job of Slurm can be looked at again; this run ended with its launch")
        until = time.monotonic() + wait_s
        while True:
            now = jobs.outcome(self.job["id"], self.path)
            ended = now["cause"] not in ("waiting", "running")
            if ended or time.monotonic() >= until:
                break
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        self.job, self.wall_s = now["job"], now["wall_s"]
        self.ranks = read_ranks(Path(self.path), self.world_size, launcher_statuses(Path(self.path), self.world_size, now["code"] == 0))
        self.outcome = now["cause"] or ("finished" if all(r.ok for r in self.ranks) else "failed")
        self.save(Path(self.path, "run.json"))
        return self

    def table(self) -> list[tuple[str, ...]]:
        """One row a rank: rank, how it ended, records, last values."""
        rows: list[tuple[str, ...]] = []
        yet = {"waiting": "waits", "running": "runs", "dry": "not started"}.get(self.outcome)
        for r in self.ranks:
            last: dict[str, Any] = {}
            for record in r.records:
                last.update({k: v for k, v in record.items() if k not in ("time", "progress") and not isinstance(v, list)})
            shown = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in list(last.items())[:6])
            rows.append((f"{r.rank} on {r.node}" if r.node else str(r.rank), yet or r.ended, str(len(r.records)), shown))
        return rows

    def __repr__(self) -> str:
        rows = [("rank", "ended", "records", "last values"), *self.table()]
        return f"{self._headline()}\n" + _columns(rows) + f"\nby hand: {self.command}"

    def _headline(self) -> str:
        how = f"{self.engine} job {self.job['id']}" if self.job else self.engine
        return f"{Path(self.script).name}: {self.world_size} ranks, {how}, {'' if math.isnan(self.wall_s) else f'{self.wall_s:.2f} s, '}{self.outcome}"

    def _repr_html_(self) -> str:
        head = "<tr><th>rank</th><th>ended</th><th>records</th><th style='text-align:left'>last values</th></tr>"
        body = "".join("<tr>" + "".join(f"<td style='text-align:left'>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self.table())
        return f"<p>{html.escape(self._headline())}</p><table>{head}{body}</table><p>By hand: <code>{html.escape(self.command)}</code></p>"


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


@dataclass
class Sweep:
    """The runs of a sweep: for each point (a dict of what varied) its repeats."""

    points: list[dict[str, Any]]
    runs: list[list[Run]]  # runs[i] are the repeats of points[i]

    def at(self, **point: Any) -> list[Run]:
        """The repeats of the one point in which every given value holds."""
        found = [runs for p, runs in zip(self.points, self.runs, strict=True) if all(p.get(k) == v for k, v in point.items())]
        if len(found) != 1:
            raise KeyError(f"{len(found)} points of the sweep match {point}; points are {self.points}")
        return found[0]

    def samples(self, key: str, **point: Any) -> Samples:
        """One sample a repeat (the median of what that run reported as `key`), so the spread is that between launches."""
        runs = self.at(**point)
        return Samples((run.samples(key).median for run in runs), key, runs[0].provenance)

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("point", "repeats", "wall_s")]
        for point, runs in zip(self.points, self.runs, strict=True):
            rows.append((str(point), str(len(runs)), f"{statistics.median(run.wall_s for run in runs):.2f}"))
        return _columns(rows)
