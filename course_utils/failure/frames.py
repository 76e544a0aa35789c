"""Tracebacks and dumps of a rank in the words of the cell: its frames first, libraries folded, and no path that the
reader never chose."""

from __future__ import annotations

import importlib.machinery
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ..folders import CELL, PACKAGE
from ..show.notebook import ipython_shell

_CALL = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)(,? in (?P<function>.+))?$')  # of a traceback
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)$')  # of faulthandler
STARTED = "waits for processes that it has started"
_JOINS = ("join", "wait", "_wait_for_exit")  # in multiprocessing, and in torch.multiprocessing

# Packages whose frames say nothing about the student's program, even if somebody keeps them next to their own code and
# lists that folder in a .pth file.
_LIBRARIES = (
    "torch",
    "torchvision",
    "numpy",
    "PIL",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "tensorflow",
    "keras",
    "matplotlib",
)


@cache
def _library_roots() -> tuple[str, ...]:
    """The folders of Python and of known libraries, each as it's named and with links followed."""
    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {str(PACKAGE)}
    # not the working folder: a folder of the student's may have such a name there
    places = [place for place in sys.path if os.path.abspath(place or ".") != os.getcwd()]
    for name in _LIBRARIES:
        try:
            spec = importlib.machinery.PathFinder.find_spec(name, places)  # this imports nothing
        except Exception:  # somebody's own finder
            continue
        roots |= set(spec.submodule_search_locations or ()) if spec is not None else set()
    return tuple(root.rstrip(os.sep) + os.sep for root in roots | {os.path.realpath(root) for root in roots})


def is_students(file: str) -> bool:
    """Whether a file is the student's own, not Python's, a library's or ours. The ranks may have used another Python
    than this one."""
    if file.startswith(("<", *_library_roots())) or {"site-packages", "dist-packages"} & set(file.split(os.sep)):
        return False
    return not re.search(r"/lib(64)?/python3\.\d+/", file)


def of_program(script: str) -> Callable[[str], bool]:
    """Whether a file is the student's own in a launch of `script`. That may be a library's, started by `-m`: then the
    files of its package are what the student would look at."""
    if is_students(script):
        return is_students
    package = re.match(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3\.\d+)/[^/]+/", script)
    inside = package[0] if package else script
    return lambda file: file.startswith(inside) or is_students(file)


def cell_of(script: str) -> str:
    """What Jupyter calls the cell that runs now, if this file is its copy: `Cell In[5]`. VS Code makes that a link."""
    if not is_cell(script):
        return ""
    shell = ipython_shell()
    if shell is None:
        return "Cell"
    # The counter of newer IPython is one ahead while a cell runs.
    number = len(shell.history_manager.input_hist_parsed) - 1
    return f"Cell In[{number}]" if number else "Cell"


def is_cell(file: str) -> bool:
    """Whether a file is the copy of a `%%ranks` cell."""
    linecache.checkcache(file)  # a cell that ran before may have been edited since
    return bool(re.search(r"-[0-9a-f]{8}\.py$", file)) and linecache.getline(file, 1) == CELL


def fold(traceback: str, script: str = "") -> str:
    """Fold each run of library frames in a traceback into a line that counts them and names the innermost; the frames
    of your own code stay. If there are none, nothing is folded. The lines of `script` are those of the cell that it's
    the copy of."""
    # a piece is a frame, which is its `File` line and the deeper lines below it, or any other single line
    pieces: list[list[str]] = []
    for line in traceback.splitlines():
        if _CALL.match(line) or not pieces or not line.startswith("    "):
            pieces.append([line])
        else:
            pieces[-1].append(line)
    places = [_CALL.match(piece[0]) for piece in pieces]
    keep_all = not any(place and is_students(place["file"]) for place in places)
    cell = cell_of(script)
    shown: list[str] = []
    folded: list[re.Match[str]] = []
    for piece, place in [*zip(pieces, places, strict=True), ([], None)]:
        if place and not keep_all and not is_students(place["file"]):
            folded.append(place)
            continue
        if folded:
            inner = folded[-1]
            frames = f"{len(folded)} library frame{'s' * (len(folded) > 1)}"
            called = f", down to {inner['function']}" if inner["function"] else ""
            shown.append(f"  ... {frames}{called} in {_short(inner['file'])}, line {inner['line']} ...")
            folded = []
        if place and cell and place["file"] == script:
            inside = f", in {place['function']}" if place["function"] not in (None, "<module>") else ""
            piece = [f"  {cell}, line {place['line']}{inside}", *piece[1:]]
        shown += piece
    return "\n".join(shown)


