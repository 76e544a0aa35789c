"""Run a command as in a container that gives little: no IPv6, no ptrace, 64 MB of /dev/shm, a home to read only.
`python tests/poor_machine.py COMMAND ...`, on Linux on x86-64; without the right to arrange that, it says so and
ends with 1."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import tempfile
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000  # of unshare
READ_ONLY, ALL_BELOW, OWN = 1, 1 << 14, 1 << 18  # of mount
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2  # of prctl
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # REFUSE | the number of the error
EPERM, EAFNOSUPPORT, AF_INET6 = 1, 97, 10
SOCKET, PTRACE, READ_OTHERS_MEMORY = 41, 101, 310  # numbers of system calls


def check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def little_room() -> None:
    """A small /dev/shm, and a home to read from, which only this process and its children see."""
    user, group = os.geteuid(), os.getegid()
    check(libc.unshare(NEW_MOUNTS | (NEW_USERS if user else 0)))
    if user:  # otherwise its files belong to nobody, and some file systems refuse to make one
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path(f"/proc/self/{file}").write_text(text)
    check(libc.mount(b"none", b"/", None, ALL_BELOW | OWN, None))
    check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64m"))
    home = tempfile.mkdtemp(prefix="home-")
    check(libc.mount(b"tmpfs", home.encode(), b"tmpfs", READ_ONLY, None))
    os.environ["HOME"] = home
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "IPYTHONDIR"):
        os.environ.pop(name, None)


def refuse(*steps: tuple[int, int, int, int]) -> None:
    """Install a filter of system calls: a program of the old Berkeley packet filter, as (what, if true, if false,
    value)."""
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    check(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    check(libc.prctl(SECCOMP, FILTER, struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(text)), 0, 0))


def load(offset: int) -> tuple[int, int, int, int]:
    return 0x20, 0, 0, offset


def equal(value: int, skip: int, otherwise: int) -> tuple[int, int, int, int]:
    return 0x15, skip, otherwise, value


def answer(value: int) -> tuple[int, int, int, int]:
    return 0x06, 0, 0, value


if __name__ == "__main__":
    try:
        little_room()
        # The number of the call is at 0, its first argument at 16.
        refuse(
            load(0), equal(SOCKET, 0, 3), load(16), equal(AF_INET6, 0, 1), answer(REFUSE | EAFNOSUPPORT), answer(ALLOW)
        )
        refuse(load(0), equal(PTRACE, 1, 0), equal(READ_OTHERS_MEMORY, 0, 1), answer(REFUSE | EPERM), answer(ALLOW))
    except OSError as error:
        sys.exit(f"can't make this machine poor: {error}")
    os.execvp(sys.argv[1], sys.argv[1:])
