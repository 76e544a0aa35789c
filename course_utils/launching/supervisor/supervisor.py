"""The supervisor of a launch: it starts the ranks, watches them and the kernel until all have ended, cleans up, and
answers once.

It is forked from the warm server, or executed for a cold start. It imports only the standard library, except for the
store of a warm start, which it serves itself, as torchrun's agent does.
Whatever happens to the kernel, the ranks and all their descendants end with it.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RANK_PROCESS = HERE.parent / "on_rank" / "rank_process.py"
if __name__ == "__main__":
    sys.path[0] = str(HERE.parent.parent.parent)

from course_utils.launching.on_rank import rank_process  # noqa: E402
from course_utils.launching.request import LaunchLost, Request, readable, receive_message, send_message  # noqa: E402
from course_utils.launching.supervisor import store  # noqa: E402
from course_utils.launching.supervisor.cleanup import adopt_orphans, descendants, kill_descendants, left_running  # noqa: E402
from course_utils.launching.supervisor.deadlock import DEADLOCK, in_deadlock  # noqa: E402
from course_utils.launching.supervisor.kernel import kernel_ended, watch_kernel  # noqa: E402
from course_utils.launching.supervisor.patience import PatientWatch  # noqa: E402
from course_utils.launching.supervisor.shm import SharedMemory  # noqa: E402
from course_utils.launching.supervisor.termination import EXIT_GRACE_S, FAIL_GRACE_S, Termination  # noqa: E402
from course_utils.machine import busy  # noqa: E402

LOG_LIMIT_BYTES = 512 << 20


def supervise(conn: socket.socket, request: Request, kernel_fd: int | None, forks: bool) -> None:
    """Run one launch to its end and send its outcome over `conn`: exit status and signal of each rank, wall time, why
    it ended.

    A process that `forks` its ranks has imported torch for them; otherwise they are executed.
    """
    try:
        Supervisor(conn, request, kernel_fd, forks).run()
    except BaseException:
        _note_crash(request.folder)
        raise


def rank_variables(request: Request, rank: int, port: int, run_id: str) -> dict[str, str]:
    """The variables that torchrun sets for a rank of one node; a test compares the two."""
    n = str(request.world_size)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": n,
        "LOCAL_WORLD_SIZE": n,
        "ROLE_WORLD_SIZE": n,
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(request.agent_store),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": os.path.join(request.folder, f"rank{rank}.elastic.json"),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


class Supervisor:
    def __init__(self, conn: socket.socket, request: Request, kernel_fd: int | None, forks: bool):
        self.conn, self.request, self.kernel_fd, self.forks = conn, request, kernel_fd, forks
        self.folder = Path(request.folder)
        self.started: list[int] = []  # pids, each the leader of its process group
        self.running: dict[int, int] = {}  # pid -> rank; torchrun is rank -1
        self.status: dict[int, tuple[int, float]] = {}  # rank -> wait status, and when we saw it
        self.shared = SharedMemory()
        self.store: object = None  # where the ranks meet
        self.why = ""  # it could not be started, or took too long
        self.end = Termination(request, self.running, self.status, self.shared)

    def run(self) -> None:
        self._become()
        begin, before = time.perf_counter(), busy.look()
        tmp = ""
        left: list[tuple[int, str]] = []
        try:
            try:
                # for what ends with the launch; its name marks what ranks make in /dev/shm
                tmp = tempfile.mkdtemp(prefix="course-", dir=self.request.tmp or None)
                self._start(tmp)
            except OSError as error:  # no memory for another process, no room for a file, too large an environment
                self.end.cause = "not started"
                self.why = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
            else:
                self.patience = PatientWatch(self.request.patience, self.folder, time.monotonic())
                self._watch()
                left = left_running(self.started) if self.end.step == "not yet" else []
        finally:
            wall_s = time.perf_counter() - begin
            kill_descendants(self.started, self.shared)
            self._cut_logs()
            if tmp:
                self.shared.remove(tmp, self.folder)
                shutil.rmtree(tmp, ignore_errors=True)
        ranks = {str(r): {**_exit_of(s), "time": t} for r, (s, t) in self.status.items()}
        others = busy.others(before, busy.look())
        outcome = {
            "cause": self.end.cause, "why": self.why, "wall_s": wall_s, "ranks": ranks, "others": others,
            "left": left,
        }  # fmt: skip
        try:
            send_message(self.conn, json.dumps(outcome).encode())
        except OSError:
            pass  # the kernel is gone
        self.conn.close()

    def _cut_logs(self) -> None:
        """Keep of each log no more than the limit; until its rank had ended, it may have become much longer."""
        for entry in os.scandir(self.folder):
            if entry.name.endswith(".log") and _size(entry) > LOG_LIMIT_BYTES:
                os.truncate(entry.path, LOG_LIMIT_BYTES)

    def _become(self) -> None:
        adopt_orphans()
        # Handlers that do nothing, because executed ranks would inherit SIG_IGN.
        for sig in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(sig, lambda *_: None)
        # A rank unblocks this signal once it can answer; before that, it would die of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [rank_process.DUMP_SIGNAL])
        for sig in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(sig, lambda *_: self.end.begin("interrupted"))
        self.wake_r, self.wake_w = os.pipe()
        for fd in (self.wake_r, self.wake_w):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        self.alive: int | None = None  # keeps the kernel's temporary files until we have ended
        with suppress(OSError):
            self.alive = os.open(os.path.join(self.request.tmp, "alive"), os.O_WRONLY | os.O_NONBLOCK)

    # --- starting -----------------------------------------------------------------------------------------------

    def _start(self, tmp: str) -> None:
        request = self.request
        self.env = {
            **request.env,
            "COURSE_LAUNCH_TMP": tmp,
            "COURSE_RUN_DIR": request.folder,
            "COURSE_PACKAGE_PATH": request.package_path,
        }
        if request.launcher:
            with open(self.folder / "launcher.log", "wb") as log:
                self._started(_execute(request.launcher, env=self.env, cwd=request.cwd, stdout=log, stderr=log), -1)
            return
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            port, run_id = listening.getsockname()[1], os.path.basename(request.folder)
            if request.agent_store:
                listening.listen(256)
            else:
                listening.close()  # rank 0 serves at this port itself
            for rank in range(request.world_size):
                if readable(self.conn, 0):
                    return  # we should stop, or the kernel is gone: `_watch` will find out
                env = {**self.env, **rank_variables(request, rank, port, run_id)}
                self._started((self._fork_rank if self.forks else self._execute_rank)(env, rank, listening), rank)
            if request.agent_store and self.forks:
                # from here on there are threads, and no more forks
                self.store = store.serve(listening.detach(), port, request.world_size)
            elif request.agent_store:
                self.started.append(self._execute_store(listening, port))

    def _started(self, pid: int, rank: int) -> None:
        self.started.append(pid)
        self.running[pid] = rank

    def _execute_rank(self, env: dict[str, str], rank: int, listening: socket.socket) -> int:
        env = {**env, "COURSE_PARENT": str(os.getpid())}
        return _execute([sys.executable, str(RANK_PROCESS), *self.request.program], env=env, cwd=self.request.cwd)

    def _execute_store(self, listening: socket.socket, port: int) -> int:
        args = (listening.fileno(), port, self.request.world_size, os.getpid())
        command = [sys.executable, str(HERE / "store.py"), *map(str, args)]
        with open(self.folder / "launcher.log", "ab") as log:
            return _execute(command, cwd="/", stdout=subprocess.DEVNULL, stderr=log, pass_fds=[listening.fileno()])

    def _fork_rank(self, env: dict[str, str], rank: int, listening: socket.socket) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setpgid(0, 0)
            rank_process.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
                signal.signal(sig, signal.SIG_DFL)
            listening.close()
            for fd in (self.conn.fileno(), self.kernel_fd, self.wake_r, self.wake_w, self.alive):
                if fd is not None:
                    os.close(fd)
            for name in os.environ.keys() - env.keys():
                del os.environ[name]
            os.environ.update(env)
            os.chdir(self.request.cwd)
            rank_process.run(self.request.program, forked_warm=True)
        except BaseException:
            _note_crash(self.request.folder)
        finally:
            os._exit(70)

    # --- watching -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self.conn, selectors.EVENT_READ, self._from_kernel)
        selector.register(self.wake_r, selectors.EVENT_READ, lambda: os.read(self.wake_r, 4096))
        if self.kernel_fd is not None:
            selector.register(self.kernel_fd, selectors.EVENT_READ, self._kernel_gone)
        while self.running:
            now = time.monotonic()
            due = min(self.end.due, self.patience.due if self.end.step == "not yet" else float("inf"), now + 0.5)
            for key, _ in selector.select(max(0.0, due - now)):
                if key.data() is False:
                    selector.unregister(key.fileobj)
            self._reap()
            self._advance(time.monotonic())
        selector.close()

    def _from_kernel(self) -> bool:
        try:
            data = self.conn.recv(64)
        except ConnectionError:
            data = b""
        self.end.hurry()  # if this is the second time, or the kernel is gone
        self.end.begin("interrupted" if data else "abandoned")
        return bool(data)

    def _kernel_gone(self) -> bool:
        self.end.begin("abandoned")
        return False

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
                continue  # an orphaned grandchild that we adopted
            if self.end.step in ("not yet", "waiting") or not os.WIFSIGNALED(status):
                self.status[rank] = (status, time.time())  # otherwise we stopped it
            if status != 0:
                self.end.begin("failed", FAIL_GRACE_S)

    def _advance(self, now: float) -> None:
        if self.end.step == "not yet":
            if why := self.patience.say(now, self.running.values(), descendants()):
                self.why = why
                self.end.begin("timeout")
            elif self.patience.ask() and in_deadlock(self.end.rank_pids(), self.request):
                self.why = DEADLOCK
                self.end.begin("deadlock")
            elif self.kernel_fd is None and kernel_ended(self.request.kernel_pid):
                self.end.begin("abandoned")
            elif any(
                _size(entry) > LOG_LIMIT_BYTES for entry in os.scandir(self.folder) if entry.name.endswith(".log")
            ):
                self.end.begin("log limit")
            elif any((self.folder / f"rank{rank}.error.json").exists() for rank in self.running.values()):
                self.end.begin("failed", EXIT_GRACE_S)  # a thread or an exit handler may hold the process for ever
        self.end.advance(now)


def _execute(command: list[str], **how: Any) -> int:
    """Execute a program in a process group of its own; returns its pid. We reap it ourselves."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, **how)
    process.returncode = 0
    return process.pid


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # it has gone since the folder was read
        return 0


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
        request = Request.of(json.loads(receive_message(conn)))
    except LaunchLost:
        return
    supervise(conn, request, watch_kernel(request.kernel_pid), forks=False)


if __name__ == "__main__":
    main()
