"""Where things lie: the course's home, and the folder under runs/ that a notebook's launches share."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path

KEEP = 50  # launches kept for each notebook


def course_home() -> Path:
    """The root of the course: COURSE_HOME, else the checkout that this package is used from, else the working folder."""
    if "COURSE_HOME" in os.environ:
        return Path(os.environ["COURSE_HOME"]).expanduser().resolve()
    checkout = Path(__file__).resolve().parent.parent
    return checkout if (checkout / "pyproject.toml").exists() and os.access(checkout, os.W_OK) else Path.cwd()


def notebook_name() -> str:
    """The name of the notebook that this kernel serves, as far as the front end tells; `python` outside one."""
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
    """`runs/<notebook>/` under the course's home, for the owner's eyes only."""
    root = course_home() / "runs"
    folder = root / notebook_name()
    for path in (root, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def save_script(source: str, name: str = "cell.py") -> Path:
    """Save `source` beside the notebook's other scripts, and return the copy whose name carries a hash of the content.

    The copy never changes, so that a traceback keeps showing the lines that ran. A name of one's own (`model.py`) also gets a
    plain file of that name, which the scripts of later cells can import.
    """
    folder = notebook_folder()
    stem = name.removesuffix(".py")
    if not stem.isidentifier():
        raise ValueError(f"{name!r} cannot be imported by other cells; choose letters, digits and underscores, as in model.py")
    path = folder / f"{stem}-{hashlib.sha256(source.encode()).hexdigest()[:8]}.py"
    for target in [path] + ([folder / f"{stem}.py"] if stem != "cell" else []):
        if not target.exists() or target.read_text() != source:
            partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
            partial.write_text(source)
            partial.replace(target)
    os.utime(path)
    return path


def new_run_folder() -> Path:
    """A new folder for one launch; beyond the newest `KEEP` of this notebook the oldest are removed."""
    parent = notebook_folder() / "launches"
    parent.mkdir(mode=0o700, exist_ok=True)
    for attempt in range(10_000):
        folder = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{attempt}"
        try:
            folder.mkdir(mode=0o700)
            break
        except FileExistsError:
            continue
    for old in _by_age(parent.iterdir())[:-KEEP]:
        # run.json is written at the end: a folder without it may belong to a launch that still runs. So may a job that was left to itself.
        if _left(old) not in ("", "waiting", "running") or time.time() - _changed(old) > 7 * 86400:
            shutil.rmtree(old, ignore_errors=True)
    for old in _by_age(notebook_folder().glob("*-????????.py"))[: -4 * KEEP]:
        old.unlink(missing_ok=True)
    return folder


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
