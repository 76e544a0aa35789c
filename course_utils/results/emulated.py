"""What an emulated launch leaves: what the modelled GPUs did on the virtual clock, and what lay in their memory."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..show.units import counted
from .spans import Interval, Span

IN_SHORT = "Modelled GPUs: times and memory are theirs, and what large tensors held was not computed."  # of a run
# What the spans of a rank's file are called on a timeline. Work of another kind counts as compute.
_WHAT = {"communication": "communication", "waiting": "waiting", "copy": "loading"}
_STEP = ("step", "ProfilerStep")  # what a program calls its steps, as `traces.load` reads them
_OPTIMIZER = "Optimizer.step"


class Mark(NamedTuple):
    """What the program called a stretch of its work: `first` to `last` (not included) count the spans queued meanwhile;
    the times are the host's."""

    name: str
    first: int
    last: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Emulated:
    """The virtual clock and the memory of all ranks of one launch. Seconds and bytes are modelled."""

    folder: Path
    cluster: str
    ranks: int

    @cached_property
    def found(self) -> list[dict[str, Any]]:
        """What each rank left at its end. Raises FileNotFoundError for a rank that was killed before."""
        files = [self.folder / f"rank{rank}.emulated.json" for rank in range(self.ranks)]
        if missing := [rank for rank, file in enumerate(files) if not file.exists()]:
            who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
            raise FileNotFoundError(f"{who} left no timeline in {self.folder}: only a program that ends leaves one")
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    @property
    def seconds(self) -> float:
        """When the last rank, and the last of the GPUs, had done all."""
        return float(max(end for end, _ in self.peaks()))

    def peaks(self) -> list[tuple[float, int]]:
        """When each rank and its GPU had done all, in seconds, and the bytes of its memory's fullest moment."""
        ends = [max([rank["host_s"], *(span[3] for span in rank["spans"])]) for rank in self.found]
        return [(end, int(rank["peak_bytes"])) for end, rank in zip(ends, self.found, strict=True)]

    @property
    def memory_bytes(self) -> int:
        """What one of the GPUs can hold."""
        return int(self.found[0]["limit_bytes"])

    def flops(self, rank: int = 0) -> float:
        """The arithmetic of all products, attention and convolutions that a rank's GPUs did, recomputation included, by
        torch's own counter."""
        return float(self.found[rank]["flops"])

    def collective_bytes(self, rank: int = 0) -> dict[str, int]:
        """The bytes of a rank's collectives, by operation: each counts the whole buffer, as nccl-tests does."""
        return dict(self.found[rank]["collective_bytes"])

    def memory(self) -> dict[str, dict[str, int]]:
        """What lay in the memory of each rank's GPU at its fullest moment, by kind, in bytes: for `figures.memory`.
        Ranks that are alike share an entry."""
        alike: dict[str, list[int]] = {}
        for rank, left in enumerate(self.found):
            parts = {kind: nbytes for kind, nbytes in sorted(left["at_peak"].items()) if nbytes}
            alike.setdefault(json.dumps(parts), []).append(rank)
        return {_listed(ranks): json.loads(parts) or {"nothing": 0} for parts, ranks in alike.items()}

    def steps(self, rank: int) -> list[Interval]:
        """When a rank's GPU worked on each step: those that the program marked with `record_function("step")`, or
        otherwise from the end of one optimizer step to the end of the next. Empty if it has neither."""
        spans, marks = self.found[rank]["spans"], self._marks(rank)
        parts = [(m.first, m.last) for m in marks if m.name == _STEP[0] or m.name.startswith(_STEP[1])]
        if not parts:
            ends = [m.last for m in marks if m.name.startswith(_OPTIMIZER)]
            parts = list(zip([0, *ends], ends, strict=False))
        within = [spans[first:last] for first, last in parts if last <= len(spans)]
        return [(min(s[2] for s in part), max(s[3] for s in part)) for part in within if part]

    def spans(self, rank: int) -> list[Span]:
        """Everything that a rank's GPU did, as (rank, start_s, end_s, what, label).

        Compute is labelled forward, backward or step (the optimizer's), if the program has these; the collectives of a
        backward pass are its buckets, and labelled with their numbers. A rank waits for others from its call of a
        collective until all have called it; it may compute meanwhile.
        """
        return sorted((rank, start, end, what, label) for _, start, end, what, label in self._labelled(rank))

    def by_gpu(self, rank: int = 0) -> list[Span]:
        """The same of a rank that has several GPUs, as (GPU, start_s, end_s, what, label); a GPU's number counts those
        of its rank."""
        return sorted(self._labelled(rank))

    def _labelled(self, rank: int) -> Iterator[Span]:
        """What a rank's GPUs did, in the order in which it was queued; each begins with the GPU's number."""
        phase = _Phases(self._marks(rank))
        for i, (kind, name, start, end, *where) in enumerate(self.found[rank]["spans"]):
            what = _WHAT.get(kind, "compute")
            label = phase.bucket(i, name) if what == "communication" else "" if what == "waiting" else phase(i)
            yield int(where[0]) if where else 0, start, end, what, label

    def save_trace(self, path: str | Path) -> Path:
        """Write the timeline of all ranks as a Chrome trace, with every operator, which ui.perfetto.dev opens. A rank
        is a process there; its compute, communication and waiting are lines, and so is what the program marked."""
        events: list[dict[str, Any]] = []
        lines = {"marks": 0}
        for rank, left in enumerate(self.found):
            events.append(_event("M", rank, 0, "process_name", args={"name": f"rank {rank}, emulated {self.cluster}"}))
            for kind, name, start, end, *_ in left["spans"]:
                line = lines.setdefault(kind, len(lines))
                events.append(_event("X", rank, line, name.removeprefix("aten::"), start, end, cat=kind))
            for mark in self._marks(rank):
                events.append(_event("X", rank, 0, mark.name, mark.start_s, mark.end_s, cat="marks"))
            events += [_event("M", rank, n, "thread_name", args={"name": line}) for line, n in lines.items()]
        path = Path(path)
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
        return path

    def _marks(self, rank: int) -> list[Mark]:
        return [Mark(*mark) for mark in self.found[rank]["marks"]]

    def __repr__(self) -> str:
        return f"<emulated {self.cluster}: {counted(self.ranks, 'rank')}, {self.seconds:.4g} s modelled>"


