"""A real ipykernel for tests: run cells in it as JupyterLab would; interrupt, restart and kill it; and see what it
leaves behind."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Descendants
from jupyter_client.manager import KernelManager

from course_utils.machine.here import usable_cores

PATIENCE_S = 120.0  # a cell that takes longer hangs


def limit(seconds: float) -> float:
    """A limit that only catches a hang, where an idle machine needs less than `seconds`: ten times as long, and
    stretched by the number of processes that share each core here right now."""
    return 10 * seconds * (1.0 + os.getloadavg()[0] / usable_cores())


@dataclass
class Cell:
    """The result of running a cell."""

    streams: list[tuple[float, str]] = field(default_factory=list)  # when it came, text
    displays: list[tuple[str, str]] = field(default_factory=list)  # message type, text/plain
    error: tuple[str, str] | None = None  # type, message
    shown_error: str = ""  # as the notebook shows it
    value: str | None = None
    ended: float = 0.0  # seconds since the epoch
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.streams)


class Kernel:
    """One kernel, over IPC. Its processes carry a mark, and its runs/ and temporary files are in `folder`. It works in
    `cwd`; `through` is a command that runs the kernel's own."""

    def __init__(self, folder: Path, cwd: Path | None = None, through: Sequence[str] = (), **env: str):
        self.folder, self.mark = folder, Descendants()
        self.work, self.tmp = folder / "work", folder / "tmp"
        for path in (self.work, self.tmp):
            path.mkdir(parents=True)
        own = {"COURSE_HOME": str(folder), "COURSE_NOTEBOOK": "lesson.ipynb", "TMPDIR": str(self.tmp)}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("COURSE_", "JPY_", "PYTHON"))}
        self.manager = KernelManager(
            kernel_name="python3", transport="ipc", connection_file=str(folder / "kernel.json")
        )
        if through and (spec := self.manager.kernel_spec):
            spec.argv[:1] = [*through, sys.executable]
        self.manager.start_kernel(env={**clean, **own, **self.mark.env, **env}, cwd=str(cwd or self.work))
        self._connect()
        self.server: int | None = None
        self.own_ports: list[Any] = []  # ipykernel's

    def _connect(self) -> None:
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def start(self, code: str) -> str:
        """Send a cell. `finish` waits for it."""
        self.sent = time.monotonic()
        self.cell = Cell()
        # ipykernel 6.17 drops what comes within 0.1 s of an error, unless that cell says this
        self.request = self.client.execute(code, store_history=False, stop_on_error=False)
        return self.request

    def wait_for(self, text: str, seconds: float = PATIENCE_S) -> None:
        """Wait until the running cell has printed `text`."""
        until = time.monotonic() + seconds
        while text not in self.cell.text:
            assert time.monotonic() < until, f"no {text!r} in {self.cell.text!r}"
            assert self._take(1.0) != "idle", f"ended without {text!r}: {self.cell.text!r} {self.cell.error}"

    def finish(self, seconds: float = 3 * PATIENCE_S) -> Cell:
        until = time.monotonic() + seconds
        while self._take(1.0) != "idle":
            if time.monotonic() > until:
                left = "\n".join(f"{p.pid} {' '.join(p.cmdline())}" for p in self.mark.alive())
                pytest.fail(
                    f"a cell did not end within {seconds} s; it printed {self.cell.text[-2000:]!r}; alive:\n{left}"
                )
        self.cell.ended = time.time()
        self.cell.seconds = time.monotonic() - self.sent
        return self.cell

    def run(self, code: str, seconds: float = 3 * PATIENCE_S) -> Cell:
        self.start(code)
        return self.finish(seconds)

    def ask(self, expression: str) -> Any:
        """The value of an expression made of plain Python values."""
        import ast

        cell = self.run(f"print(repr({expression}))")
        assert cell.error is None, cell.error
        return ast.literal_eval(cell.text.strip())

    def _take(self, seconds: float) -> str:
        try:
            message = self.client.get_iopub_msg(timeout=seconds)
        except queue.Empty:
            return ""
        if message["parent_header"].get("msg_id") != self.request:
            return ""
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            self.cell.streams.append((time.monotonic(), content["text"]))
        elif kind in ("display_data", "update_display_data"):
            self.cell.displays.append((kind, content["data"].get("text/plain", "")))
        elif kind == "execute_result":
            self.cell.value = content["data"].get("text/plain", "")
        elif kind == "error":
            self.cell.error = (content["ename"], content["evalue"])
            self.cell.shown_error = "\n".join(content["traceback"])
        elif kind == "status":
            return str(content["execution_state"])
        return ""

    def warm(self) -> None:
        """Load the extension, and launch once, so that the warm server is ready."""
        cell = self.run(
            "%load_ext course_utils\nfrom course_utils.launching import local\n"
            "from course_utils import launch, sweep, LaunchError, RankError"
        )
        assert cell.error is None, cell.error
        cell = self.run("%%ranks 1 -o run\npass")
        assert cell.error is None, cell.error
        assert self.ask("run.engine") == "warm", cell.text
        self.server = self.ask("local.server()")
        self.own_ports = listening([psutil.Process(self.pid)])

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def restart(self, now: bool) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel(now=now)
        self._connect()
        self.server = None

    def kill(self) -> None:
        """Send SIGKILL to the kernel's process alone, so that it can't clean anything up."""
        self.client.stop_channels()
        os.kill(self.pid, signal.SIGKILL)
        self.manager.provisioner.process.wait()

    def left(self, *but: int) -> list[psutil.Process]:
        """Marked processes other than the kernel, its server, and `but`."""
        return [p for p in self.mark.alive() if p.pid not in (self.pid, self.server, *but)]

    def wait_clean(self, seconds: float = 2.0, *but: int) -> None:
        """No process of a launch is left, nothing of its own among the kernel's temporary files, no open port."""
        until = time.monotonic() + limit(seconds)
        while left := self.left(*but):
            assert time.monotonic() < until, f"left behind after {seconds} s: {[(p.pid, p.cmdline()) for p in left]}"
            time.sleep(0.05)
        self.wait_removed("course-*/course-*", seconds)
        ports = [port for port in listening(self.mark.alive()) if port not in self.own_ports]
        assert not ports, f"ports left open: {ports}"

    def wait_removed(self, pattern: str, seconds: float) -> None:
        """There are no such temporary files: of the kernel, `course-*`; of a launch, `course-*/course-*`."""
        until = time.monotonic() + limit(seconds)
        while files := [str(path) for path in self.tmp.glob(pattern)]:
            assert time.monotonic() < until, f"temporary files left behind: {files}"
            time.sleep(0.05)

    def close(self) -> None:
        try:
            self.client.stop_channels()
            self.manager.shutdown_kernel(now=True)
        finally:
            self.mark.kill()


def listening(processes: list[psutil.Process]) -> list[Any]:
    found = []
    for process in processes:
        try:
            found += [c.laddr for c in process.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
    return found


_shared: list[Kernel] = []  # of all test modules: none or one


@pytest.fixture(scope="session")
def close_shared_kernel() -> Iterator[None]:
    yield
    while _shared:
        _shared.pop().close()


@pytest.fixture
def kernel(close_shared_kernel: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel that tests share, with a warm server. After each test nothing of a launch may be left."""
    if not _shared:
        _shared.append(Kernel(tmp_path_factory.mktemp("kernel")))
    if _shared[0].server is None or _shared[0].ask("local.server()") is None:  # a server ends after ten idle minutes
        _shared[0].warm()
    yield _shared[0]
    try:
        assert _shared[0].run("pass", 20).error is None
        _shared[0].wait_clean()
    except BaseException:  # the next test gets another one
        _shared.pop().close()
        raise


@pytest.fixture
def own_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel that the test may end. Nothing is loaded in it."""
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.close()


__all__ = ["Cell", "Kernel", "close_shared_kernel", "kernel", "limit", "listening", "own_kernel"]
