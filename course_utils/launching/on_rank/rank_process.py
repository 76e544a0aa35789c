"""One rank: runs the student's script as `python script.py` would, and leaves its log, its error and its stack as
files.

Only the standard library is imported here. A cold start executes this file; a warm start calls `run` after a fork.
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import io
import json
import os
import re
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source
from typing import Any, NoReturn

if __package__:
    from . import cpython, ending, flight_record, forked
else:  # executed as a file, whose folder is the first that is searched
    import cpython  # type: ignore[import-not-found,no-redef]
    import ending  # type: ignore[import-not-found,no-redef]
    import flight_record  # type: ignore[import-not-found,no-redef]
    import forked  # type: ignore[import-not-found,no-redef]

    # a script may have modules of these names
    for _name in ("cpython", "ending", "flight_record", "forked", "standing"):
        del sys.modules[_name]

# Scripts use SIGUSR1 and SIGUSR2 themselves, so we take another; without real-time signals SIGUSR2 has to do.
DUMP_SIGNAL = signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
# Writes where the main thread stands, and nothing else: it may come at any moment, while other threads run, whose
# frames nobody may look at then.
LOOK_SIGNAL = signal.SIGRTMIN + 13 if hasattr(signal, "SIGRTMIN") else None
PR_SET_PDEATHSIG = 1
YOUNG_S = 2.0  # bytecode written so soon after a change of its source may be of the text before
_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]")  # nobody edits these between two launches

_now = time.time  # the real one: an emulated cluster gives the program a clock of its own
_kept: list[Any] = []  # what must live as long as the process


def die_with_parent(parent: int) -> None:
    """Linux kills this process when the thread that started it ends; nothing happens elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def run(program: list[str], forked_warm: bool = False) -> NoReturn:
    """Run a program as `__main__`, and end the process with its exit code.

    `program` is the command line that would come after `python`: a script and its arguments, or `-m`, a module and its
    arguments. `forked_warm` says that this process was forked from one that has imported torch.
    """
    folder, rank = os.environ["COURSE_RUN_DIR"], os.environ["RANK"]
    error_file, ended = (os.path.join(folder, f"rank{rank}.{what}") for what in ("error.json", "ended"))
    for left in (error_file, ended):  # by an earlier attempt, before all ranks were restarted
        if os.path.exists(left):
            os.unlink(left)
    _redirect(os.path.join(folder, f"rank{rank}.log"))
    # Emptied once, and then only added to: the supervisor empties it again after each look.
    stack = open(os.path.join(folder, f"rank{rank}.stack"), "ab", buffering=0)
    stack.truncate(0)
    faulthandler.enable(stack)  # and not the log: our own frames are in it, and `failure` says what matters
    faulthandler.register(DUMP_SIGNAL, file=stack, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [DUMP_SIGNAL])
    if limit := os.environ.pop("COURSE_TIMEOUT_S", ""):  # on a cluster nobody can signal this rank in time
        faulthandler.dump_traceback_later(float(limit), file=stack)
    _kept.append(stack)
    if LOOK_SIGNAL is not None:
        _kept.append(open(os.path.join(folder, f"rank{rank}.place"), "wb", buffering=0))
        faulthandler.register(LOOK_SIGNAL, file=_kept[-1], all_threads=False)
    with open(os.path.join(folder, f"rank{rank}.pid"), "w") as file:
        file.write(f"{os.getpid()} {os.uname().nodename}")
    record = os.path.join(folder, f"rank{rank}.collectives.json")
    flight_record.keep(record)
    if sys.platform == "linux":
        _mark_shared_memory(os.environ.get("COURSE_LAUNCH_TMP", "course"))
    place = os.getcwd() if program[0] == "-m" else os.path.dirname(os.path.realpath(program[0]))
    sys.path[0] = place
    package = os.environ.pop("COURSE_PACKAGE_PATH", "")
    if package and package not in sys.path:
        sys.path.append(package)  # last, as an installed package would come
    sys.meta_path.insert(0, _BeforePyplot)
    _distrust_young_bytecode()
    modules = len(sys.modules)
    code = _run_main(program, error_file, forked_warm)
    flight_record.write(record, ended=True)
    with suppress(OSError):
        open(ended, "w").close()
    ending.end(code, place, modules)


def _distrust_young_bytecode() -> None:
    """Import from the source whatever was changed shortly before its bytecode was written.

    Python takes bytecode for fresh if its source has the same size and was changed in the same *second*. Edit one
    character of a helper and launch again at once: without this, ranks would run the helper as it was before.
    """
    stats_of = SourceFileLoader.path_stats

    def path_stats(self: SourceFileLoader, path: Any) -> Any:
        stats = stats_of(self, path)
        if not _LIBRARIES.search(str(path)):
            try:
                written = min(os.stat(cache_from_source(path)).st_mtime, _now())
            except (OSError, NotImplementedError):  # there is no bytecode yet
                written = _now()
            if written < stats["mtime"] + YOUNG_S:
                raise OSError("too young to tell")  # Python then neither reads bytecode nor writes any
        return stats

    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]


