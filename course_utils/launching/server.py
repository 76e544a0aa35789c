# ruff: noqa: E402 - we look at what Python brings along before we import anything
"""The warm server: imports torch once, and forks a supervisor for each launch, which forks its ranks.

A fork is only safe from a process with one thread and without CUDA, so the server keeps to that. If it can't, it says
so, and launches start cold. It ends with the kernel, or after ten idle minutes.
"""

from __future__ import annotations

import sys

# what Python imports before any program begins: no file next to a script can hide these
PYTHONS_OWN = frozenset(sys.modules)

import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from course_utils.launching import completion
from course_utils.launching.on_rank import cpython
from course_utils.launching.request import Request, receive_message, send_message
from course_utils.launching.supervisor.kernel import kernel_ended, watch_kernel
from course_utils.launching.supervisor.supervisor import supervise

IDLE_S = 600.0
# What ranks import anyway. Never the course's own `workloads`, nor a student's module: ranks must see changes there.
PRELOAD = (
    "numpy", "PIL.Image", "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data.distributed",
    "torch._dynamo", "torch.optim", "torch.profiler", "torch.distributed.fsdp", "torch.distributed.checkpoint",
    "torch.distributed.pipelining", "torch.distributed.rpc", "torch.distributed.optim",
    "torch.distributed.tensor.parallel", "torchvision", "torchvision.transforms.v2",
)  # fmt: skip
MADV_COLLAPSE, HUGE_PAGE = 25, 2 << 20


def preload() -> str:
    """Import what ranks need. Returns why forking from here is not safe, or an empty string."""
    for name in PRELOAD:
        try:
            importlib.import_module(name)
        except Exception as error:
            if name in ("torch", "torch.distributed"):
                return f"{name} could not be imported: {error}"
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"importing torch started {threads - 1} more threads"
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            return f"importing torch opened {target}"
    return ""


def make_forks_cheap() -> None:
    """Do once what every rank would otherwise do, and keep what was imported in memory that they share, in huge pages
    if the system has them.

    A fork copies the page tables of 400 MB, and the end of a process takes them down again: 7 and 8 ms with pages of 4
    KB, 2 and 2 ms with pages of 2 MB. A page that a rank writes to is still copied on its own.
    """
    # Libraries clean up at exit what ends with the process anyway: torch forgets its operators one by one, which takes
    # 50 ms a rank.
    cpython.forget_exit_functions()
    for name in [name for name in sys.modules if name.partition(".")[0] == "course_utils"]:
        del sys.modules[name]  # we have what we need; a script imports them as they are by then
    gc.collect()
    gc.freeze()  # the collector would otherwise touch, and so copy, the shared pages in every rank
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps") as file:
        maps = [line.split() for line in file]
    for span, access, *_, last in maps:
        if access == "rw-p" and (last == "0" or last.startswith(("[heap", "[anon"))):  # memory without a file
            start, end = (int(address, 16) for address in span.split("-"))
            for page in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
                # Linux before 6.1 refuses this, and everything works as before
                madvise(page, HUGE_PAGE, MADV_COLLAPSE)


class Server:
    def __init__(self, control: socket.socket, kernel_pid: int):
        self.control, self.kernel_pid = control, kernel_pid
        self.launches: set[int] = set()

    def run(self) -> None:
        kernel_fd = watch_kernel(self.kernel_pid)
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        for source in (self.control, kernel_fd, wake_r):
            if source is not None:
                selector.register(source, selectors.EVENT_READ)
        idle_since = time.monotonic()
        while True:
            wait = max(0.0, idle_since + IDLE_S - time.monotonic())
            ready = {key.fileobj for key, _ in selector.select(wait if kernel_fd is not None else min(wait, 1.0))}
            if kernel_fd in ready if kernel_fd is not None else kernel_ended(self.kernel_pid):
                return
            if wake_r in ready:
                os.read(wake_r, 4096)
                self._reap()
            if self.control in ready:
                message, fds, _, _ = socket.recv_fds(self.control, 1, 1)
                if not message:
                    return
                for fd in fds:
                    self._launch(socket.socket(fileno=fd), (self.control.fileno(), wake_r, wake_w), kernel_fd, selector)
            if self.launches or ready:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= IDLE_S:
                return

    def _launch(
        self, conn: socket.socket, private: tuple[int, ...], kernel_fd: int | None, selector: selectors.BaseSelector
    ) -> None:
        pid = os.fork()
        if pid:
            self.launches.add(pid)
            conn.close()
            return
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            selector.close()
            for fd in private:
                os.close(fd)
            asked = json.loads(receive_message(conn))
            if "source" in asked:  # not to run it, but what its reader may want to write
                os.environ["CUDA_VISIBLE_DEVICES"] = ""
                sys.path.append(asked["package_path"])
                send_message(conn, json.dumps(completion.answer(asked)).encode())
                return
            request = Request.of(asked)
            send_message(conn, b"begun")
            supervise(conn, request, kernel_fd, forks=True)
        finally:
            os._exit(0)  # the launch's folder says what went wrong

    def _reap(self) -> None:
        try:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self.launches.discard(pid)
        except ChildProcessError:
            self.launches.clear()


def _closed(control: socket.socket) -> bool:
    """Whether the other side is gone."""
    poll = select.poll()
    poll.register(control, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def main() -> None:
    """`server.py FD KERNEL_PID`: says once that it's ready, or why not, and then forks a supervisor for each socket
    that it receives."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    # While we import torch we can't watch for the kernel's end: let the system end us, by SIGIO, when the other side
    # closes.
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    if _closed(control):
        os._exit(0)  # it closed before that, and no signal comes
    sys.path[0] = ""  # each rank puts its script's folder here
    why_not = preload()
    if not why_not:
        make_forks_cheap()
    fcntl.fcntl(control, fcntl.F_SETFL, flags)
    modules = sorted(
        {name.partition(".")[0] for name in sys.modules.keys() - PYTHONS_OWN} - {"course_utils", "__main__"}
    )
    send_message(control, json.dumps({"why_not": why_not, "modules": modules}).encode())
    if not why_not:
        Server(control, int(sys.argv[2])).run()
    os._exit(0)


if __name__ == "__main__":
    main()
