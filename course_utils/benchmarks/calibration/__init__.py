"""Measure once what this machine can do: arithmetic, memory, copies to a GPU, all-reduces of several sizes, an empty
launch.

The cost model (`course_utils.predict`) takes these numbers, so that a lesson can predict before it measures.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from ...folders import course_home, write_whole
from ...launching.launcher import launch
from ...machine.here import Machine
from ...predict import SizeSweep
from ...results.provenance import Provenance
from ...results.run import Run
from ...show.table import ShowsTable, Table
from ...show.units import counted, readable

HERE = Path(__file__).resolve().parent
KEEP_S = 30 * 86400.0  # a machine's rates change with its drivers, its neighbours and its cooling


@dataclass(frozen=True, repr=False)
class Calibration(ShowsTable):
    """What one rank of this machine can do, and what a sum over its ranks costs. SI units; medians of several repeats.

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
        """The measured all-reduce over `ranks` as a function of bytes, for the cost model. Raises KeyError for a number
        of ranks that wasn't measured."""
        if ranks not in self.all_reduce:
            known = ", ".join(map(str, self.all_reduce))
            raise KeyError(
                f"the all-reduce was measured over {known} ranks, not over {ranks}; calibrate(ranks=[{ranks}]) adds it"
            )
        return SizeSweep(self.all_reduce[ranks])

    def table(self) -> Table:
        """One rate per row."""
        threads = f", {counted(self.threads, 'thread')}" if self.device == "cpu" else ""
        rows = [
            (f"matrix product in {dtype} ({self.device}{threads})", f"{rate / 1e9:,.0f} GFLOP/s")
            for dtype, rate in self.matmul_flops.items()
        ]
        rows.append((f"memory, read and written ({self.device}{threads})", readable("B/s", self.memory_Bps)))
        rows += [(f"copy to the GPU from {kind} memory", readable("B/s", rate)) for kind, rate in self.copy_Bps.items()]
        for ranks, points in self.all_reduce.items():
            for nbytes, seconds in points:
                rows.append((f"all-reduce of {readable('bytes', nbytes)} over {ranks} ranks", readable("s", seconds)))
        rows.append(("an empty launch of 2 ranks", readable("s", self.launch_s)))
        return Table(
            (),
            rows,
            "lr",
            note=f"measured on {self.provenance.machine}, torch {self.provenance.versions.get('torch', '?')},"
            f" {self.provenance.date}, in {self.took_s:.0f} s",
        )


def calibrate(fresh: bool = False, ranks: Sequence[int] | None = None) -> Calibration:
    """This machine's rates. Measuring takes under 20 s; for the next 30 days they come from a file under runs/.

    `fresh=True` measures again. `ranks` are the numbers of ranks for the all-reduce: by default 2, and also 4 and 8 if
    there are as many GPUs or cores. On a CPU every rank gets one thread, so that comparing one rank with several is
    fair.
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
    write_whole(kept, json.dumps(asdict(result)))
    return result


def _measure(machine: Machine, ranks: list[int], known: Calibration | None, started: float) -> Calibration:
    gpus = len(machine.usable_gpus)
    threads = 1 if gpus < 2 else None

    def start(script: str, n: int, device: str) -> Run:
        # An explicit engine, because COURSE_ENGINE is for the launches that a notebook makes itself.
        return launch(HERE / script, n, quiet=True, threads=threads, device=device, timeout=120, engine="local")

    all_reduce = dict(known.all_reduce) if known else {}
    for n in ranks:
        if n not in all_reduce:
            run = start("all_reduce.py", n, "auto" if n <= gpus else "cpu")
            sizes = list(dict.fromkeys(run.values("nbytes")))
            all_reduce[n] = [(size, run.samples("sum_s", nbytes=size).median) for size in sizes]
    rates = start("rates.py", 1, "auto")
    launches = [start("nothing.py", 2, "comparable").wall_s for _ in range(3)]
    dtypes = dict.fromkeys(rates.values("dtype"))
    kinds = () if rates.value("device") == "cpu" else ("pageable", "pinned")
    return Calibration(
        device=rates.value("device"),
        threads=1 if threads else max(1, machine.cores),
        matmul_flops={dtype: rates.samples("matmul_flops", dtype=dtype).median for dtype in dtypes},
        memory_Bps=rates.samples("memory_Bps").median,
        copy_Bps={kind: rates.samples("copy_Bps", memory=kind).median for kind in kinds},
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
        raw["all_reduce"] = {
            int(n): [(float(b), float(s)) for b, s in points] for n, points in raw["all_reduce"].items()
        }
        raw["provenance"] = Provenance(**raw["provenance"])
        return Calibration(**raw)
    except (OSError, ValueError, TypeError, KeyError):
        return None  # missing, or written by another version: measure


__all__ = ["Calibration", "calibrate"]
