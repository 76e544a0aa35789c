"""What can the GPUs of this machine do, and does what the lessons need work on them? One page of text, to read and to
send back.

Call `make gpu-check` or `python -m course_utils.benchmarks.gpu_check`. It works with no GPU, one, and many, and goes
on when something fails: that is what the page is for.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from ...failure.errors import CourseError
from ...folders import course_home
from ...launching.launcher import launch
from ...machine.doctor import doctor
from ...machine.here import Gpu, Machine
from ...results.provenance import Provenance
from ...results.run import Run
from ...show.table import Table
from ...show.units import counted, number, readable
from .links import GpuLink, between, to_host

__all__ = ["Page", "gpu_check"]

PROGRAMS = Path(__file__).resolve().parent
RATES = PROGRAMS.parent / "calibration"
# The part of a link's rate below which we say so. By way of the host's memory every byte takes two links.
LEAST_DIRECT, LEAST_BY_HOST = 0.5, 0.2
# What to try if NCCL fails or brings wrong data, and why that can help.
REMEDIES = {
    "NCCL_P2P_DISABLE": "GPUs can't reach each other's memory as they say (an IOMMU, or ACS of the PCIe bridge)",
    "NCCL_SHM_DISABLE": "/dev/shm is too small: start the container with `--shm-size=2g`",
}


@dataclass
class Page:
    """What was found: tables and sentences, in order. `failed` has the names of what doesn't work, `slow` what is
    slower than its link should be."""

    parts: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failed

    def add(self, title: str, *parts: Table | str) -> None:
        self.parts += ["", title, "-" * len(title), *map(str, parts)]

    def __str__(self) -> str:
        verdict = f"Doesn't work: {'; '.join(self.failed)}." if self.failed else "All that was tried works."
        slow = [f"Slower than the link should be: {'; '.join(self.slow)}."] if self.slow else []
        text = "\n".join([*self.parts, "", verdict, *slow])
        for private, word in ((str(course_home()), "COURSE"), (str(Path.home()), "~"), (socket.gethostname(), "HOST")):
            text = re.sub(rf"(?<![\w/]){re.escape(private)}(?!\w)", word, text) if len(private) > 1 else text
        return text


def gpu_check(say: Callable[[str], None] = lambda text: None) -> Page:
    """Try everything, and write the page. `say` is told what comes next."""
    started, page = time.monotonic(), Page()
    say("looking at the machine")
    report = doctor()
    machine = Machine.here()
    gpus = machine.usable_gpus
    versions = {**Provenance.here(str(machine)).versions, **_versions()}
    page.parts = [
        f"GPU check of the course, {time.strftime('%Y-%m-%d')}",
        f"machine   {machine}",
        f"versions  {', '.join(f'{name} {version}' for name, version in versions.items())}",
    ]
    unfit = [row for row in report.rows if row.status != "ok"]
    page.add(
        "The doctor", report.headline, *(f"  {row.status}: {row.name}, {row.found}\n    -> {row.cure}" for row in unfit)
    )
    page.failed += [f"the doctor's {row.name}" for row in unfit if row.status == "problem"]
    if not gpus:
        reasons = "; ".join(f"GPU {g.index} ({g.name}): {g.reason}" for g in machine.gpus)
        none = f"can use none of {len(machine.gpus)}: {reasons}" if reasons else "found none"
        page.add("GPUs", f"torch {none}. So everything below ran on the CPU, over gloo.")
    env = _launches(page, gpus, say)
    if env is not None:
        _each(page, gpus, env, say)
        if len(gpus) != 1:
            _between(page, gpus, env, say)
        _training(page, gpus, env, say)
    page.add("Time", f"{time.monotonic() - started:.0f} s")
    return page


def _run(program: Path, env: Mapping[str, str], ranks: int, timeout: float = 120, **options: Any) -> Run:
    options = {"engine": "local", **options}
    return launch(program, ranks, quiet=True, env=env, timeout=timeout, **options)


def _try(page: Page, name: str, action: Callable[[], str]) -> tuple[str, str, str]:
    """A row of the page: whether `action` works, and what it returns, or the error's first line."""
    try:
        return "✓", name, action()
    except (CourseError, KeyError, OSError) as error:
        page.failed.append(name)
        return "✗", name, _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _launches(page: Page, gpus: tuple[Gpu, ...], say: Callable[[str], None]) -> dict[str, str] | None:
    """Whether ranks start and meet, in each of the ways that the lessons use. Returns the variables that NCCL turned
    out to need; None if ranks on these devices can't be started at all."""
    n = len(gpus)
    env: dict[str, str] = {}
    each = f"a rank on each of {n} GPUs, over nccl" if n > 1 else "a rank on the GPU, over nccl"
    each = each if n else "two ranks on the CPU, over gloo"
    say(each)

    def start(**options: Any) -> str:
        run = _run(RATES / "nothing.py", env, **{"ranks": n or 2, **options})
        return f"{run.engine} start, {readable('s', run.wall_s)}"

    rows = [_try(page, each, start)]
    for variable, why in REMEDIES.items() if n > 1 else ():
        if rows[0][0] == "✓":
            break
        say(f"the same with {variable}=1")
        env = {variable: "1"}
        rows[0] = _try(Page(), f"{each}, with {variable}=1", start)
        if rows[0][0] == "✓":
            page.failed[-1] = f"{each} (it does after `export {variable}=1`: {why})"
    if rows[0][0] == "✗":
        page.add("Starting ranks", Table((), rows, "lll"))
        return None
    others: list[tuple[str, dict[str, Any]]] = [
        ("the same, each rank a fresh Python", {"engine": "cold"}),
        ("the same, started by torchrun", {"engine": "torchrun"}),
    ]
    others += [("two ranks share a GPU, over gloo", {"ranks": 2, "device": "shared"})] if n else []
    others += [("all GPUs in one rank", {"ranks": 1, "gpus_per_rank": "all"})] if n > 1 else []
    for name, options in others:
        say(name)
        rows.append(_try(page, name, partial(start, **options)))
    page.add("Starting ranks", Table((), rows, "lll"))
    return env


