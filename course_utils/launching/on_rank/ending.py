"""End a rank as Python would, but without spending seconds on tearing down libraries.

Python waits for threads, calls what `atexit` holds, and drops the script's module, so that its objects are finalised
and the files it left open are written. Then it tears down every other module, which after `import torch` takes longer
than a small launch and helps nobody, so here a rank leaves by `os._exit` instead.
"""

from __future__ import annotations

import ctypes
import gc
import io
import itertools
import os
import sys
import threading
import traceback
import types
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NoReturn

if __package__:
    from . import cpython
else:  # in a rank that starts cold: see `rank_process`
    import cpython  # type: ignore[import-not-found,no-redef]

_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def end(code: int, folder: str, modules_before: int) -> NoReturn:
    """End the process with `code`, or with 1 if an exit function fails.

    `folder` holds the script, and perhaps modules of its own; `modules_before` is how many modules there were when it
    began.
    """
    try:
        for step in cpython.steps_of_the_end():
            step()
    except BaseException:
        traceback.print_exc()
        code = code or 1
    _flush_output()
    # Python freezes daemon threads from here on. Here they may run a moment longer, and fail because we drop what they
    # use; that isn't the script's fault.
    threading.excepthook = lambda *_: None
    try:
        # so that the collector, which knows no order, doesn't close a file before the one that writes into it
        held = _open_files()
        _drop_modules(folder, modules_before)
        _write(_open_files())
        del held
    except BaseException:
        traceback.print_exc()
    _flush_output()
    os._exit(code)


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _drop_modules(folder: str, modules_before: int) -> None:
    """Let go of the script and of the modules next to it, so that what only they refer to is finalised."""
    sys.last_type = sys.last_value = sys.last_traceback = sys.last_exc = None  # type: ignore[attr-defined]
    inside = folder.rstrip(os.sep) + os.sep
    # Not all modules: in a forked process, even looking at an object copies its page.
    newest: Any = list(itertools.islice(reversed(sys.modules.items()), max(0, len(sys.modules) - modules_before)))
    for name, module in [*newest, ("__main__", sys.modules.get("__main__"))]:
        file = getattr(module, "__file__", None) if isinstance(module, types.ModuleType) else None
        if (
            name == "__main__"
            or isinstance(file, str)
            and file.startswith(inside)
            and not any(part in file for part in _LIBRARIES)
        ):
            sys.modules[name] = None  # type: ignore[assignment]
    newest = module = None  # these names would keep them alive
    gc.collect()


def _open_files() -> list[Any]:
    """Every object that is read or written like a file, except the rank's own output."""
    ours = {id(stream) for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}
    # By type, not by isinstance: that asks the object, and some import something to answer.
    return [f for f in gc.get_objects() if issubclass(type(f), cpython.File) and id(f) not in ours]


def _write(files: list[Any]) -> None:
    """Write what open files still hold in memory: text first, which may go through gzip, which goes through a
    buffer."""
    texts = [f for f in files if type(f) is io.TextIOWrapper]
    buffers = [f for f in files if type(f) in (io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)]
    # Buffered files written in Python, such as gzip's: only closing them writes their last bytes.
    compressed = [
        f for f in files if type(f).__module__ not in ("_io", "io") and not issubclass(type(f), cpython.RawFile)
    ]
    closing = {id(f) for f in compressed}
    for file in [*texts, *_outer_first(compressed), *buffers]:
        try:
            if not file.closed and file.writable():
                file.close() if id(file) in closing else file.flush()
        except Exception:
            sys.stderr.write(f"Could not write the rest of {getattr(file, 'name', file)!r}, which was left open:\n")
            traceback.print_exc()


def _outer_first(files: Iterable[Any]) -> list[Any]:
    """Sort files: those that hold other files come before the files that they hold."""
    waiting, ordered = list(files), []
    while waiting:
        held = {id(inner) for outer in waiting for inner in getattr(outer, "__dict__", {}).values()}
        outer = [f for f in waiting if id(f) not in held] or waiting
        ordered += outer
        taken = {id(f) for f in outer}
        waiting = [f for f in waiting if id(f) not in taken]
    return ordered
