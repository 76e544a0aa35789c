"""What this machine can do, measured once and kept: arithmetic, memory, copies to a GPU, all-reduce over sizes, the cost of a launch.

The numbers are inputs of the cost model (`course_utils.predict`), so that a lesson can predict before it measures.
"""

from __future__ import annotations

import hashlib
import html
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from ..folders import course_home
from ..launch import launch
from ..machine import Machine
from ..predict import SizeSweep
from ..run import Provenance, Run

HERE = Path(__file__).resolve().parent
KEEP_S = 30 * 86400.0  # a machine's rates change with its drivers, its neighbours and its cooling


@dataclass(frozen=True)
class Calibration:
    """Rates of one rank of this machine, and what a sum over its ranks costs. SI units; medians of several repeats.

    matmul_flops   dtype -> floating-point operations per second in a large matrix product
    memory_Bps     bytes read and written per second by a copy too large for the caches
    copy_Bps       "pageable", "pinned" -> bytes per second from host to GPU; empty without a GPU
    all_reduce     number of ranks -> [(bytes, seconds), ...]
    launch_s       seconds of an empty launch of two ranks
    """

    device: str
    threads: int
    matmul_flops: dict[str, float]
    memory_Bps: float
    copy_Bps: dict[str, float]
    all_reduce: dict[int, list[tuple[float, float]]]
    launch_s: float
    took_s: float
    provenance: Provenance

    def sweep(self, ranks: int) -> SizeSweep:
        """The measured all-reduce over `ranks` as a function of bytes, for the cost model. Raises KeyError for a number that was not measured."""
        if ranks not in self.all_reduce:
            known = ", ".join(map(str, self.all_reduce))
            raise KeyError(f"the all-reduce was measured over {known} ranks, not over {ranks}; calibrate(ranks=[{ranks}]) adds it")
        return SizeSweep(self.all_reduce[ranks])

    def rows(self) -> list[tuple[str, str]]:
        """The table that this object shows itself as: what, and how much."""
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.device == "cpu" else ""
        rows = [(f"matrix product in {dtype} ({self.device}{threads})", f"{rate / 1e9:,.0f} GFLOP/s") for dtype, rate in self.matmul_flops.items()]
        rows.append((f"memory, read and written ({self.device}{threads})", f"{self.memory_Bps / 1e9:,.1f} GB/s"))
        rows += [(f"copy to the GPU from {kind} memory", f"{rate / 1e9:,.1f} GB/s") for kind, rate in self.copy_Bps.items()]
        for ranks, points in self.all_reduce.items():
            rows += [(f"all-reduce of {_size(nbytes)} over {ranks} ranks", _duration(seconds)) for nbytes, seconds in points]
        rows.append(("an empty launch of 2 ranks", _duration(self.launch_s)))
        return rows

    def _caption(self) -> str:
        return f"measured on {self.provenance.machine}, torch {self.provenance.versions.get('torch', '?')}, {self.provenance.date}, in {self.took_s:.0f} s"

    def __repr__(self) -> str:
        width = max(len(what) for what, _ in self.rows())
        return "\n".join(f"{what.ljust(width)}  {value:>14}" for what, value in self.rows()) + f"\n{self._caption()}"

    def _repr_html_(self) -> str:
        body = "".join(f"<tr><td style='text-align:left'>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in self.rows())
        return f"<table>{body}</table><p>{html.escape(self._caption())}</p>"


def calibrate(fresh: bool = False, ranks: Sequence[int] | None = None) -> Calibration:
    """This machine's rates, in under 20 s the first time, from a file under runs/ for the next 30 days.

    `fresh=True` measures again. `ranks` are the numbers of ranks for the all-reduce: by default 2, and 4 and 8 where there are as many GPUs
    or cores. On a CPU every rank has one thread, so that ranks and their twin on one rank have equal means.
    """
    machine = Machine.here()
    gpus, wanted = len(machine.usable_gpus), list(ranks or [])
    if not wanted:
        wanted = [n for n in (2, 4, 8) if n <= max(gpus if gpus >= 2 else machine.cores, 2)]
    key = hashlib.sha256(f"{machine} {version('torch')}".encode()).hexdigest()[:12]
    kept = course_home() / "runs" / f".calibration-{key}.json"
    known = None if fresh else _load(kept)
    if known is not None and not set(wanted) - set(known.all_reduce):
        return known
    started = time.perf_counter()
    result = _measure(machine, wanted, known, started)
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{time.monotonic_ns()}")
    partial.write_text(json.dumps(asdict(result)))
    partial.replace(kept)
    return result


def _measure(machine: Machine, ranks: list[int], known: Calibration | None, started: float) -> Calibration:
    gpus = len(machine.usable_gpus)
    threads = 1 if gpus < 2 else None

    def start(script: str, n: int, device: str) -> Run:
        return launch(HERE / script, n, quiet=True, threads=threads, device=device, timeout=120)

    all_reduce = dict(known.all_reduce) if known else {}
    for n in ranks:
        if n not in all_reduce:
            run = start("all_reduce.py", n, "auto" if n <= gpus else "cpu")
            sizes = list(dict.fromkeys(run.values("nbytes")))
            all_reduce[n] = [(size, run.samples("sum_s", nbytes=size).median) for size in sizes]
    rates = start("rates.py", 1, "auto")
    launches = [start("nothing.py", 2, "auto" if gpus >= 2 else "cpu").wall_s for _ in range(3)]
    return Calibration(
        device=rates.value("device"),
        threads=1 if threads else max(1, machine.cores),
        matmul_flops={dtype: rates.samples("matmul_flops", dtype=dtype).median for dtype in dict.fromkeys(rates.values("dtype"))},
        memory_Bps=rates.samples("memory_Bps").median,
        copy_Bps={kind: rates.samples("copy_Bps", memory=kind).median for kind in ("pageable", "pinned")} if rates.value("device") != "cpu" else {},
        all_reduce=dict(sorted(all_reduce.items())),
        launch_s=statistics.median(launches),
        took_s=time.perf_counter() - started,
        provenance=Provenance.here(str(machine)),
    )


def _load(path: Path) -> Calibration | None:
    try:
        if time.time() - path.stat().st_mtime > KEEP_S:
            return None
        raw = json.loads(path.read_text())
        raw["all_reduce"] = {int(n): [(float(b), float(s)) for b, s in points] for n, points in raw["all_reduce"].items()}
        raw["provenance"] = Provenance(**raw["provenance"])
        return Calibration(**raw)
    except (OSError, ValueError, TypeError, KeyError):
        return None  # not there, or written by another version: measure


def _size(nbytes: float) -> str:
    return f"{nbytes / 2**20:g} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:g} KiB"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


__all__ = ["Calibration", "calibrate"]
