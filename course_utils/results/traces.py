"""Turn the profiler's trace of every rank into spans for `figures.rank_timeline`, and find how much communication hides
behind compute.

A script profiles itself with PyTorch's own profiler and marks its steps:

    with torch.profiler.profile() as prof:
        for _ in range(6):
            with torch.profiler.record_function("step"):
                ...
    prof.export_chrome_trace(trace_path())          # from course_utils.rank

The same files open in ui.perfetto.dev, where you can look at every operation.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .emulated import Emulated
from .run import Run
from .spans import Interval, Span, covered, difference, intersection, intervals, union

# Names in a trace. The profiler's format has no list of them, so this is what gloo, NCCL, autograd and the DataLoader
# write.
_GLOO = re.compile(r"(?:gloo|mpi|ucc):(?P<what>\w+)")
_NCCL = re.compile(r"nccl\w*?Kernel_(?P<what>[A-Za-z]+)")
_LOADER = re.compile(r"enumerate\(DataLoader\)|.*DataLoaderIter\.__next__")
# These end on all ranks at once: no rank can finish before all have begun.
_ALL_TOGETHER = re.compile(r"_?(all|reduce_scatter|barrier)")
_BACKWARD = ("autograd::engine::evaluate_function", "torch::distributed::reducer", "torch.distributed.ddp.reducer")
# Wrappers around other operations, or around a wait: what computes inside them has a name of its own.
_NO_COMPUTE = (
    *("autograd::", "torch::autograd", "c10d::", "gloo:", "nccl:"),
    *("torch::distributed", "torch.distributed", "record_param_comms"),
)


def load(
    run: Run | str | Path,
    steps: int | slice | Literal["typical"] | None = "typical",
    name: str = "trace",
    join_s: float = 1e-4,
    align: Literal["auto", "clock", "collectives"] = "auto",
) -> list[Span]:
    """Load the spans of all ranks, from the files that they exported to `rank.trace_path(name)`, or from a folder with
    such files.

    `steps` chooses among the steps that the script marked with `record_function("step")` or `prof.step()`: an index, a
    slice, `None` for everything, or `typical`, the step of median length. With five steps or more, the first two don't
    count as typical: DDP rebuilds its buckets in the second. A step begins when its batch is loaded. Spans are in
    seconds from the start of the first step.

    On a CPU, operators are compute, and what gloo does on its own threads is communication. On a GPU, CUDA kernels are
    compute and NCCL's are communication, and each belongs to the step that launched it. Operations less than `join_s`
    apart become one span, labelled forward, backward or step (the optimizer's); idle time is left out. If a rank is
    early, its collective includes the wait for the others; a gloo barrier is all waiting. Fetching from a DataLoader
    and copying to a GPU are loading.

    An emulated run needs no profiler: its spans are those of the virtual clock. A step is then what `record_function`
    marked, or what lies between two steps of the optimizer; gradients' collectives are labelled by their buckets; and a
    rank waits while it computes nothing and others haven't called its collective.

    Ranks on one host share its clock. Ranks on several hosts are aligned (`auto`) so that collectives end at the same
    time everywhere.

    Raises FileNotFoundError when a rank left no trace, and ValueError when the steps don't exist or ranks can't be
    aligned.
    """
    if isinstance(run, Run) and run.provenance.kind == "emulated":
        return _emulated(run.emulated, steps, join_s)
    if steps != "typical" and not (steps is None or isinstance(steps, (int, slice))):
        raise ValueError(f"steps must be an index, a slice, 'typical' or None; got {steps!r}")
    if align not in ("auto", "clock", "collectives"):
        raise ValueError(f"align must be 'auto', 'clock' or 'collectives'; got {align!r}")
    paths = _files(run, name)
    traces = [_read(rank, path) for rank, path in sorted(paths.items())]
    _set_clocks(traces, align)
    windows = {t.rank: t.steps for t in traces}
    if steps is None:
        chosen = {t.rank: [(float("-inf"), float("inf"))] for t in traces}
    else:
        chosen = _choose(windows, steps, next(iter(paths.values())))
    spans = [span for t in traces for span in t.spans(chosen[t.rank], join_s)]
    if not spans:
        raise ValueError(
            "the chosen steps hold neither compute nor communication; was the profiler on?"
            f" ({next(iter(paths.values()))})"
        )
    zero = min(s[1] for s in spans) if steps is None else min(start for found in chosen.values() for start, _ in found)
    return sorted((rank, start - zero, end - zero, what, label) for rank, start, end, what, label in spans)


def _emulated(left: Emulated, steps: int | slice | str | None, join_s: float) -> list[Span]:
    """The spans of modelled GPUs, all on one virtual clock."""
    windows = {rank: left.steps(rank) for rank in range(left.ranks)}
    spans = {rank: left.spans(rank) for rank in windows}
    if steps is None or (steps == "typical" and not any(windows.values())):
        chosen = {rank: [(0.0, float("inf"))] for rank in windows}
    else:
        chosen = _choose(windows, steps, left.folder / "rank0.emulated.json")
    found: list[Span] = []
    for rank, rows in spans.items():
        inside = [row for row in rows if _window(chosen[rank], row[1]) is not None]
        busy = _joined([(start, end, label) for _, start, end, what, label in inside if what == "compute"], join_s)
        found += [(rank, start, end, "compute", label) for start, end, label in busy]
        found += [row for row in inside if row[3] not in ("compute", "waiting")]
        idle = difference(intervals(inside, rank, "waiting"), [(start, end) for start, end, _ in busy])
        found += [(rank, start, end, "waiting", "") for start, end in idle]
    zero = min((start for _, start, *_ in found), default=0.0)
    return sorted((rank, start - zero, end - zero, what, label) for rank, start, end, what, label in found)


def overlap(spans: Iterable[Span]) -> dict[int, float]:
    """For each rank that communicates, the fraction of that time during which it also computes: 1 when all of it is
    hidden, 0 when none is.

    Takes spans from `load` or from the cost model. It says what ran at the same time, not what you gained: if both want
    the same cores, they slow each other down.
    """
    rows = list(spans)
    found = {}
    for rank in sorted({s[0] for s in rows}):
        sent = intervals(rows, rank, "communication")
        if total := covered(sent):
            found[rank] = covered(intersection(sent, intervals(rows, rank, "compute"))) / total
    return found


@dataclass
class _Event:
    start: float
    end: float
    name: str
    thread: Any
    args: dict[str, Any] = field(default_factory=dict)


class _Trace:
    """One rank's events by kind, in seconds of its host's clock."""

    def __init__(self, rank: int, raw: dict[str, Any]):
        self.rank = rank
        self.host = raw.get("host_name", "")
        base = raw.get("baseTimeNanoseconds", 0)
        # A float can't resolve nanoseconds since the epoch, so the whole seconds are kept apart.
        self.base_s, rest = base // 10**9, base % 10**9 / 1e9
        kinds: dict[str, list[_Event]] = {}
        for e in raw["traceEvents"]:
            if e.get("ph") == "X" and "ts" in e:
                start, length = float(e["ts"]) / 1e6 + rest, float(e.get("dur", 0)) / 1e6
                event = _Event(start, start + length, str(e["name"]), e.get("tid"), e.get("args", {}))
                kinds.setdefault(e.get("cat", ""), []).append(event)
        self.notes = kinds.get("user_annotation", [])
        self.ops = kinds.get("cpu_op", [])
        self.kernels = kinds.get("kernel", []) + kinds.get("gpu_memcpy", []) + kinds.get("gpu_memset", [])
        self.launches = {
            e.args["correlation"]: e
            for cat in ("cuda_runtime", "cuda_driver")
            for e in kinds.get(cat, [])
            if e.args.get("correlation")
        }
        self.sent = [(e, m["what"]) for e in self.notes if (m := _GLOO.match(e.name))]
        self.loads = [e for e in self.notes if _LOADER.match(e.name)]
        self.steps = self._steps()
        self.links = self._link_threads()

    def _steps(self) -> list[Interval]:
        marked = sorted((e.start, e.end) for e in self.notes if e.name == "step") or sorted(
            (e.start, e.end) for e in self.notes if e.name.startswith("ProfilerStep")
        )
        found, before = [], float("-inf")
        for start, end in marked:
            loaded = [e.start for e in self.loads if before <= e.start < start]
            found.append((min(loaded, default=start), end))
            before = end
        return found

    def _link_threads(self) -> set[Any]:
        """Threads that do nothing but communicate. Operators that run there belong to the collective."""
        inside = {
            thread: union((e.start, e.end) for e, _ in self.sent if e.thread == thread)
            for thread in {e.thread for e, _ in self.sent}
        }
        own = {e.thread for e in self.ops if _window(inside.get(e.thread, []), e.start) is None} | {
            e.thread for e in self.notes if not _GLOO.match(e.name)
        }
        return set(inside) - own

    def shift(self, seconds: float) -> None:
        events = [*self.notes, *self.ops, *self.kernels, *self.launches.values()]
        for e in events:
            e.start += seconds
            e.end += seconds
        self.steps = [(start + seconds, end + seconds) for start, end in self.steps]

    def collectives(self) -> list[tuple[str, float]]:
        """Name and end of the collectives that end on all ranks at once, in order."""
        on_gpu = [(name, e.end) for e in self.kernels if (name := _nccl(e))]
        named = [*on_gpu, *((what, e.end) for e, what in self.sent)]
        return sorted(((what, end) for what, end in named if _ALL_TOGETHER.match(what)), key=lambda c: c[1])

    def spans(self, windows: Sequence[Interval], join_s: float) -> list[Span]:
        compute, others = self._on_gpu(windows) if self.kernels else (self._on_cpu(windows), [])
        loading = [interval for e in self.loads for interval in intersection([(e.start, e.end)], windows)]
        others += [(start, end, "loading", "load") for start, end in loading]
        for e, what in self.sent:
            # Counts where it began: gloo's thread may only note the end when the next step is already running.
            if (window := _window(windows, e.start)) is not None:
                kind = "waiting" if what == "barrier" else "communication"
                others.append((e.start, min(e.end, window[1]), kind, what))
        if not self.kernels:  # collating a batch runs operators too, and counts as loading
            compute = [(start, end, label) for a, b, label in compute for start, end in difference([(a, b)], loading)]
        busy = [(start, end, "compute", label) for start, end, label in _joined(compute, join_s)]
        return [(self.rank, *span) for span in [*busy, *others]]

    def _on_cpu(self, windows: Sequence[Interval]) -> list[tuple[float, float, str]]:
        phase = _TracedPhases(self)
        found = []
        for e in self.ops:
            computes = e.thread not in self.links and "::" in e.name and not e.name.startswith(_NO_COMPUTE)
            if computes or e.name.startswith("Torch-Compiled"):
                label = phase(e.thread, e.start)
                found += [(start, end, label) for start, end in intersection([(e.start, e.end)], windows)]
        return found

    def _on_gpu(
        self, windows: Sequence[Interval]
    ) -> tuple[list[tuple[float, float, str]], list[tuple[float, float, str, str]]]:
        """What kernels compute, and what they send and load. A kernel runs later than its launch, and counts where it
        was launched."""
        phase = _TracedPhases(self)
        compute, others = [], []
        for e in self.kernels:
            launch = self.launches.get(e.args.get("correlation"))
            if launch and launch.thread in self.links:
                continue  # gloo copies through the host, and its collective already has a span
            inside = _window(windows, launch.start) if launch else intersection([(e.start, e.end)], windows)
            if not inside:
                continue
            if name := _nccl(e):
                others.append((e.start, e.end, "communication", name))
            elif "HtoD" in e.name:
                others.append((e.start, e.end, "loading", "copy"))
            else:
                compute.append((e.start, e.end, phase(launch.thread, launch.start) if launch else ""))
        return compute, others


class _TracedPhases:
    """What a thread does at a given time: backward, the optimizer's step, or else forward. Empty if the trace shows
    neither backward nor step."""

    def __init__(self, trace: _Trace):
        self.parts: dict[tuple[Any, str], list[Interval]] = {}
        for e in trace.ops:
            if e.name.startswith(_BACKWARD):
                self.parts.setdefault((e.thread, "backward"), []).append((e.start, e.end))
        for e in trace.notes:
            if e.name.startswith("Optimizer."):
                self.parts.setdefault((e.thread, "step"), []).append((e.start, e.end))
        self.parts = {key: union(intervals) for key, intervals in self.parts.items()}

    def __call__(self, thread: Any, time_s: float) -> str:
        for name in ("backward", "step"):
            if _window(self.parts.get((thread, name), []), time_s) is not None:
                return name
        return "forward" if self.parts else ""


def _window(intervals: Sequence[Interval], time_s: float) -> Interval | None:
    """The interval that contains a time. The intervals are sorted and don't overlap."""
    at = bisect_right(intervals, (time_s, float("inf"))) - 1
    return intervals[at] if at >= 0 and time_s <= intervals[at][1] else None


def _joined(parts: list[tuple[float, float, str]], join_s: float) -> list[tuple[float, float, str]]:
    """Join operators into stretches of work, as long as the label stays the same and the gaps are short. There are
    thousands, and they call each other."""
    found: list[tuple[float, float, str]] = []
    for start, end, label in sorted(parts, key=lambda p: (p[0], -p[1])):
        if found and end <= found[-1][1]:
            continue
        if found and label == found[-1][2] and start - found[-1][1] <= join_s:
            found[-1] = (found[-1][0], end, label)
        else:
            found.append((max(start, found[-1][1]) if found else start, end, label))
    return found


def _nccl(event: _Event) -> str:
    """The collective of an NCCL kernel, as torch.distributed calls it: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`
    is all_reduce."""
    match = _NCCL.match(event.name)
    if not match:
        return ""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match["what"]).lower()


