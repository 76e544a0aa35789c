"""Where things lie: the course's home, what runs/ keeps of a notebook, and the folder of each kernel in it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = PACKAGE.parent  # of the course, where this package is used from one
CARRIED = PACKAGE / "course"  # what a wheel carries of the course: notebooks, exercises, data
COURSE = CARRIED if CARRIED.is_dir() else CHECKOUT
# The first line of a copy of a `%%ranks` cell.
CELL = "# %%ranks wrote this file. This line takes the place of its own, so that line numbers match the cell's.\n"
KEEP = 50  # launches kept for each notebook


def course_home() -> Path:
    """The root of the course: COURSE_HOME, else the checkout that this package is used from, else the working
    folder."""
    if "COURSE_HOME" in os.environ:
        return Path(os.environ["COURSE_HOME"]).expanduser().resolve()
    return CHECKOUT if (CHECKOUT / "pyproject.toml").exists() and os.access(CHECKOUT, os.W_OK) else Path.cwd()


def notebook_name() -> str:
    """The name of this kernel's notebook, if the front end tells us; `python` outside a notebook."""
    told = os.environ.get("COURSE_NOTEBOOK") or os.environ.get("JPY_SESSION_NAME") or ""
    if not told:
        try:  # VS Code says it in the user's namespace
            from IPython import get_ipython

            told = getattr(get_ipython(), "user_ns", {}).get("__vsc_ipynb_file__", "")
        except ImportError:
            pass
    stem = Path(told).stem if told else "python"
    return re.sub(r"[^\w.-]", "_", stem)[:80] or "python"


