"""Is this machine ready for the course, and if not, what cures it?

`doctor()` in a notebook or `python -m course_utils.doctor` in a terminal: under 20 seconds, and nothing is changed. `looking`
finds out, `checks` judges what was found, so that each check can be tried on machines that one does not have.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Sequence

from ..folders import course_home
from ..machine import Machine
from . import checks, looking
from .checks import Row, Status, Torch, count

__all__ = ["Report", "Row", "doctor"]

LIMIT_S = 16.0  # for everything that runs in child processes; imports of torch from a slow disk are the longest part


class Report:
    """The rows of all checks; shows itself as a table. `ok` says that there is no problem (warnings are allowed)."""

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
        return f"{start}: {' and '.join(counts) or 'nothing to mend'} ({self.seconds:.0f} s)."

    def __repr__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [self.headline]
        for row in self.rows:
            lines.append(f"{_SIGNS[row.status]} {row.name.ljust(width)}  {row.found}")
            if row.cure:
                lines.append(f"  {''.ljust(width)}  → {row.cure}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = "style='text-align:left;vertical-align:top'"
        body = ""
        for row in self.rows:
            cure = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(row.cure))
            sign = f"<b style='color:{_COLORS[row.status]};white-space:nowrap'>{_SIGNS[row.status]} {row.status}</b>"
            body += f"<tr><th {cells}>{html.escape(row.name)}</th><td {cells}>{sign}</td><td {cells}>{html.escape(row.found)}</td><td {cells}>{cure}</td></tr>"
        head = "".join(f"<th {cells}>{name}</th>" for name in ("", "", "found", "cure"))
        return f"<p><b>{html.escape(self.headline)}</b></p><table><tr>{head}</tr>{body}</table>"


_SIGNS: dict[Status, str] = {"ok": "✓", "warning": "!", "problem": "✗"}
_COLORS: dict[Status, str] = {"ok": "#007A5A", "warning": "#8A6100", "problem": "#B34700"}


def doctor() -> Report:
    """Look at this machine. The result shows itself; `.ok` is False when something must be mended first."""
    start = time.monotonic()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # before our own children add to it
    with looking.Trial() as trial:
        try:
            machine = Machine.here()
        except Exception as error:  # a broken driver can fail in many ways; the other checks still help
            machine = Machine("unknown", os.cpu_count() or 1, 0, 0)
            rows = [Row("hardware", "problem", f"could not be read: {type(error).__name__}: {error}", "check that `nvidia-smi` works, then run this again")]
        else:
            rows = [Row("hardware", "ok", str(machine))]
        home = course_home()
        rest = [
            *checks.cores(machine, os.cpu_count() or 1, load),
            *checks.memory(machine.memory_bytes, looking.available_memory()),
            *(checks.shared_memory(machine) if sys.platform == "linux" else []),
            *checks.disk(home, looking.writable(home), shutil.disk_usage(looking.existing(home)).free),
            *checks.open_files(looking.open_files()),
            *checks.loopback(looking.loopback_error(), socket.gethostname(), looking.host_addresses(socket.gethostname())),
            *checks.compiler(*looking.compiler()),
            *checks.packages({name: looking.installed(name) for name in ("jupyterlab", "ipywidgets", "matplotlib", "torchvision")}),
        ]
        torch, gloo = trial.finish(start + LIMIT_S)
    torch = torch or Torch(looking.installed("torch") or "", asked=False)
    rows += checks.python(sys.version_info[:3])
    rows += checks.torch_build(torch)
    rows += checks.gpus(machine, torch, looking.nvidia_cards(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    rows += checks.gloo_ranks(gloo)
    return Report(rows + rest, time.monotonic() - start)