class _BeforePyplot:
    """Asked before each import of a module: when it's pyplot's turn, `plt.show()` is made to show under the cell. The
    variable MPLBACKEND can't do that, because a program that a rank starts may not find our module."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "matplotlib.pyplot" and sys.modules["matplotlib"].rcParams["backend"].lower() == "agg":
            sys.modules["matplotlib"].use("module://course_utils.launching.on_rank.plt_backend")


def _mark_shared_memory(tmp: str) -> None:
    """Show the supervisor what in /dev/shm is ours: semaphores by their names, Python's shared memory by a note in the
    launch's `tmp`."""
    cpython.name_semaphores("/" + os.path.basename(tmp))
    if os.path.basename(tmp).startswith("course-"):  # on a cluster no supervisor reads it
        cpython.note_shared_memory(os.path.join(tmp, ".shared_memory"))


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
    sys.stdout = sys.__stdout__ = _unbuffered(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2)  # type: ignore[misc]
    try:  # C's stdout is fully buffered when it is a file
        libc = ctypes.CDLL(None)
        name = "__stdoutp" if sys.platform == "darwin" else "stdout"
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, 1, 0)  # 1 is _IOLBF
    except (OSError, ValueError, AttributeError):
        pass


def _unbuffered(fd: int) -> io.TextIOWrapper:
    """A text stream that writes at once, as under `python -u`, which torchrun uses: if a rank is killed, its log has
    all that it printed, even half a line."""
    raw = open(fd, "wb", buffering=0, closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def _run_main(program: list[str], error_file: str, forked_warm: bool) -> int:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    own = os.getpid()
    finish: Callable[[], None] = lambda: None  # noqa: E731
    try:
        if forked_warm:
            forked.renew()
        if cluster := os.environ.get("COURSE_CLUSTER"):
            finish = _emulate(cluster)
        exec(_module(main, program[1:]) if program[0] == "-m" else _script(main, program), main.__dict__)
        return 0
    except SystemExit as ended:
        code = _exit_status(ended.code)
        if code and not isinstance(ended.code, int):
            sys.stderr.write(f"{ended.code}\n")
        if code and os.getpid() == own:
            _record(error_file, ended, printed=True)  # Python wouldn't print more
        return code
    except BaseException as error:
        # Python's own hook would only print the traceback, and the notebook shows that already.
        call = os.getpid() != own or not _is_pythons(sys.excepthook)
        if os.getpid() == own:
            _record(error_file, error, printed=call)
        if call:
            _call_hook(error)
        return 1
    finally:
        finish()


def _emulate(cluster: str) -> Callable[[], None]:
    """Let the program see the GPUs of an emulated cluster. Returns what to call when it has ended."""
    from course_utils.emulation import activate

    return activate(cluster, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def _exit_status(code: object) -> int:
    """The exit code that Python makes from the argument of `sys.exit`."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return code & 0xFF if -sys.maxsize - 1 <= code <= sys.maxsize else 0xFF


def _is_pythons(hook: Any) -> bool:
    """Whether this is Python's hook for uncaught exceptions, perhaps inside the one of `init_process_group`, which puts
    the rank before each line."""
    while getattr(hook, "__module__", "") == "torch.distributed.distributed_c10d":
        held = dict(zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=True))
        if "old_hook" not in held:
            break
        hook = held["old_hook"].cell_contents
    return hook is sys.__excepthook__


def _script(main: types.ModuleType, program: list[str]) -> types.CodeType:
    sys.argv = program
    main.__file__ = program[0]
    with open(program[0], "rb") as file:
        return compile(file.read(), program[0], "exec", dont_inherit=True)


def _module(main: types.ModuleType, program: list[str]) -> types.CodeType:
    """The code that `python -m` would run; for a package, that's its `__main__`."""
    import importlib.util

    sys.argv = ["-m", *program[1:]]  # as Python has it while it imports the packages around the module
    spec: ModuleSpec | None = importlib.util.find_spec(program[0])
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{program[0]}.__main__")
    code = spec.loader.get_code(spec.name) if spec is not None and spec.loader is not None else None  # type: ignore[attr-defined]
    if spec is None or code is None:
        raise ModuleNotFoundError(f"No module named {program[0]!r} that could be run", name=program[0])
    main.__dict__.update(
        __file__=spec.origin, __spec__=spec, __package__=spec.parent, __loader__=spec.loader, __cached__=spec.cached
    )
    sys.argv = [str(spec.origin), *program[1:]]
    return code


def _own_frames_dropped(error: BaseException) -> types.TracebackType | None:
    """The traceback without our own frames at its start."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    return tb


def _record(error_file: str, error: BaseException, printed: bool) -> None:
    """Save the exception for the notebook. `printed` says that the log has it already, in the form that this rank
    chose."""
    now = _now()
    text = "".join(traceback.TracebackException(type(error), error, _own_frames_dropped(error)).format())
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be made)"
    record = {
        "time": now,
        "type": type(error).__name__,
        "message": _printable(message),
        "traceback": _printable(text),
        "printed": printed,
    }
    with open(error_file + ".partial", "w") as file:
        json.dump(record, file)
    os.replace(error_file + ".partial", error_file)


def _printable(text: str) -> str:
    """`text` with its surrogates escaped. They stand for bytes that aren't text, and no file or notebook takes them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _call_hook(error: BaseException) -> None:
    try:
        error = error.with_traceback(_own_frames_dropped(error))
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        sys.stderr.write("Error in sys.excepthook:\n")
        traceback.print_exc()


def main() -> NoReturn:
    """Cold start: `rank_process.py SCRIPT ARGS...`, or `-m MODULE ARGS...`, with the rest in the environment."""
    parent = os.environ.pop("COURSE_PARENT", "")
    if parent:
        die_with_parent(int(parent))
    run(sys.argv[1:])


if __name__ == "__main__":
    # As a module of its own, so that the student's script can be `__main__`.
    sys.modules["course_rank_process"] = sys.modules["__main__"]
    main()
