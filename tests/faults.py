"""Launches with random faults, and how each has to end. `python tests/faults.py 200 [SEED]` runs them by hand."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from course_utils.failure.errors import RankError
from course_utils.launching.launcher import launch
from course_utils.launching.supervisor.patience import Patience
from course_utils.results.run import Run

# Every rank leaves a mess first: a file, shared memory that nobody removes, a port that a daemon keeps open. Then one
# of them has its accident, before, in or after a collective, while the others go on.
SCRIPT = """import argparse, ctypes, os, signal, subprocess, sys, tempfile, threading, time
from multiprocessing import resource_tracker, shared_memory
import torch, torch.distributed as dist
from course_utils.rank import report

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
parser.add_argument("--victim", type=int)
parser.add_argument("--place", choices=["before", "between", "after"])
parser.add_argument("--stubborn", action="store_true")
args = parser.parse_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

tempfile.mkstemp()
memory = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(memory._name, "shared_memory")
torch.multiprocessing.set_sharing_strategy("file_system")
kept = torch.ones(1000).share_memory_()
ready, child_ready = os.pipe()
if os.fork() == 0:                       # a daemon: out of its session, with an open port
    os.setsid()
    if os.fork():
        os._exit(0)
    import socket
    server = socket.create_server(("127.0.0.1", 0))
    os.write(child_ready, str(server.getsockname()[1]).encode())
    time.sleep(600)
report(pid=os.getpid(), memory=memory.name, port=int(os.read(ready, 16)))
if args.stubborn:
    for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), lambda *_: None)

def accident():
    if args.kind == "output":
        for i in range(30_000):
            print("x" * 99)
        os.write(1, b"y" * 2_000_000)
    if rank != args.victim:
        return
    if args.kind == "raise":
        raise ValueError("injected")
    if args.kind == "exit":
        sys.exit(7)
    if args.kind == "vanish":
        os._exit(5)
    if args.kind == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if args.kind == "SIGSEGV":
        ctypes.string_at(0)
    if args.kind == "thread":
        threading.Thread(target=time.sleep, args=(600,)).start()
        raise ValueError("injected")
    if args.kind in ("hang", "interrupt"):
        print("hangs", flush=True)
        time.sleep(600)

if args.place == "before":
    accident()
dist.init_process_group("gloo")
t = torch.ones(10)
dist.all_reduce(t)
if args.place == "between":
    accident()
dist.all_reduce(t)
assert t[0] == world ** 2
dist.destroy_process_group()
if args.place == "after":
    accident()
