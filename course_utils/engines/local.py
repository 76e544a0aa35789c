"""Ranks on this machine. Warm: forked from a server that has imported torch. Cold: executed anew, which always works."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from . import KEEP_MEMORY, Handle, LaunchLost, Request, readable, receive_message, send_message
from .server import frozen

HERE = Path(__file__).resolve().parent
READY_S = 120.0  # a server that has not imported torch after this long is given up
BEGIN_S = 20.0  # and one that has not begun a launch


class WarmServer:
    """The kernel's side of the warm server: starts it in the background, and sends it launches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._frozen: dict[str, str] = {}
        self._ready = False
        self._why_not = "" if sys.platform == "linux" else "a warm start needs Linux"

    def begin(self) -> None:
        """Start the server if none runs; returns at once, while it imports torch."""
        with self._lock:
            self._begin()

    def _begin(self) -> None:
        if self._why_not or (self._process is not None and self._process.poll() is None and self._control is not None):
            return
        self._forget()
        ours, theirs = socket.socketpair()
        env = {**KEEP_MEMORY, **os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "MPLBACKEND": "Agg"}
        command = [sys.executable, str(HERE / "server.py"), str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            env=env,
            cwd="/",
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
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

    def why_cold(self, env: Mapping[str, str]) -> str:
        """Why ranks with this environment cannot start warm, or an empty string. Waits until the server is ready; an interrupt does no harm here."""
        with self._lock:
            self._begin()
            if not self._why_not and not self._ready:
                self._await_ready()
            if self._why_not:
                return self._why_not
            wanted = frozen(env)
            changed = sorted(k for k in {*wanted, *self._frozen} if wanted.get(k) != self._frozen.get(k))
            return f"{', '.join(changed)} differs from when torch was imported" if changed else ""

    def _await_ready(self) -> None:
        assert self._control is not None
        if not readable(self._control, READY_S):
            self._why_not = f"importing torch took more than {READY_S:.0f} s"
            self._forget()
            return
        try:
            self._why_not = json.loads(receive_message(self._control))["why_not"]
            self._ready = True
        except LaunchLost:
            self._why_not = "the process that imports torch for all launches ended early"
        if self._why_not:
            self._forget()

    def launch(self, request: Request) -> Handle:
        """Start `request` warm. Raises LaunchLost when the server has gone meanwhile."""
        with self._lock:
            if self._control is None:
                raise LaunchLost
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    socket.send_fds(self._control, [b"L"], [theirs.fileno()])
                send_message(ours, request.to_json())
                if not readable(ours, BEGIN_S):
                    raise LaunchLost
                receive_message(ours)  # a server that was about to end has taken the socket with it
            except (OSError, LaunchLost) as error:
                ours.close()
                self._forget()
                raise LaunchLost from error
            return Handle(_register(ours), "warm")

    def stop(self) -> None:
        """End the server; the next launch starts another."""
        with self._lock:
            self._forget()

    def __call__(self) -> int | None:
        """The server's pid, if it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None


server = WarmServer()
atexit.register(lambda: server.stop())  # of a forked process it is another one
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


def start_cold(request: Request) -> Handle:
    """Start `request` under a supervisor of its own, which executes each rank, or the request's launcher, anew."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, str(HERE / "supervisor.py"), str(theirs.fileno())]
    process = subprocess.Popen(command, cwd="/", pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    theirs.close()
    threading.Thread(target=process.wait, daemon=True).start()  # so that no zombie stays
    with suppress(OSError):  # it has ended already, as the handle will find
        send_message(ours, request.to_json())
    return Handle(_register(ours), "cold")


def start(request: Request, why_cold: str) -> tuple[Handle, str]:
    """Start the ranks, warm unless there is a reason against it. Gives the handle, and the reason for a cold start."""
    if not why_cold:
        try:
            return server.launch(request), ""
        except LaunchLost:
            why_cold = "the warm server has just ended"
    return start_cold(request), why_cold
