"""Ranks on this machine. A warm start forks them from a server that has imported torch. A cold start runs each as a new
Python, which always works."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..emulation.clusters import EmulatedCluster, cluster
from ..folders import PACKAGE
from ..machine.here import Machine
from .commands import on_gpus_command, standalone_command
from .engine import Engine
from .frozen_variables import frozen, too_late
from .placement import Placement, place, place_on_cluster
from .program import Environment, too_long
from .rank_environment import KEEP_MEMORY
from .request import Handle, LaunchLost, Request, readable, receive_message, send_message

HERE = Path(__file__).resolve().parent
READY_S = 120.0  # a launch doesn't wait longer than this for the import of torch
BEGIN_S = 20.0  # nor longer than this for a ready server to begin
TRIES = 3  # after so many servers in a row that ended while they imported torch, we start no more


class WarmServer:
    """The kernel's side of the warm server: starts it in the background, and sends it launches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._frozen: dict[str, str] = {}
        self._ready = False
        self._modules: frozenset[str] = frozenset()
        self._ended_early = 0
        self._awaited, self._since = "", 0.0  # what launches wait for until it's ready, in words, and since when
        self._why_not = "" if sys.platform == "linux" else "a warm start needs Linux"

    def begin(self) -> None:
        """Start the server if none runs; returns at once, while it imports torch."""
        with self._lock:
            self._begin()

    def _begin(self) -> None:
        if self._why_not or (self._process is not None and self._process.poll() is None and self._control is not None):
            return
        self._awaited, self._since = "importing torch, once for this notebook", time.monotonic()
        if self._process is not None and self._ready:  # it was there, and has ended
            why = "after a long pause" if self._process.poll() == 0 else "because the process that had it was ended"
            self._awaited = f"importing torch again, {why}"
        self._forget()
        ours, theirs = socket.socketpair()
        env = {
            **KEEP_MEMORY,
            **_passable(os.environ),
            "OPENBLAS_NUM_THREADS": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "MPLBACKEND": "Agg",
        }
        self._process = _execute("server.py", theirs, str(os.getpid()), env=env, stderr=subprocess.DEVNULL)
        self._control, self._frozen, self._ready = ours, frozen({**KEEP_MEMORY, **os.environ}), False

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control, self._ready = None, False
        if self._process is not None:
            try:
                self._process.wait(timeout=2)  # closing its socket ends it
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def why_cold(self, env: Mapping[str, str], folder: str, seconds: float) -> tuple[str, str]:
        """Why ranks with this environment and a program in `folder` can't start warm, or an empty string if they can.

        That's the second value. The first, unless it's empty, says what has to be awaited before it's known: ask again
        then. This waits up to `seconds`.
        """
        with self._lock:
            self._begin()
            if not self._why_not and not self._ready and any(found := self._await_ready(seconds)):
                return found
            if self._why_not:
                return "", self._why_not
            wanted = frozen(env)
            changed = sorted(k for k in {*wanted, *self._frozen} if wanted.get(k) != self._frozen.get(k))
            if changed:
                return "", f"torch was imported with another value of {', '.join(changed)}"
            hiding = _hiding(folder, self._modules)
            return "", f"{hiding} in the script's folder hides a module that is already imported" if hiding else ""

    def _await_ready(self, seconds: float) -> tuple[str, str]:
        """Wait up to `seconds` for the import of torch. Returns what is still awaited, and why this launch must start
        cold all the same, if it must; the next one may find the server ready."""
        assert self._control is not None
        if not readable(self._control, seconds):
            late = time.monotonic() > self._since + READY_S
            return ("", f"importing torch has taken more than {READY_S:.0f} s so far") if late else (self._awaited, "")
        try:
            answer = json.loads(receive_message(self._control))
        except LaunchLost:
            self._forget()
            self._ended_early += 1
            why = (
                "the process that imports torch for all launches ended early. If nobody stopped it, memory may have"
                " run out"
            )
            if self._ended_early >= TRIES:
                self._why_not = f"{why} ({TRIES} times; restart the kernel to try again)"
            return "", why
        self._why_not, self._modules = answer["why_not"], frozenset(answer["modules"])
        self._ready = not self._why_not
        if self._why_not:
            self._forget()
        else:
            self._ended_early = 0
        return "", self._why_not

    def launch(self, request: Request) -> Handle:
        """Start `request` warm. Raises LaunchLost if the server is gone by now."""
        with self._lock:
            if self._control is None:
                raise LaunchLost
            try:
                conn, _ = self._hand_over(request.to_json(), BEGIN_S)
            except LaunchLost:
                self._forget()
                raise
            return Handle(_register(conn), "warm")

    def _hand_over(self, message: bytes, seconds: float) -> tuple[socket.socket, bytes]:
        """Send a message to a process that the server forks for it. Returns the connection and the first answer. Raises
        LaunchLost if none comes, for example because the server was about to end."""
        assert self._control is not None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"L"], [theirs.fileno()])
            send_message(ours, message)
            if not readable(ours, seconds):
                raise LaunchLost
            return ours, receive_message(ours)
        except (OSError, LaunchLost) as error:
            ours.close()
            raise LaunchLost from error

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """What a process that has imported torch answers to a question of `completion`; None if there is no such
        process, or if it takes too long. This doesn't wait for an import."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if (
                self._control is None
                or not self._ready
                and (not readable(self._control, 0) or any(self._await_ready(0)))
            ):
                return None
            asked = question | {"package_path": str(PACKAGE.parent), "imports": True}
            conn, answer = self._hand_over(json.dumps(asked).encode(), seconds)
            conn.close()
            return json.loads(answer)
        except LaunchLost:
            return None
        finally:
            self._lock.release()

    def stop(self) -> None:
        """End the server; the next launch starts another."""
        with self._lock:
            self._forget()

    def __call__(self) -> int | None:
        """The server's pid, if it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None