report(done=True)
"""
KINDS = ("success", "raise", "exit", "vanish", "SIGKILL", "SIGSEGV", "thread", "hang", "interrupt", "output")
CAUSES = {
    "raise": "ValueError: injected",
    "thread": "ValueError: injected",
    "exit": "SystemExit: 7",
    "vanish": "ended with exit code 5",
    "SIGKILL": "killed by SIGKILL",
    "SIGSEGV": "killed by SIGSEGV",
}


@dataclass
class Fault:
    """One launch: what happens in it, to which rank, and where."""

    number: int
    kind: str
    ranks: int
    victim: int
    place: str
    stubborn: bool
    engine: str

    def __str__(self) -> str:
        return (
            f"{self.number}: {self.kind} {self.place} in rank {self.victim} of {self.ranks},"
            f" {self.engine}{', stubborn' * self.stubborn}"
        )


def draw(count: int, seed: int, cold_every: int = 20) -> list[Fault]:
    """The faults of a seed: every kind equally often, one launch in `cold_every` cold."""
    source = random.Random(seed)
    kinds = [KINDS[i % len(KINDS)] for i in range(count)]
    source.shuffle(kinds)
    faults = []
    for number, kind in enumerate(kinds):
        ranks = source.choice((1, 2, 2, 2, 3))
        place = source.choice(("before", "between", "after"))
        engine = "cold" if number % cold_every == cold_every - 1 else "local"
        faults.append(Fault(number, kind, ranks, source.randrange(ranks), place, source.random() < 0.5, engine))
    return faults


def run_fault(fault: Fault, script: Path, marked: Callable[[], list[psutil.Process]]) -> None:
    """Run one launch. Raises AssertionError unless it ends as it must and leaves nothing behind. `marked` lists the
    processes that a launch may leave."""
    stop = threading.Event()
    if fault.kind == "interrupt":
        threading.Thread(target=_interrupt_when_hanging, args=(marked, stop, fault.number % 2 + 1), daemon=True).start()
    args = [
        "--kind",
        fault.kind,
        "--victim",
        fault.victim,
        "--place",
        fault.place,
        *(["--stubborn"] if fault.stubborn else []),
    ]
    run, error = _launch(script, fault, args)
    stop.set()

    if fault.kind in ("success", "output"):
        assert error is None and run.ok, f"{error}"
    elif fault.kind == "interrupt":
        assert isinstance(error, KeyboardInterrupt) and run.outcome == "interrupted", f"{error!r}"
    elif fault.kind == "hang":
        assert isinstance(error, RankError) and run.outcome == "timeout", f"{error!r}"
        assert "had only waited" in error.cause, error.cause
        assert "time.sleep(600)" in error.stacks.get(fault.victim, ""), error.stacks
    else:
        assert isinstance(error, RankError), f"{error!r}"
        assert (error.rank, error.cause.partition(". ")[0]) == (fault.victim, CAUSES[fault.kind]), f"{error}"
    for result in run.ranks:
        assert result.records or result.rank != fault.victim, "a failed launch lost its records"
    check_nothing_left(run, marked)


def _launch(script: Path, fault: Fault, args: list[Any]) -> tuple[Run, BaseException | None]:
    """The run, and the error that ended the launch, if any."""
    patience = Patience(idle_s=2, total_s=280) if fault.kind == "hang" else Patience(total_s=280)
    try:
        return launch(script, fault.ranks, args, timeout=patience, engine=fault.engine), None
    except (RankError, KeyboardInterrupt) as error:
        run = getattr(error, "run", None)
        assert isinstance(run, Run), f"an error without its run: {error!r}"
        return run, error


def _interrupt_when_hanging(marked: Callable[[], list[psutil.Process]], stop: threading.Event, times: int) -> None:
    """Press Ctrl-C, once or twice, when the victim says that it hangs."""
    from course_utils.folders import kernel_folder

    launches = kernel_folder() / "launches"
    while not stop.wait(0.02):
        try:
            newest = max(launches.glob("*"), key=lambda p: p.stat().st_mtime_ns)
        except (FileNotFoundError, ValueError):  # an old one was removed just now, or there is none yet
            continue
        if any("hangs" in log.read_text() for log in newest.glob("rank*.log") if not (newest / "run.json").exists()):
            for _ in range(times):
                if not (newest / "run.json").exists():  # afterwards it would hit whoever launched
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.03)
            return


def check_nothing_left(run: Run, marked: Callable[[], list[psutil.Process]]) -> None:
    """When the launch ends, the ranks and everything they made are gone, and the supervisor is about to go."""
    shared = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    for record in (record for result in run.ranks for record in result.records if "pid" in record):
        assert not psutil.pid_exists(record["pid"]), f"a rank is left: {record['pid']}"
        assert record["memory"] not in shared, f"shared memory left: {record['memory']}"
        assert not [name for name in shared if name.startswith(f"torch_{record['pid']}_")], "shared tensors left"
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", record["port"])) != 0, f"port {record['port']} left open"
    until = time.monotonic() + 5
    while left := marked():
        assert time.monotonic() < until, f"processes left: {[(p.pid, p.cmdline()[:3]) for p in left]}"
        time.sleep(0.01)


def main() -> None:
    import tempfile

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6)
    mark = f"faults-{os.getpid()}"
    os.environ["COURSE_FAULT_MARK"] = mark
    with tempfile.TemporaryDirectory() as home:
        os.environ["COURSE_HOME"] = home
        script = Path(home) / "fault.py"
        script.write_text(SCRIPT)
        launch(script, 1, ["--kind", "success", "--victim", "0", "--place", "before"], quiet=True)
        from course_utils.launching import local

        def marked() -> list[psutil.Process]:
            return [
                p for p in psutil.process_iter() if p.pid not in (os.getpid(), local.server()) and _mark_of(p) == mark
            ]

        print(f"{count} launches, seed {seed}")
        begin = time.monotonic()
        for fault in draw(count, seed):
            start = time.monotonic()
            run_fault(fault, script, marked)
            print(f"{fault}: as it must, {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        print(f"all ended as they must, in {time.monotonic() - begin:.0f} s")


def _mark_of(process: psutil.Process) -> str:
    try:
        return str(process.environ().get("COURSE_FAULT_MARK")) if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:
        return ""


if __name__ == "__main__":
    main()
