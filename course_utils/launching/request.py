"""Ways to start the ranks of a launch. With each of them, ranks run the same script in the same environment, and leave
the same files.

An engine (`choice` says what that is) takes a `Request` and returns a `Handle`. In the launch's folder every rank
leaves `rankN.log` (what it printed), `rankN.jsonl` (what it reported), `rankN.error.json` (the exception that ended
it), `rankN.stack` (where it stood when stopped) and `rankN.collectives.json` (what it asked of the others).
"""

from __future__ import annotations

import json
import select
import socket
import struct
from dataclasses import asdict, dataclass, field
from typing import Any

from .supervisor.patience import Patience


@dataclass(frozen=True)
class Request:
    """What an engine needs to start one launch. `env` is a rank's whole environment, except the variables that say
    which rank it is."""

    script: str
    args: list[str]
    world_size: int
    env: dict[str, str]
    cwd: str
    folder: str
    timeout: float  # seconds, for an engine that can't watch its ranks
    package_path: str
    kernel_pid: int
    tmp: str = ""  # folder of the kernel's temporary files, on an engine that runs on this machine
    launcher: list[str] = field(default_factory=list)  # a torchrun to execute, which starts the ranks instead of us
    module: str = ""  # run it as `python -m` does; `script` is then its file
    patience: Patience = Patience()  # of a supervisor that watches its ranks
    agent_store: bool = True  # the launch serves the rendezvous store, as torchrun does; otherwise rank 0 does

    @property
    def program(self) -> list[str]:
        """The command line after `python`."""
        return ["-m", self.module, *self.args] if self.module else [self.script, *self.args]

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, told: dict[str, Any]) -> Request:
        """The request that `to_json` has written."""
        return cls(**told | {"patience": Patience(**told["patience"])})


class LaunchLost(Exception):
    """The processes that watch over a launch ended without an answer."""


def send_message(conn: socket.socket, payload: bytes) -> None:
    conn.sendall(struct.pack("!I", len(payload)) + payload)


def receive_message(conn: socket.socket) -> bytes:
    """One message; raises LaunchLost when the other side is gone."""
    return _receive(conn, struct.unpack("!I", _receive(conn, 4))[0])


def _receive(conn: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            chunk = conn.recv(size - len(data))
        except ConnectionError:
            chunk = b""
        if not chunk:
            raise LaunchLost("the connection to the launch was lost")
        data += chunk
    return bytes(data)


def readable(conn: socket.socket, seconds: float) -> bool:
    """Whether something can be read from `conn` within `seconds`; unlike select it takes any number of open files."""
    poll = select.poll()
    poll.register(conn, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class Handle:
    """A running launch, reached through the socket of its supervisor."""

    where = ""  # the machines in words, if they aren't this one
    note = ""  # what the reader should know of the start
    queued = False  # whether it waits for its turn on a cluster

    def __init__(self, conn: socket.socket, start: str):
        self.conn = conn
        self.start = start  # how the ranks were started, in words

    def wait(self, seconds: float) -> dict[str, Any] | None:
        """The outcome if the launch ends within `seconds`, otherwise None. Raises LaunchLost."""
        if not readable(self.conn, seconds):
            return None
        return json.loads(receive_message(self.conn))

    def stop(self) -> None:
        """Ask the supervisor to end all ranks; `wait` then gives the outcome."""
        try:
            self.conn.send(b"stop")
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        self.conn.close()  # a supervisor whose kernel side is closed ends its ranks
