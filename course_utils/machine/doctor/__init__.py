"""Is this machine ready for the course, and if not, what cures it?

Call `doctor()` in a notebook, or `make doctor` (`python -m course_utils.machine.doctor`) in a terminal. It takes under
20 seconds and changes nothing. `probes` look at the machine, and `diagnoses` judge what they find, so that tests can
try machines that we don't have.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Sequence

from ...folders import course_home
from ...show.table import GOOD, PROBLEM, WARNING, Cell, ShowsTable, Table
from ..here import Machine
from . import diagnoses, probes
from .diagnoses import Row, Status, Torch, count

__all__ = ["Report", "Row", "doctor"]

LIMIT_S = 16.0  # for everything that runs in child processes; importing torch from a slow disk takes longest


class Report(ShowsTable):
    """The rows of all checks; shows itself as a table. `ok` means that there is no problem (warnings are allowed)."""

    def __init__(self, rows: Sequence[Row], seconds: float = 0.0):
        self.rows = list(rows)
        self.seconds = seconds

    @property
    def ok(self) -> bool:
        return not any(row.status == "problem" for row in self.rows)

    @property
    def headline(self) -> str:
        problems, warnings = (sum(row.status == s for row in self.rows) for s in ("problem", "warning"))
        counts = [count(n, word) for n, word in ((problems, "problem"), (warnings, "warning")) if n]
        start = "This machine is ready for the course" if self.ok else "This machine is not ready yet"
        return f"{start}: {' and '.join(counts) or 'nothing to fix'} ({self.seconds:.0f} s)."

    def table(self) -> Table:
        rows = []
        for row in self.rows:
            sign, color = _LOOKS[row.status]
            found = row.found + (f"\n→ {row.cure}" if row.cure else "")
            rows.append((Cell(f"{sign} {row.status}", color, bold=True), Cell(row.name, bold=True), found))
        return Table((), rows, "lll", self.headline)


_LOOKS: dict[Status, tuple[str, str]] = {"ok": ("✓", GOOD), "warning": ("!", WARNING), "problem": ("✗", PROBLEM)}


def doctor() -> Report:
    """Look at this machine. The result shows itself as a table; `.ok` is False if you must fix something first."""
    start = time.monotonic()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # before our own children add to it
    with probes.Trial() as trial:
        try:
            machine = Machine.here()
        except Exception as error:  # a broken driver can fail in many ways; the other checks still help
            machine = Machine("unknown", os.cpu_count() or 1, 0, 0)
            found, cure = f"{type(error).__name__}: {error}", "check that `nvidia-smi` works, then run this again"
            rows = [Row("hardware", "problem", f"couldn't be read: {found}", cure)]
        else:
            rows = [Row("hardware", "ok", str(machine))]
        rest = surroundings(machine, load)
        torch, gloo = trial.finish(start + LIMIT_S)
    torch = torch or Torch(probes.installed("torch") or "", asked=False)
    rows += diagnoses.python(sys.version_info[:3])
    rows += diagnoses.torch_build(torch)
    rows += diagnoses.gpus(machine, torch, probes.nvidia_cards(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    rows += diagnoses.gloo_ranks(gloo)
    return Report(rows + rest, time.monotonic() - start)


def surroundings(machine: Machine, load: float | None = None) -> list[Row]:
    """All that can be judged without torch: cores, memory, disks, network, programs and packages."""
    home, host, user_home = course_home(), socket.gethostname(), probes.home()
    packages = ["ipython", "ipykernel", "ipywidgets", "matplotlib", "torchvision"]
    if "ipykernel" not in sys.modules:  # in a kernel somebody has opened the notebook already, with whatever there is
        packages.insert(0, "jupyterlab")
    return [
        *diagnoses.cores(machine, os.cpu_count() or 1, load),
        *diagnoses.memory(machine.memory_bytes, probes.available_memory()),
        *(diagnoses.shared_memory(machine, probes.shm_free()) if sys.platform == "linux" else []),
        *diagnoses.disk(home, probes.writable(home), shutil.disk_usage(probes.existing(home)).free),
        *diagnoses.home_folder(user_home, user_home is not None and probes.writable(user_home)),
        *diagnoses.temporary_files(*probes.temporary()),
        *diagnoses.open_files(probes.open_files()),
        *diagnoses.loopback(probes.loopback_error(), host, probes.host_addresses(host)),
        *diagnoses.ipv6(probes.ipv6_works(), probes.host_addresses("localhost")),
        *diagnoses.debuggers(probes.ptrace_error()),
        *diagnoses.kernel_cuda(probes.cuda_held()),
        *diagnoses.compiler(*probes.compiler()),
        *diagnoses.packages({name: probes.installed(name) for name in packages}),
    ]
