"""The warm server: imports torch once, and forks a supervisor for each launch, which forks its ranks.

It never initialises CUDA and keeps one thread, for a fork is safe only then; when either fails it says so, and launches start cold.
It ends with the kernel, and after ten idle minutes.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import logging
import multiprocessing.util
import os
import select
import selectors
import signal
import socket
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from course_utils.engines import Request, receive_message, send_message
from course_utils.engines.supervisor import kernel_ended, supervise, watch_kernel

IDLE_S = 600.0
# What ranks import anyway. Never the course's own `workloads`, nor a student's module: a change there must be seen.
PRELOAD = (
    "numpy", "PIL.Image", "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data.distributed", "torch._dynamo", "torch.optim", "torch.profiler",
    "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.pipelining", "torch.distributed.rpc", "torch.distributed.optim",
    "torch.distributed.tensor.parallel", "torchvision", "torchvision.transforms.v2",
)  # fmt: skip
# torch and Python read these when they start, so a launch that changes one of them starts cold.
FROZEN_PREFIXES = (
    "PYTHON", "TORCH", "PYTORCH", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_", "NPY_", "LD_", "MALLOC_", "GLIBC_",
    "LC_", "LANG", "NVIDIA_TF32",
)  # fmt: skip
RENEWED = ("OMP_NUM_THREADS", "TORCH_DISTRIBUTED_DEBUG")  # these we can set again after a fork
MADV_COLLAPSE, HUGE_PAGE = 25, 2 << 20


def frozen(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env` that a process forked from the server cannot take on."""
    return {k: v for k, v in env.items() if k.startswith(FROZEN_PREFIXES) and k not in RENEWED and not k.startswith("TORCHELASTIC")}


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
    """Leave ranks nothing to do that can be done once, and keep what was imported where they share it, in huge pages if the system has them.

    A fork copies the page tables of 400 MB, and the end of a process takes them down again: 7 and 8 ms with pages of 4 KB, 2 and 2 with
    pages of 2 MB. A page that a rank writes to is still copied by itself.
    """
    # What libraries do at exit ends with the process anyway: torch forgets its operators one by one, which takes 50 ms a rank.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    atexit._clear()
    for function in (logging.shutdown, weakref.finalize._exitfunc, multiprocessing.util._exit_function):  # type: ignore[attr-defined]
        atexit.register(function)  # these wait for what a script itself has begun
    for name in [name for name in sys.modules if name.partition(".")[0] == "course_utils"]:
        del sys.modules[name]  # we have what we need of them, and a script gets them as they are by then
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
                madvise(page, HUGE_PAGE, MADV_COLLAPSE)  # refused by systems before Linux 6.1, which then work as before


def renew_process(env: dict[str, str]) -> None:
    """Make a process forked from the server look new: threads, random numbers, caches. Its environment and folder are new already."""
    import tempfile

    import numpy
    import torch
    import torch.distributed as dist

    time.tzset()
    tempfile.tempdir = None
    for path in sys.path:
        if sys.path_importer_cache.get(path, path) is None:
            del sys.path_importer_cache[path]  # it was not there when torch was imported; a folder that changed is seen anyway
    numpy.random.seed()  # Python's own generator takes a new seed after a fork by itself
    torch.default_generator.seed()
    threads = env.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # OpenMP allows one number a level of nesting
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
    dist.set_debug_level_from_env()


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

    def _launch(self, conn: socket.socket, private: tuple[int, ...], kernel_fd: int | None, selector: selectors.BaseSelector) -> None:
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
            request = Request(**json.loads(receive_message(conn)))
            send_message(conn, b"begun")
            supervise(conn, request, kernel_fd, renew_process)
        finally:
            os._exit(0)  # what went wrong stands in the launch's folder

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
    """`server.py FD KERNEL_PID`: answers once, ready or why not, and then forks a supervisor for each socket that it is sent."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    # While torch is imported nobody listens for the kernel's end: let the system end us, by SIGIO, when the other side closes.
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    if _closed(control):
        os._exit(0)  # it closed before that, and no signal comes
    sys.path[0] = ""  # the place of the script's folder, which each rank sets for itself
    why_not = preload()
    if not why_not:
        make_forks_cheap()
    fcntl.fcntl(control, fcntl.F_SETFL, flags)
    send_message(control, json.dumps({"why_not": why_not}).encode())
    if not why_not:
        Server(control, int(sys.argv[2])).run()
    os._exit(0)


if __name__ == "__main__":
    main()
