"""One supervisor a launch: starts the ranks, watches them and the kernel, ends everything, cleans up, and answers once.

It is forked from the warm server, or executed for a cold start; it has one thread, and it imports the standard library alone.
Whatever happens to the kernel, the ranks and all their descendants end with it.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[0] = str(HERE.parent.parent)

from course_utils.engines import LaunchLost, Request, child, readable, receive_message, send_message  # noqa: E402
from course_utils.engines.cleanup import adopt_orphans, descendants, kill_descendants, remove_semaphores, remove_shm, send, shm_files  # noqa: E402

FAIL_GRACE_S = 0.5  # after a failure: time for the other ranks to tell their own
EXIT_GRACE_S = 1.0  # after an exception ended a script: time for its process to end by itself
TERM_GRACE_S = 0.4  # from SIGTERM to SIGKILL
DUMP_S = 1.0  # at most this long for the stacks to be written
LOG_LIMIT_BYTES = 512 << 20
Renew = Callable[[dict[str, str]], None]


def supervise(conn: socket.socket, request: Request, kernel_fd: int | None, renew: Renew | None) -> None:
    """Run one launch to its end and send its outcome over `conn`: exit status and signal of each rank, wall time, why it ended.

    With `renew`, which makes a forked process look new, ranks are forked; without, they are executed.
    """
    try:
        Supervisor(conn, request, kernel_fd, renew).run()
    except BaseException:
        _note_crash(request.folder)
        raise


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
    def __init__(self, conn: socket.socket, request: Request, kernel_fd: int | None, renew: Renew | None):
        self.conn, self.request, self.kernel_fd, self.renew = conn, request, kernel_fd, renew
        self.folder = Path(request.folder)
        self.started: list[int] = []  # pids, each the leader of its process group
        self.running: dict[int, int] = {}  # pid -> rank; a launcher of its own is rank -1
        self.finished: set[int] = set()  # ranks whose script has ended well, and that are about to end
        self.status: dict[int, tuple[int, float]] = {}  # rank -> wait status, and when it was seen
        self.cause = ""  # why we end it: failed, timeout, interrupted, abandoned, log limit
        self.ending = "not yet"  # not yet, waiting, terminating, killing
        self.ends_at = float("inf")  # when the next step of ending it is due
        self.link, self.rank_link = socket.socketpair()  # ranks write their number on it when they have finished

    def run(self) -> None:
        self._become()
        shm_before, started_on = shm_files(), time.time()
        parent = self.request.env.get("TMPDIR", "")
        tmp = tempfile.mkdtemp(prefix="course-", dir=parent if os.access(parent, os.W_OK) else None)
        begin = time.perf_counter()
        try:
            self._start(tmp)
            self.timeout_at = time.monotonic() + self.request.timeout
            self._watch()
            wall_s = time.perf_counter() - begin
        finally:
            kill_descendants(self.started)
            shutil.rmtree(tmp, ignore_errors=True)
            remove_shm(shm_files() - shm_before, started_on)
            remove_semaphores(os.path.basename(tmp))
        outcome = {"cause": self.cause, "wall_s": wall_s, "ranks": {str(r): {**_exit_of(s), "time": t} for r, (s, t) in self.status.items()}}
        try:
            send_message(self.conn, json.dumps(outcome).encode())
        except OSError:
            pass  # the kernel is gone
        self.conn.close()

    def _become(self) -> None:
        adopt_orphans()
        # Handlers, for what is ignored would be ignored in executed ranks too.
        signal.signal(signal.SIGINT, lambda *_: None)
        # A rank takes this signal once it can answer; before, it would die of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [child.DUMP_SIGNAL])
        for sig in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(sig, lambda *_: self._end("interrupted"))
        self.wake_r, self.wake_w = os.pipe()
        for fd in (self.wake_r, self.wake_w):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)

    # --- starting -----------------------------------------------------------------------------------------------

    def _start(self, tmp: str) -> None:
        request = self.request
        self.env = {**request.env, "TMPDIR": tmp, "COURSE_RUN_DIR": request.folder, "COURSE_PACKAGE_PATH": request.package_path}
        if request.command:
            self.env["COURSE_LAUNCH_TMP"] = tmp
            with open(self.folder / "launcher.log", "wb") as log:
                process = subprocess.Popen(request.command, env=self.env, cwd=request.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
            process.returncode = 0  # we reap it ourselves
            self._started(process.pid, -1)
            return
        with socket.socket() as store:
            store.bind(("127.0.0.1", 0))
            store.listen(256)
            port, run_id = store.getsockname()[1], os.path.basename(request.folder)
            for rank in range(request.world_size):
                if readable(self.conn, 0):
                    break  # told to stop, or left alone, as `_watch` will find
                env = {**self.env, **rank_variables(request, rank, port, run_id)}
                self._started((self._fork if self.renew else self._execute)(env, store, rank), rank)
        self.rank_link.close()

    def _started(self, pid: int, rank: int) -> None:
        self.started.append(pid)
        self.running[pid] = rank

    def _execute(self, env: dict[str, str], store: socket.socket, rank: int) -> int:
        fds = [self.rank_link.fileno(), *([store.fileno()] if rank == 0 else [])]
        env = {**env, "COURSE_PARENT": str(os.getpid()), "COURSE_LINK_FD": str(fds[0]), "COURSE_STORE_FD": str(fds[1]) if rank == 0 else ""}
        command = [sys.executable, str(HERE / "child.py"), self.request.script, *self.request.args]
        process = subprocess.Popen(command, env=env, cwd=self.request.cwd, stdin=subprocess.DEVNULL, pass_fds=fds, process_group=0)
        process.returncode = 0  # we reap it ourselves
        return process.pid

    def _fork(self, env: dict[str, str], store: socket.socket, rank: int) -> int:
        parent, renew = os.getpid(), self.renew
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
            for fd in (self.conn.fileno(), self.kernel_fd, self.wake_r, self.wake_w, self.link.fileno(), store.fileno() if rank else None):
                if fd is not None:
                    os.close(fd)
            for name in os.environ.keys() - env.keys():
                del os.environ[name]
            os.environ.update(env)
            os.chdir(self.request.cwd)
            assert renew is not None
            child.run(self.request.script, self.request.args, self.rank_link.fileno(), None if rank else store.fileno(), lambda: renew(env))
        except BaseException:
            _note_crash(self.request.folder)
        finally:
            os._exit(70)

    # --- watching -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self.conn, selectors.EVENT_READ, self._from_kernel)
        selector.register(self.link, selectors.EVENT_READ, self._from_ranks)
        selector.register(self.wake_r, selectors.EVENT_READ, lambda: os.read(self.wake_r, 4096))
        if self.kernel_fd is not None:
            selector.register(self.kernel_fd, selectors.EVENT_READ, self._kernel_gone)
        waited_for = True  # by rank 0, which serves the store
        while self.running:
            now = time.monotonic()
            due = min(self.ends_at, self.timeout_at if self.ending == "not yet" else float("inf"), now + 0.5)
            for key, _ in selector.select(max(0.0, due - now)):
                if key.data() is False:
                    selector.unregister(key.fileobj)
            self._reap()
            if waited_for and self.running and set(self.running.values()) <= self.finished:
                waited_for = False
                with suppress(OSError):
                    self.link.shutdown(socket.SHUT_WR)  # rank 0's store is needed no more
            self._advance(time.monotonic())
        selector.close()

    def _from_kernel(self) -> bool:
        try:
            data = self.conn.recv(64)
        except ConnectionError:
            data = b""
        self._end("interrupted" if data else "abandoned")
        return bool(data)

    def _kernel_gone(self) -> bool:
        self._end("abandoned")
        return False

    def _from_ranks(self) -> bool:
        data = self.link.recv(4096)  # whole numbers of four bytes, for they are written so
        self.finished |= {rank for (rank,) in struct.iter_unpack("!I", data)}
        return bool(data)

    def _reap(self) -> None:
        while self.running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self.running.pop(pid, None)
            if rank is None:
                continue  # an orphaned grandchild that came to us
            if rank in self.finished:
                status = 0  # however we ended the process
            if self.ending in ("not yet", "waiting") or not os.WIFSIGNALED(status):
                self.status[rank] = (status, time.time())  # otherwise it was stopped by us
            if status != 0:
                self._end("failed", FAIL_GRACE_S)

    def _end(self, cause: str, grace_s: float = 0.0) -> None:
        """Begin to end the launch, for the first cause that is told."""
        if self.ending == "not yet":
            self.cause, self.ending, self.ends_at = cause, "waiting", time.monotonic() + grace_s

    def _advance(self, now: float) -> None:
        if self.ending == "not yet":
            if now >= self.timeout_at:
                self._end("timeout")
            elif self.kernel_fd is None and kernel_ended(self.request.kernel_pid):
                self._end("abandoned")
            elif any(entry.stat().st_size > LOG_LIMIT_BYTES for entry in os.scandir(self.folder) if entry.name.endswith(".log")):
                self._end("log limit")
            elif any((self.folder / f"rank{rank}.error.json").exists() for rank in self.running.values()):
                self._end("failed", EXIT_GRACE_S)  # a thread or an exit handler may hold the process for ever
        if now < self.ends_at or not self.running:
            return
        if self.ending == "waiting":
            if self.cause in ("failed", "timeout"):
                self._dump_stacks()
            self.ending, self.ends_at = "terminating", time.monotonic() + TERM_GRACE_S
            for pid in self.running:
                send(pid, signal.SIGTERM)
        elif self.ending == "terminating":
            self.ending, self.ends_at = "killing", float("inf")
            for pid in self.running:
                send(pid, signal.SIGKILL)

    def _dump_stacks(self) -> None:
        """Have every rank that still runs write where it stands, and wait until all have stopped writing."""
        pids = self._rank_pids()
        for pid in pids.values():
            send(pid, child.DUMP_SIGNAL)
        sizes: list[int] = []
        until = time.monotonic() + DUMP_S
        while time.monotonic() < until:
            time.sleep(0.05)
            paths = [self.folder / f"rank{rank}.stack" for rank in pids]
            now = [path.stat().st_size if path.exists() else 0 for path in paths]
            if now == sizes and all(now):
                return
            sizes = now

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


def _note_crash(folder: str) -> None:
    with open(os.path.join(folder, "launcher.log"), "a") as log:
        traceback.print_exc(file=log)


def _exit_of(status: int) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return {"exitcode": -number, "signal": name}
    return {"exitcode": os.WEXITSTATUS(status), "signal": None}


def main() -> None:
    """Cold start: `supervisor.py FD`, with the request as the first message on that socket."""
    conn = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(conn.fileno(), False)
    try:
        request = Request(**json.loads(receive_message(conn)))
    except LaunchLost:
        return
    supervise(conn, request, watch_kernel(request.kernel_pid), renew=None)


def watch_kernel(pid: int) -> int | None:
    """A descriptor that becomes readable when the kernel ends: a closed socket is not enough, for what the kernel forks may hold it open.

    None where the system has no such descriptor; then `kernel_ended` has to be asked from time to time.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(0)
    except (AttributeError, OSError):  # not Linux, or one without this call
        return None


def kernel_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


if __name__ == "__main__":
    main()
