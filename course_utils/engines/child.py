"""One rank: runs the student's script as `python script.py` would, and leaves its log, its error and its stack as files.

The standard library alone is imported here. A cold start executes this file; a warm start calls `run` after a fork.
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import json
import multiprocessing.process
import os
import signal
import struct
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

# Scripts use SIGUSR1 and SIGUSR2 themselves; where there are no real-time signals SIGUSR2 has to do.
DUMP_SIGNAL = signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
PR_SET_PDEATHSIG = 1

_kept: list[Any] = []  # what must live as long as the process


def die_with_parent(parent: int) -> None:
    """Linux kills this process when the thread that started it ends; nothing happens elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def run(script: str, args: list[str], link_fd: int | None = None, store_fd: int | None = None, renew: Callable[[], None] | None = None) -> NoReturn:
    """Run `script` in a lasting `__main__` and end the process with its exit code.

    `link_fd` is a socket to the supervisor, which is told there when the script has finished. `store_fd` is a listening socket on
    which this rank serves the rendezvous store; it then stays until that link is shut, for the other ranks may still need the store
    after this one's script has ended. `renew` is what a forked process has to do first.
    """
    folder, rank = os.environ["COURSE_RUN_DIR"], os.environ["RANK"]
    _redirect(os.path.join(folder, f"rank{rank}.log"))
    stack = open(os.path.join(folder, f"rank{rank}.stack"), "wb", buffering=0)
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, file=stack, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [DUMP_SIGNAL])
    if limit := os.environ.pop("COURSE_TIMEOUT_S", ""):  # on a cluster nobody can ask this rank at the right time
        faulthandler.dump_traceback_later(float(limit), file=stack)
    _kept.append(stack)
    with open(os.path.join(folder, f"rank{rank}.pid"), "w") as file:
        file.write(f"{os.getpid()} {os.uname().nodename}")
    if sys.platform == "linux":  # so that the supervisor knows which semaphores in /dev/shm are ours
        multiprocessing.process.current_process()._config["semprefix"] = "/" + os.path.basename(os.environ.get("TMPDIR", "course"))  # type: ignore[attr-defined]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    package = os.environ.pop("COURSE_PACKAGE_PATH", "")
    if package and package not in sys.path:
        sys.path.append(package)  # last, as an installed package would come
    sys.argv = [script, *args]

    def prepare() -> None:
        if renew is not None:
            renew()
        if store_fd is not None:
            _serve_store(store_fd)

    code = _run_main(script, os.path.join(folder, f"rank{rank}.error.json"), prepare)
    _end(code, int(rank), link_fd, stay=store_fd is not None)


def _redirect(log: str) -> None:
    """Send this process's output, C's included, to `log` line by line, and give it an empty standard input."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fd, target)
    os.close(out)
    os.close(null)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # type: ignore[misc]
    try:  # C's stdout is fully buffered when it is a file
        libc = ctypes.CDLL(None)
        name = "__stdoutp" if sys.platform == "darwin" else "stdout"
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, 1, 0)  # 1 is _IOLBF
    except (OSError, ValueError, AttributeError):
        pass


def _serve_store(fd: int) -> None:
    from datetime import timedelta

    from torch.distributed import TCPStore

    address, port, world = "127.0.0.1", int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"])
    _kept.append(TCPStore(address, port, world, True, timedelta(seconds=300), wait_for_workers=False, master_listen_fd=fd))


def _run_main(script: str, error_file: str, prepare: Callable[[], None]) -> int:
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=builtins, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    try:
        prepare()
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec", dont_inherit=True)
        exec(code, main.__dict__)
        return 0
    except SystemExit as ended:
        if ended.code is None or ended.code == 0:
            return 0
        _record(error_file, ended)
        return ended.code & 0xFF if isinstance(ended.code, int) else 1
    except BaseException as error:
        _record(error_file, error)
        return 1


def _record(error_file: str, error: BaseException) -> None:
    """Leave the exception for the notebook, from the first frame of the student's code on."""
    now = time.time()
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    text = "".join(traceback.TracebackException(type(error), error, tb).format())
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be made)"
    record = {"time": now, "type": type(error).__name__, "message": message, "traceback": text}
    with open(error_file + ".partial", "w") as file:
        json.dump(record, file)
    os.replace(error_file + ".partial", error_file)


def _end(code: int, rank: int, link_fd: int | None, stay: bool) -> NoReturn:
    """What the interpreter does at its end, without tearing modules down: threads, atexit, flush."""
    import atexit
    import threading

    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
        code = code or 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    ctypes.CDLL(None).fflush(None)
    if link_fd is not None and code == 0:
        try:
            os.write(link_fd, struct.pack("!I", rank))
            if stay:
                _linger(link_fd)
        except OSError:
            pass  # the supervisor is gone
    os._exit(code)


def _linger(fd: int) -> None:
    """Wait, with the script at its end, until the other ranks need this one's store no more."""
    while os.read(fd, 1):
        pass


def main() -> NoReturn:
    """Cold start: `child.py SCRIPT ARGS...`, with the rest in the environment."""
    parent = os.environ.pop("COURSE_PARENT", "")
    if parent:
        die_with_parent(int(parent))
    run(sys.argv[1], sys.argv[2:], _given_fd("COURSE_LINK_FD"), _given_fd("COURSE_STORE_FD"))


def _given_fd(name: str) -> int | None:
    value = os.environ.pop(name, "")
    if not value:
        return None
    os.set_inheritable(int(value), False)
    return int(value)


if __name__ == "__main__":
    # As a module of its own, so that the student's script can be `__main__`.
    sys.modules["course_rank_child"] = sys.modules["__main__"]
    main()