def _each(page: Page, gpus: tuple[Gpu, ...], env: dict[str, str], say: Callable[[str], None]) -> None:
    """Arithmetic, memory and copies of each GPU, all at once."""
    say("arithmetic, memory and copies")
    try:
        run = _run(RATES / "rates.py", env, len(gpus) or 1, device="auto" if gpus else "cpu")
    except CourseError as error:
        page.failed.append("measuring each GPU")
        page.add("Each GPU", _first_line(error))
        return
    dtypes = list(dict.fromkeys(run.values("dtype")))
    kinds = ("pageable", "pinned") if gpus else ()
    unit, one = ("TFLOP/s", 1e12) if gpus else ("GFLOP/s", 1e9)
    head = ["", *(f"{dtype}\n{unit}" for dtype in dtypes), "memory\nGB/s", *(f"{kind}\nGB/s" for kind in kinds)]
    head += ["link to the host", "gives\nGB/s"] if gpus else []
    rows = []
    for rank, link in zip(run.ranks, to_host(gpus) if gpus else [None], strict=True):
        rates = [median(rank.values("matmul_flops", dtype=dtype)) / one for dtype in dtypes]
        bytes_s = [median(rank.values("memory_Bps")) / 1e9]
        bytes_s += [median(rank.values("copy_Bps", memory=kind)) / 1e9 for kind in kinds]
        gives = [link.words if link else "unknown", number(link.Bps / 1e9) if link else ""] if gpus else []
        name = f"GPU {gpus[rank.rank].index}" if gpus else "one rank"
        rows.append((name, *(number(x) for x in (*rates, *bytes_s)), *gives))
        if link and bytes_s[-1] < LEAST_DIRECT * link.Bps / 1e9:
            page.slow.append(f"copies to {name}, {number(bytes_s[-1])} GB/s")
    about = [f"GPU {g.index}: {g.words}" for g in gpus]
    note = "Copies are from host memory to all GPUs at once; in bfloat16, GPUs below 8.0 convert." if gpus else ""
    page.add("Each GPU" if gpus else "The CPU", *about, Table(head, rows, "l" + "r" * (len(head) - 1), note=note))


