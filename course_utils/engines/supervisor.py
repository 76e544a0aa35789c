"""One supervisor a launch: starts the ranks, watches them and the kernel, ends everything, cleans up, and answers once.

It is forked from the warm server, or executed for a cold start; it has one thread, and it imports the standard library alone.
Whatever happens to the kernel, the ranks and all their descendants end with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[0] = str(HERE.parent.parent)

from course_utils.engines import LaunchLost, Request, child, receive_message, send_message  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36
FAIL_GRACE_S = 0.5  # after a failure: time for the other ranks to tell their own
TERM_GRACE_S = 0.4  # from SIGTERM to SIGKILL
DUMP_S = 1.0  # at most this long for the stacks to be written
LOG_LIMIT_BYTES = 512 << 20
# Names that torch, NCCL, OpenMP and multiprocessing give to their files in /dev/shm; nobody else's file is ever touched.
SHM_NAMES = re.compile(r"(torch_\d+_|psm_|sem\.mp-|sem\.loky-|nccl-|__KMP_REGISTERED_LIB_)")


def supervise(conn: socket.socket, request: Request, kernel_fd: int | None, warm: bool) -> None:
    """Run one launch to its end and send its outcome over `conn`: exit status and signal of each rank, wall time, why it ended."""
    Supervisor(conn, request, kernel_fd, warm).run()


def rank_variables(request: Request, rank: int, port: int, run_id: str) -> dict[str, str]:
    """The variables that torchrun sets for a rank of one node; a test compares the two."""
    n = str(request.world_size)
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "ROLE_RANK": str(rank), "ROLE_NAME": "default",
        "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "ROLE_WORLD_SIZE": n, "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": os.path.join(request.folder, f"rank{rank}.elastic.json"), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }  # fmt: skip


class Supervisor:
    def __init__(self, conn: socket.socket, request: Request, kernel_fd: int | None, warm: bool):
        self.conn, self.request, self.kernel_fd, self.warm = conn, request, kernel_fd, warm
        self.folder = Path(request.folder)
        self.running: dict[int, int] = {}  # pid -> rank; a launcher of its own is rank -1
        self.status: dict[int, tuple[int, float]] = {}  # rank -> wait status, and when it was seen
        self.lingering: set[int] = set()
        self.cause = ""  # why we end it: failed, timeout, interrupted, abandoned, log limit
        self.ends_at = float("inf")  # when the next step of ending it is due
        self.ending = "not yet"  # not yet, waiting, dumping, terminating, killing
        self.linger: list[socket.socket] = []

    def run(self) -> None:
        self._become()
        shm_before = set(_shm_files())
        started_on = time.time()
        tmp = tempfile.mkdtemp(prefix="course-launch-")
        begin = time.perf_counter()
        try:
            self._start(tmp)
            self.timeout_at = time.monotonic() + self.request.timeout
            self._watch()
            wall_s = time.perf_counter() - begin
        finally:
            kill_descendants()
            shutil.rmtree(tmp, ignore_errors=True)
            _remove_shm(set(_shm_files()) - shm_before, started_on)
        outcome = {"cause": self.cause, "wall_s": wall_s, "ranks": {str(r): {**_exit_of(s), "time": t} for r, (s, t) in self.status.items()}}
        try:
            send_message(self.conn, json.dumps(outcome).encode())
        except OSError:
            pass  # the kernel is gone
        self.conn.close()

    def _become(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for sig in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(sig, lambda *_: self._end("interrupted"))
        self.wake_r, wake_w = os.pipe()
        for fd in (self.wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        self.wake_w = wake_w

    # --- starting -----------------------------------------------------------------------------------------------

    def _start(self, tmp: str) -> None:
        request = self.request
        self.env = {**request.env, "TMPDIR": tmp, "COURSE_RUN_DIR": request.folder, "COURSE_PACKAGE_PATH": request.package_path}
        if request.command:
            self.env["COURSE_LAUNCH_TMP"] = tmp
            with open(self.folder / "launcher.log", "wb") as log:
                process = subprocess.Popen(request.command, env=self.env, cwd=request.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
            process.returncode = 0  # we reap it ourselves
            self.running[process.pid] = -1
            return
        store = socket.socket()
        store.bind(("127.0.0.1", 0))
        store.listen(256)
        port, run_id = store.getsockname()[1], os.path.basename(request.folder)
        ours, theirs = socket.socketpair()
        self.linger = [ours]
        for rank in range(request.world_size):
            env = {**self.env, **rank_variables(request, rank, port, run_id)}
            fds = (store.fileno(), theirs.fileno()) if rank == 0 else None
            pid = self._fork(env, fds, (store, theirs)) if self.warm else self._execute(env, fds)
            self.running[pid] = rank
        store.close()
        theirs.close()

    def _execute(self, env: dict[str, str], fds: tuple[int, int] | None) -> int:
        env = {**env, "COURSE_PARENT": str(os.getpid())}
        if fds:
            env |= {"COURSE_STORE_FD": str(fds[0]), "COURSE_LINGER_FD": str(fds[1])}
        command = [sys.executable, str(HERE / "child.py"), self.request.script, *self.request.args]
        process = subprocess.Popen(command, env=env, cwd=self.request.cwd, stdin=subprocess.DEVNULL, pass_fds=fds or (), process_group=0)
        process.returncode = 0  # we reap it ourselves
        return process.pid

    def _fork(self, env: dict[str, str], fds: tuple[int, int] | None, shared: tuple[socket.socket, ...]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setpgid(0, 0)
            child.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(sig, signal.SIG_DFL)
            keep = set(fds or ())
            for fd in {self.conn.fileno(), self.kernel_fd, self.wake_r, self.wake_w, *(s.fileno() for s in (*shared, *self.linger))} - keep:
                if fd is not None:
                    os.close(fd)
            from course_utils.engines.server import renew_process

            renew_process(env, self.request.cwd)
            child.run(self.request.script, self.request.args, *(fds or (None, None)))
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(70)

    # --- watching -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self.conn, selectors.EVENT_READ, self._from_kernel)
        selector.register(self.wake_r, selectors.EVENT_READ, lambda: os.read(self.wake_r, 4096))
        for sock in self.linger:
            selector.register(sock, selectors.EVENT_READ, lambda s=sock: self._from_rank_0(selector, s))
        if self.kernel_fd is not None:
            selector.register(self.kernel_fd, selectors.EVENT_READ, lambda: (selector.unregister(self.kernel_fd), self._end("abandoned")))
        while self.running:
            now = time.monotonic()
            due = min(self.ends_at, self.timeout_at if self.ending == "not yet" else float("inf"), now + 0.5)
            for key, _ in selector.select(max(0.0, due - now)):
                if key.data() is False:
                    selector.unregister(key.fileobj)
            self._reap()
            if self.running and set(self.running.values()) <= self.lingering:
                for sock in self.linger:
                    sock.close()  # all others are done: the store is needed no more
                self.linger = []
                selector.close()
                self._reap(block=True)
                break
            self._advance(time.monotonic())
        selector.close()

    def _from_kernel(self) -> bool:
        try:
            data = self.conn.recv(64)
        except ConnectionError:
            data = b""
        self._end("interrupted" if data else "abandoned")
        return bool(data)

    def _from_rank_0(self, selector: selectors.BaseSelector, sock: socket.socket) -> bool:
        try:
            if sock.recv(16):
                self.lingering.add(0)
                return True
        except ConnectionError:
            pass
        return False

    def _reap(self, block: bool = False) -> None:
        while self.running:
            try:
                pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self.running.pop(pid, None)
            if rank is None:
                continue  # an orphaned grandchild that came to us
            if rank in self.lingering:
                status = 0  # its script had finished, however we ended the process
            if self.ending in ("not yet", "waiting") or not os.WIFSIGNALED(status):
                self.status[rank] = (status, time.time())  # otherwise it was stopped by us
            if status != 0 and self.ending == "not yet":
                self._end("failed")

    def _end(self, cause: str) -> None:
        """Begin to end the launch, for the first cause that is told."""
        if self.ending != "not yet":
            return
        self.cause = cause
        self.ending = "waiting"
        self.ends_at = time.monotonic() + (FAIL_GRACE_S if cause == "failed" else 0.0)

    def _advance(self, now: float) -> None:
        if self.ending == "not yet":
            if now >= self.timeout_at:
                self._end("timeout")
            elif any(p.stat().st_size > LOG_LIMIT_BYTES for p in self.folder.glob("*.log")):
                self._end("log limit")
        if now < self.ends_at or not self.running:
            return
        if self.ending == "waiting" and self.cause in ("failed", "timeout"):
            self.ending, self.ends_at = "dumping", now + DUMP_S
            for pid in self._rank_pids().values():
                _send(pid, child.DUMP_SIGNAL)
            _wait_for_stacks([self.folder / f"rank{r}.stack" for r in self._rank_pids()], now + DUMP_S)
            self.ends_at = time.monotonic()
        if self.ending in ("waiting", "dumping"):
            self.ending, self.ends_at = "terminating", time.monotonic() + TERM_GRACE_S
            for pid in self.running:
                _send(pid, signal.SIGTERM)
        elif self.ending == "terminating":
            self.ending, self.ends_at = "killing", float("inf")
            for pid in list(self.running):
                _send(pid, signal.SIGKILL)

    def _rank_pids(self) -> dict[int, int]:
        """rank -> pid of the ranks that still run, also of those that a launcher started."""
        if not self.request.command:
            return {rank: pid for pid, rank in self.running.items()}
        pids = {}
        for rank in range(self.request.world_size):
            try:
                pid = int((self.folder / f"rank{rank}.pid").read_text().split()[0])
            except (OSError, ValueError, IndexError):
                continue
            if pid in set(descendants()):
                pids[rank] = pid
        return pids


def _send(pid: int, sig: int) -> None:
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def _exit_of(status: int) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return {"exitcode": -number, "signal": name}
    return {"exitcode": os.WEXITSTATUS(status), "signal": None}


def _wait_for_stacks(paths: list[Path], until: float) -> None:
    """Until every file has content and has stopped growing."""
    sizes: list[int] = []
    while time.monotonic() < until:
        time.sleep(0.05)
        now = [p.stat().st_size if p.exists() else 0 for p in paths]
        if now == sizes and all(now):
            return
        sizes = now


def descendants() -> Iterator[int]:
    """Pids of all living descendants, from /proc; on other systems none are seen beyond our own process groups."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if sys.platform == "linux" else ():
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry))
    todo = [os.getpid()]
    while todo:
        for pid in children.get(todo.pop(), ()):
            yield pid
            todo.append(pid)