def last_own(traceback: str) -> str:
    """Where the student's own code stood: "`dist.recv(x, 0)`, line 10"; empty where the traceback has none of it."""
    lines = [*traceback.splitlines(), ""]
    found = [
        (lines[i + 1].strip(), place["line"])
        for i, line in enumerate(lines)
        if (place := _CALL.match(line)) and is_students(place["file"])
    ]
    return f"`{found[-1][0]}`, line {found[-1][1]}" if found else ""


def died(dump: str, script: str) -> str:
    """The student's own lines in the stack that a rank wrote when a signal killed it, the innermost first."""
    dying = re.search(r"^Current thread .*?(?=^Thread |\Z)", dump, re.M | re.S)
    frames = [m for line in (dying[0] if dying else "").splitlines() if (m := _FRAME.match(line))]
    students = of_program(script)
    own = [m for m in frames if students(m["file"])]
    named = {script: cell_of(script)}
    return "\n".join(
        f"  {named.get(m['file']) or m['file']}, line {m['line']} in {m['function']}:"
        f" {linecache.getline(m['file'], int(m['line'])).strip() if m['line'].isdigit() else ''}"
        for m in own
    )


def _short(file: str) -> str:
    """The path of a library's file without the folder that all libraries are in."""
    inside = re.sub(r"^.*/(?:(?:site|dist)-packages|lib(?:64)?/python3\.\d+)/", "", file)
    return inside if inside != file else "/".join(Path(file).parts[-3:])


def where(dump: str, rank: int) -> str:
    """A sentence from a faulthandler dump: `rank 0 waits in all_reduce: "dist.all_reduce(t)", line 12`."""
    if dump.startswith("stopped by a signal"):  # as `supervisor/stacks.py` writes it
        return f"rank {rank} was stopped (SIGSTOP): it could do nothing until somebody sends SIGCONT"
    threads: list[list[tuple[str, int, str]]] = []
    frames: list[tuple[str, int, str]] = []
    for text in dump.splitlines():
        if text.startswith(("Thread ", "Current thread ")):
            frames = []
            threads.append(frames)
        elif match := _FRAME.match(text):
            frames.append((match["file"], int(match["line"]) if match["line"].isdigit() else 0, match["function"]))
    main = next(
        (t for t in threads if any(f.endswith("on_rank/rank_process.py") for f, _, _ in t)),
        threads[0] if threads else [],
    )
    # what rank_process.py runs, unless it's still getting ready for that
    begun = [
        inner[0]
        for inner, (file, _, f) in zip(main, main[1:], strict=False)
        if file.endswith("on_rank/rank_process.py") and f == "_run_main" and inner[2] == "<module>"
    ]
    own = of_program(begun[-1]) if begun else is_students
    at = next((i for i, (file, _, _) in enumerate(main) if own(file)), None)
    if at is None:
        return f"rank {rank} was starting or ending: it was not running your script"
    file, line, _ = main[at]
    linecache.checkcache(file)  # a cell that ran before may have been edited since
    source = linecache.getline(file, line).strip()
    named = [(path, f) for path, _, f in main[:at] if f != "wrapper" and not f.startswith("<")]
    inside = [
        ("DDP's " if "/nn/parallel/" in path else "") + f
        for path, f in named
        if "/torch/distributed/" in path or "/torch/nn/parallel/" in path
    ]
    if any("/multiprocessing/" in path and f in _JOINS for path, f in named):
        does = STARTED
    elif inside:
        does = f"waits in {inside[-1]}"
    else:
        does = "is in backward (under DDP it waits there for the others' gradients)" if "backward(" in source else "is"
    return f"rank {rank} {does}: `{source}`, line {line} of {'the cell' if is_cell(file) else Path(file).name}"