def _files(run: Run | str | Path, name: str) -> dict[int, Path]:
    folder = Path(run.path if isinstance(run, Run) else run)
    found = {}
    for path in folder.glob(f"rank*.{name}.json*"):
        if match := re.fullmatch(rf"rank(\d+)\.{re.escape(name)}\.json(\.gz)?", path.name):
            found[int(match[1])] = path
    ranks = range(run.world_size) if isinstance(run, Run) else range(max(found, default=0) + 1)
    if missing := [rank for rank in ranks if rank not in found]:
        who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        raise FileNotFoundError(
            f"{who} left no trace {name!r} in {folder}; end the script with `prof.export_chrome_trace(trace_path())` on"
            " every rank"
        )
    return found


def _read(rank: int, path: Path) -> _Trace:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            return _Trace(rank, json.load(file))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a whole trace of the profiler ({error}); was the rank stopped while it wrote it?"
        ) from error


def _set_clocks(traces: Sequence[_Trace], align: str) -> None:
    """Put all ranks on one clock: the host's, or rank 0's if there are several hosts."""
    base = min(t.base_s for t in traces)
    for t in traces:
        t.shift(float(t.base_s - base))
    if align == "clock" or (align == "auto" and len({t.host for t in traces}) == 1):
        return
    first = traces[0].collectives()
    for t in traces[1:]:
        mine = t.collectives()
        if not first or [what for what, _ in mine] != [what for what, _ in first]:
            raise ValueError(
                f"rank {t.rank} has {len(mine)} collectives in its trace and rank {traces[0].rank} has {len(first)}, so"
                " their clocks cannot be aligned; profile the same steps on all ranks, or trust the hosts' clocks with"
                " align='clock'"
            )
        t.shift(statistics.median(theirs - end for (_, theirs), (_, end) in zip(first, mine, strict=True)))