def kill_descendants() -> None:
    """End every process that the launch left, those that left their parents included, and reap them."""
    for _ in range(100):
        pids = list(descendants())
        for pid in pids:
            _send(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if not pids:
                return
        time.sleep(0.002 if not pids else 0.01)


def _shm_files() -> list[str]:
    try:
        return [name for name in os.listdir("/dev/shm") if SHM_NAMES.match(name)]
    except OSError:
        return []


def _remove_shm(names: set[str], since: float) -> None:
    """Remove the shared memory that came during the launch, is ours, and is mapped by no living process."""
    if not names:
        return
    mapped = ""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                mapped += Path(f"/proc/{entry}/maps").read_text()
            except OSError:
                continue
    for name in names:
        path = Path("/dev/shm", name)
        try:
            info = path.stat()
            if info.st_uid == os.getuid() and info.st_mtime >= since - 1 and f"/dev/shm/{name}" not in mapped:
                path.unlink()
        except OSError:
            continue


def main() -> None:
    """Cold start: `supervisor.py FD`, with the request as the first message on that socket."""
    conn = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(conn.fileno(), False)
    try:
        request = Request(**json.loads(receive_message(conn)))
    except LaunchLost:
        return
    supervise(conn, request, watch_kernel(request.kernel_pid), warm=False)


def watch_kernel(pid: int) -> int | None:
    """A descriptor that becomes readable when the kernel ends: a closed socket is not enough, for the kernel's own children hold it open."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(0)


if __name__ == "__main__":
    main()