class _Phases:
    """What the program did when it queued a span: backward, the optimizer's step, or else forward. Empty if it did
    neither of the two."""

    def __init__(self, marks: list[Mark]):
        self.parts = {
            "backward": sorted((m.first, m.last) for m in marks if m.name == "backward"),
            "step": sorted((m.first, m.last) for m in marks if m.name.startswith(_OPTIMIZER)),
        }
        self.some = any(self.parts.values())
        self.buckets: dict[int, int] = {}  # backward pass -> collectives so far

    def __call__(self, span: int) -> str:
        for name in self.parts:
            if self._within(name, span) is not None:
                return name
        return "forward" if self.some else ""

    def bucket(self, span: int, name: str) -> str:
        """A collective's label: the number of its bucket if backward started it, otherwise its name."""
        at = self._within("backward", span)
        if at is None or name != "all_reduce":
            return name
        self.buckets[at] = self.buckets.get(at, 0) + 1
        return str(self.buckets[at])

    def _within(self, name: str, span: int) -> int | None:
        parts = self.parts[name]
        at = bisect_right(parts, (span, 1 << 62)) - 1
        return at if at >= 0 and span < parts[at][1] else None


def _listed(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    whole = len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1
    return f"each of ranks {f'{ranks[0]} to {ranks[-1]}' if whole else ', '.join(map(str, ranks))}"


def _event(ph: str, rank: int, line: int, name: str, start_s: float = 0.0, end_s: float = 0.0, **more: Any) -> Any:
    """An event of the Chrome trace format, whose times are in microseconds."""
    times = {"ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6} if ph == "X" else {}
    return {"ph": ph, "pid": rank, "tid": line, "name": name, **times, **more}
