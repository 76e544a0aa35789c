"""The private parts of Python that ranks depend on, all in one place.

We looked at each in CPython 3.11, 3.12 and 3.13, the versions that the course allows, and say what happens if a later
one drops it. `tests/test_compat.py` tries each on the Python that runs it. A rank that starts cold executes these files
before it knows of any package, so only the standard library is imported here.
"""

from __future__ import annotations

import _io
import atexit
import multiprocessing.process
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# The base classes, in C, of everything that is read or written like a file. The classes in `io` would do too, but they
# ask the object what it is, and some objects import something to answer. If these are gone, no rank can be imported.
File, RawFile = _io._IOBase, _io._RawIOBase


def steps_of_the_end() -> tuple[Callable[[], None], ...]:
    """What Python calls first at its end: one function waits for every thread that isn't a daemon, the other calls what
    `atexit` holds. Call them without a frame of ours in between.

    We look them up as late as Python does, because libraries replace them. If they're gone, each rank prints an
    AttributeError at its end, and fails.
    """
    return threading._shutdown, atexit._run_exitfuncs  # type: ignore[attr-defined]


def forget_exit_functions() -> None:
    """Remove what libraries have registered with `atexit` and `weakref.finalize`. What a script registers later is
    still called, even in a process forked from this one.

    If these are gone, the warm server ends early, and launches start cold and say so.
    """
    import logging
    import multiprocessing.util
    import weakref

    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    atexit._clear()
    for function in (logging.shutdown, weakref.finalize._exitfunc, multiprocessing.util._exit_function):  # type: ignore[attr-defined]
        atexit.register(function)  # these wait for what the script itself has begun


def name_semaphores(prefix: str) -> None:
    """Make the names of semaphores begin with `prefix`, in this process and in those that it starts.

    If it's gone, Python chooses the names, and what a killed rank leaves stays in /dev/shm.
    """
    _configuration()["semprefix"] = prefix


def note_shared_memory(path: str) -> None:
    """Make this process, and those that it starts, note in the file `path` what they create with
    `multiprocessing.shared_memory`: a line with name, device and inode for each.

    If it's gone, nothing is noted, and what a killed rank leaves stays in /dev/shm.
    """
    code = _NOTE_SHARED_MEMORY.format(note=path)
    with suppress(ImportError, AttributeError):
        exec(code, {})
        _configuration()["course_shared_memory"] = _RunWhenUnpickled(code)


def _configuration() -> dict[str, Any]:
    """What `multiprocessing` passes on to each process that this one starts; if it's gone, a dict that nobody
    reads."""
    return getattr(multiprocessing.process.current_process(), "_config", {})


# Loads nothing that a script's folder might shadow.
_NOTE_SHARED_MEMORY = """
import os, _posixshmem
def shm_open(path, flags, mode=0o777, shm_open=_posixshmem.shm_open):
    fd = shm_open(path, flags, mode=mode)
    if flags & os.O_EXCL:
        made = os.fstat(fd)
        try:
            note = os.open({note!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(note, f"{{path}}\\t{{made.st_dev}} {{made.st_ino}}\\n".encode())
            os.close(note)
        except OSError:
            pass
    return fd
_posixshmem.shm_open = shm_open
"""


class _RunWhenUnpickled:
    """In a process's configuration, it runs `code` in each process that this one spawns."""

    def __init__(self, code: str):
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code, {})