def _choose(windows: dict[int, list[Interval]], steps: int | slice | str, path: Path) -> dict[int, list[Interval]]:
    counts = {len(found) for found in windows.values()}
    n = min(counts)
    if not n or len(counts) > 1:
        what = f"ranks marked different numbers of steps ({', '.join(map(str, sorted(counts)))})"
        if n == 0:
            what = "no steps are marked"
        raise ValueError(
            f"{what} in {path.name} and its neighbours; put each step in `with"
            " torch.profiler.record_function('step'):`, or pass steps=None"
        )
    if steps == "typical":
        length = [sum(found[i][1] - found[i][0] for found in windows.values()) for i in range(n)]
        candidates = range(2 if n >= 5 else 0, n)
        middle = statistics.median_low(length[i] for i in candidates)
        steps = next(i for i in candidates if length[i] == middle)
    if isinstance(steps, int):
        if not -n <= steps < n:
            raise ValueError(f"there are {n} steps in the trace; step {steps} is not one of them")
        steps = slice(steps, steps + 1 or None)
    assert isinstance(steps, slice)
    if not range(n)[steps]:
        raise ValueError(f"{steps} selects none of the {n} steps in the trace")
    chosen = {rank: sorted(found[steps]) for rank, found in windows.items()}
    if abs(steps.step or 1) == 1:  # consecutive steps are one stretch of time, gaps included
        chosen = {rank: [(found[0][0], found[-1][1])] for rank, found in chosen.items()}
    return chosen