server = WarmServer()
atexit.register(lambda: server.stop())  # a lambda, because a forked process has another server
_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _register(conn: socket.socket) -> socket.socket:
    _open.add(conn)
    return conn


def _close_in_child() -> None:
    """A process that the kernel forks, such as a DataLoader worker, must not keep our sockets open."""
    global server
    for conn in list(_open):
        conn.close()
    _open.clear()
    if server._control is not None:
        server._control.close()
    server = WarmServer()


os.register_at_fork(after_in_child=_close_in_child)


class Cold(Engine):
    """Every rank a new Python on this machine."""

    modelled: EmulatedCluster | None = None  # the GPUs to emulate

    def validate(self) -> None:
        options, engine = self.options, self.options.engine
        self._stays_here()
        if options.dry:
            raise ValueError(
                f"engine {engine!r} has nothing to show; dry is for engine 'slurm' (its batch file) and 'torchrun' (the"
                " command for each node)"
            )
        if options.nodes > 1 and not options.cluster:
            raise ValueError(
                f"engine {engine!r} starts ranks on this machine only; nodes must be 1, got {options.nodes!r}, or"
                " choose engine 'slurm'"
            )
        if options.max_restarts:
            raise ValueError(f"engine {engine!r} does not restart ranks; leave the engine out or choose 'torchrun'")

    def place(self, machine: Machine) -> Placement:
        asked = self.options
        if asked.cluster:
            self.modelled = cluster(asked.cluster, asked.nodes, asked.slow, asked.one_of, asked.host)
            return place_on_cluster(self.modelled, machine, asked.ranks, asked.gpus_per_rank, asked.threads)
        return place(machine, asked.ranks, asked.gpus_per_rank, asked.device, asked.threads)

    def start(self, request: Request, placement: Placement) -> Handle:
        return start_cold(request)

    def by_hand(self, request: Request, placement: Placement) -> str:
        if self.modelled is not None:
            return on_gpus_command(request, placement, self.modelled)
        return standalone_command(request, placement)


class Local(Cold):
    """Ranks on this machine, warm if possible; otherwise cold, and the handle says why."""

    why_cold = ""

    def prepare(self, env: Mapping[str, str], changes: Environment, folder: str, seconds: float) -> str:
        if names := too_late(changes.before_torch, changes.after_torch):
            self.why_cold = f"the script sets {', '.join(names)}, which torch reads when it is imported"
            return ""
        awaited, self.why_cold = server.why_cold(env, folder, seconds)
        return awaited

    def start(self, request: Request, placement: Placement) -> Handle:
        if not self.why_cold:
            try:
                return server.launch(request)
            except LaunchLost:
                self.why_cold = "the warm server has just ended"
        handle = start_cold(request)
        handle.note = f"Cold start, a few seconds slower: {self.why_cold}."
        return handle


def start_cold(request: Request) -> Handle:
    """Start `request` under a new supervisor, which runs each rank, or the request's launcher, as a new program."""
    ours, theirs = socket.socketpair()
    process = _execute("supervisor/supervisor.py", theirs, env=_passable(os.environ))
    threading.Thread(target=process.wait, daemon=True).start()  # so that no zombie stays
    with suppress(OSError):  # it has ended already, as the handle will find
        send_message(ours, request.to_json())
    return Handle(_register(ours), "cold")


def _execute(name: str, conn: socket.socket, *args: str, **how: Any) -> subprocess.Popen[bytes]:
    """Execute a file of ours with its end of a socket, in a session of its own, where our interrupts don't reach it."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / name), str(conn.fileno()), *args],
        cwd="/",
        pass_fds=[conn.fileno()],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        **how,
    )
    conn.close()
    return process


def _passable(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without the variables that no program can be started with. A launch that has one itself has been refused
    by now."""
    unfit = too_long(env)
    return {name: value for name, value in env.items() if name not in unfit}


def _hiding(folder: str, modules: Set[str]) -> str:
    """A file or a package in `folder` that a script there would import instead of one of `modules`; an empty string if
    there is none."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return ""
    for entry in sorted(entries):
        stem, _, rest = entry.partition(".")
        if stem in modules and (
            rest.endswith(("py", "so")) or not rest and os.path.exists(os.path.join(folder, entry, "__init__.py"))
        ):
            return entry
    return ""