def _between(page: Page, gpus: tuple[Gpu, ...], env: dict[str, str], say: Callable[[str], None]) -> None:
    """What each pair of GPUs sends each other, and what all of them sum, against what their links should give."""
    n = len(gpus) or 2
    places = [f"GPU {g.index}" for g in gpus] or ["rank 0", "rank 1"]
    say(f"what {'GPUs' if gpus else 'ranks'} send each other")
    device = "auto" if gpus else "cpu"
    title = "Between GPUs" if gpus else "Between ranks"
    try:
        pairs = _run(PROGRAMS / "pairs.py", env, n, device=device, timeout=120 + n * n)
        sums = _run(RATES / "all_reduce.py", env, n, device=device)
    except CourseError as error:
        page.failed.append("sending between GPUs" if gpus else "sending between ranks")
        page.add(title, _first_line(error))
        return
    rows: list[tuple[str, ...]] = []
    slowest: GpuLink | None = None
    for a, b in combinations(range(n), 2):
        link = between(gpus, a, b) if gpus else None
        each_way = pairs.samples("each_way_Bps", pair=[a, b]).median
        right = all(pairs.values("right", pair=[a, b]))
        pair = f"{places[a]} and {places[b]}"
        rows.append((pair, *_against(link, each_way), "✓" if right else "✗"))
        if not right:
            page.failed.append(f"data between {pair} (try `export NCCL_P2P_DISABLE=1`)")
        if link and each_way < (LEAST_DIRECT if link.direct else LEAST_BY_HOST) * link.Bps:
            page.slow.append(f"{pair}, {number(each_way / 1e9)} GB/s each way")
        slowest = min((x for x in (slowest, link) if x), key=lambda x: x.Bps, default=None)
    sizes = sorted(set(sums.values("nbytes")))
    least_s, most_s = (sums.samples("sum_s", nbytes=size).median for size in (sizes[0], sizes[-1]))
    bus_Bps = 2 * (n - 1) / n * sizes[-1] / most_s
    rows.append((f"all {n}, summing", *_against(slowest, bus_Bps), ""))
    if not gpus:  # their link is the memory
        rows = [(row[0], row[3], row[5]) for row in rows]
    head = ("", "link", "gives\nGB/s", "measured\nGB/s", "share", "data\nright")
    page.add(
        title,
        Table(head if gpus else ("", "GB/s", "data\nright"), rows, "llrrrl" if gpus else "lrl"),
        f"Pairs send 64 MiB each way at once. All: an all-reduce of {readable('bytes', sizes[-1])}, as bus bandwidth;"
        f" one of {readable('bytes', sizes[0])} takes {readable('s', least_s)}.",
    )


def _against(link: GpuLink | None, Bps: float) -> tuple[str, str, str, str]:
    """The link, what it gives, what was measured, and their ratio."""
    if link is None:
        return "", "", number(Bps / 1e9), ""
    return link.words, number(link.Bps / 1e9), number(Bps / 1e9), f"{Bps / link.Bps:.0%}"


def _training(page: Page, gpus: tuple[Gpu, ...], env: dict[str, str], say: Callable[[str], None]) -> None:
    """The lessons' largest trainings, on all GPUs."""
    say("the lessons' largest trainings")
    n = len(gpus) or 2
    try:
        run = _run(PROGRAMS / "training.py", env, n, device="auto" if gpus else "cpu", timeout=180)
    except CourseError as error:
        page.failed.append("training")
        page.add("Training", _first_line(error))
        return
    rows = []
    for model in dict.fromkeys(run.values("model")):
        losses = run.ranks[0].values("loss", model=model)
        step_s = median(run.values("step_s", model=model))
        memory = ""
        if gpus:
            peak, whole = max(run.values("peak_bytes", model=model)), min(run.values("memory_bytes"))
            memory = f"at most {readable('bytes', peak)} of {readable('bytes', whole)}"
        if not losses[-1] < losses[0]:
            page.failed.append(f"training: the loss of {model} doesn't fall")
        size, dtype = (run.values(key, model=model)[0] for key in ("size", "dtype"))
        loss = f"loss {losses[0]:.3f} to {losses[-1]:.3f}"
        rows.append((model, f"size {size}", dtype, f"{readable('s', step_s)} a step", memory, loss))
    page.add(f"Training on {counted(n, 'rank')}", Table((), rows, "lllrll"))


def _versions() -> dict[str, str]:
    """What a page needs besides Python and torch, read without starting CUDA."""
    from importlib.metadata import distributions

    found = {}
    for package in distributions():
        name = (package.metadata["Name"] or "").lower()
        if match := re.fullmatch(r"nvidia[-_](nccl|cudnn|cuda[-_]runtime)(-cu\d+)?", name):
            found[match[1].replace("_", "-")] = package.version
    return {
        **found,
        "NCCL_*": " ".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NCCL_")) or "unset",
    }