def notebook_folder() -> Path:
    """`runs/<notebook>/` under the course's home, which only its owner can read."""
    root = course_home() / "runs"
    folder = root / notebook_name()
    for path in (root, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def kernel_folder() -> Path:
    """`runs/<notebook>/kernel-.../`, for this kernel's scripts and launches: two kernels of one notebook, such as two
    browser tabs or nbval next to JupyterLab, don't overwrite each other's files. A kernel that is restarted keeps it.

    `runs/<notebook>/latest` points to the newest.
    """
    folder = notebook_folder() / f"kernel-{_kernel_id()}"
    if folder not in _held or not folder.exists():  # somebody may have removed all of runs/ meanwhile
        folder.mkdir(mode=0o700, exist_ok=True)
        _held[folder] = _hold(folder)
        _point(folder.parent / "latest", folder.name)
        _remove_kernels(folder.parent)
    return folder


_held: dict[Path, int] = {}  # this kernel's folders -> a descriptor that keeps each locked while the kernel lives


@cache
def _kernel_id() -> str:
    """Stays the same when a kernel is restarted, since Jupyter then keeps its connection file. Any other Python is one
    of its kind."""
    if "ipykernel" in sys.modules:
        from ipykernel.connect import get_connection_file

        with suppress(RuntimeError):  # imported, and not a kernel
            return hashlib.sha256(os.fsencode(get_connection_file())).hexdigest()[:8]
    return hashlib.sha256(f"{os.getpid()} {time.time_ns()}".encode()).hexdigest()[:8]


def _hold(folder: Path) -> int:
    """Lock a kernel's folder until this process ends. Returns -1 where it's locked already, or can't be."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd
    except OSError:
        os.close(fd)
        return -1


def _point(link: Path, name: str) -> None:
    """Make `link` point to `name`, in one step. A file system without links goes without."""
    new = link.with_name(f".{link.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        new.symlink_to(name)
        new.replace(link)
    except OSError:  # or a folder of that name is there
        new.unlink(missing_ok=True)


def _remove_kernels(parent: Path) -> None:
    """Remove the folders of kernels that have ended a day ago, and have no launch left."""
    for folder in parent.glob("kernel-*"):
        with suppress(OSError):
            if any((folder / "launches").glob("*")) or time.time() - _changed(folder) < 86400:
                continue
            if folder not in _held and (fd := _hold(folder)) >= 0:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(fd)


def save_script(source: str, name: str = "cell.py") -> Path:
    """Save `source` with the kernel's other scripts, and return the copy that has a hash of the content in its name.

    The copy never changes, so that a traceback keeps showing the lines that ran. With a name of your own (`model.py`)
    there's also a plain file of that name, which the scripts of later cells can import.
    """
    folder = kernel_folder()
    stem = name.removesuffix(".py")
    if not stem.isidentifier():
        raise ValueError(
            f"{name!r} cannot be imported by other cells; choose letters, digits and underscores, as in model.py"
        )
    path = folder / f"{stem}-{hashlib.sha256(source.encode()).hexdigest()[:8]}.py"
    for target in [path] + ([folder / f"{stem}.py"] if stem != "cell" else []):
        before = _changed(target)
        if not before or target.read_text() != source:
            write_whole(target, source)
            if before:  # Python compares whole seconds, and would take the bytecode of the text before for fresh
                os.utime(target, (time.time(), max(time.time(), before + 1)))
    os.utime(path)
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a file in a folder that exists. Whoever reads it meanwhile gets the whole old one or the whole new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def new_run_folder() -> Path:
    """Make a new folder for one launch. Only the newest `KEEP` of this notebook are kept, whichever kernel's they
    are."""
    parent = kernel_folder() / "launches"
    parent.mkdir(mode=0o700, exist_ok=True)
    for attempt in range(10_000):
        folder = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{attempt}"
        try:
            folder.mkdir(mode=0o700)
            break
        except FileExistsError:
            continue
    for old in _by_age(notebook_folder().glob("kernel-*/launches/*"))[:-KEEP]:
        # run.json is written at the end, so a folder without it may belong to a launch that still runs. A detached job
        # may still run too.
        if _left(old) not in ("", "waiting", "running") or time.time() - _changed(old) > 7 * 86400:
            shutil.rmtree(old, ignore_errors=True)
    for old in _by_age(kernel_folder().glob("*-????????.py"))[: -4 * KEEP]:
        old.unlink(missing_ok=True)
    return folder


_temporary: dict[str, tuple[Path, int]] = {}  # TMPDIR -> this kernel's folder there, and what keeps it
_lock = threading.Lock()
# Ends when nobody has the file open for writing any more, which is exact: the system closes files of whoever ends.
_REMOVE_AT_THE_END = 'while read -r _; do :; done < "$1/alive"; rm -rf -- "$1"'


def temporary_folder(wanted: str) -> Path:
    """The folder for temporary files of all launches of this process: a notebook's kernel, or a script. It's in
    `wanted`, or if that can't be, where the system has room. What ranks leave in `tmp` below it stays for later
    launches.

    A small process removes it once this one has ended, however it ended, and with it all that have opened `alive`
    there, such as a supervisor that is still ending its ranks. Raises OSError.
    """
    with _lock:
        if wanted in _temporary and not all((_temporary[wanted][0] / name).exists() for name in ("tmp", "alive")):
            os.close(_temporary.pop(wanted)[1])  # somebody has removed old files there
        if wanted not in _temporary:
            try:
                _temporary[wanted] = _new_temporary_folder(wanted or None)
            except OSError:
                _temporary[wanted] = _new_temporary_folder(None)
        return _temporary[wanted][0]


def _new_temporary_folder(parent: str | None) -> tuple[Path, int]:
    folder = Path(tempfile.mkdtemp(prefix="course-", dir=parent))
    fd = -1
    try:
        (folder / "tmp").mkdir(mode=0o700)
        os.mkfifo(folder / "alive", 0o600)
        fd = os.open(folder / "alive", os.O_RDWR)
        process = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE_AT_THE_END, "sh", folder],
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        if fd >= 0:
            os.close(fd)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    process.returncode = 0  # it outlives us
    return folder, fd


def _forget_temporary_folders() -> None:
    """A process that the kernel forks must not keep its folders, and makes its own if it launches."""
    global _lock
    _lock = threading.Lock()
    for _, fd in _temporary.values():
        os.close(fd)
    _temporary.clear()


os.register_at_fork(after_in_child=_forget_temporary_folders)


def compiler_cache(processor: str) -> Path:
    """The folder in which `torch.compile` keeps what it compiled for this kind of processor. All launches of all
    notebooks share it; torch locks its files."""
    return course_home() / "runs" / ".compiled" / hashlib.sha256(processor.encode()).hexdigest()[:8]


def keep_fonts() -> None:
    """Where matplotlib can't write to the home, as in some containers, every rank would look for fonts anew, and
    complain. There, it keeps what it finds under `runs/`."""
    usual = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "matplotlib").absolute()
    nearest = next(folder for folder in (usual, *usual.parents) if folder.exists())
    if "MPLCONFIGDIR" in os.environ or os.access(nearest, os.W_OK):
        return
    own = course_home() / "runs" / ".matplotlib"
    try:
        own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own.mkdir(exist_ok=True)
    except OSError:  # nothing can be written here either
        return
    os.environ["MPLCONFIGDIR"] = str(own)


def _left(folder: Path) -> str:
    """The outcome that a launch has left in its folder, or an empty string."""
    if not (folder / "job.sbatch").exists():
        return "finished" if (folder / "run.json").exists() else ""
    try:
        return str(json.loads((folder / "run.json").read_text())["outcome"])
    except (OSError, ValueError, KeyError):
        return ""


def _by_age(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=_changed)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another launch has just removed it
        return 0.0


def add_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to a file of JSON lines, in a single write, so that processes don't tear each other's. Raises
    OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, (json.dumps(record) + "\n").encode())
    finally:
        os.close(fd)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines. One that was cut off when its writer was killed is left out, and a file that
    can't be read has none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record
