"""What a learner has done of each lesson: cells of the core run, claims seen, exercises solved.

It's kept in `runs/progress.jsonl` under the course's home, one short line for each cell and claim, and never in a
notebook. `python -m course_utils.lab.progress` prints it, `--forget` deletes it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from ..folders import add_json_line, course_home, json_lines, notebook_name
from .lessons import Lesson, cell_hash, lessons

FILE = "progress.jsonl"
CHECKED = "*/exercises.jsonl"  # what `%%exercise` keeps for each notebook, see check.py

_watching = False


@dataclass(frozen=True)
class Done:
    """What is done of one lesson. `last` is when it was last worked on, in seconds since 1970; 0 for never."""

    cells: int = 0
    claims: int = 0
    solved: tuple[str, ...] = ()
    last: float = 0.0


def watch(shell: Any) -> None:
    """Keep a record of the cells that run without an error. A notebook that a tool runs, which COURSE_NOTEBOOK names,
    is nobody's progress."""
    global _watching
    unwatch(shell)
    if not os.environ.get("COURSE_NOTEBOOK"):
        shell.events.register("post_run_cell", _ran)
        _watching = True


def unwatch(shell: Any) -> None:
    """What `%unload_ext course_utils` does."""
    global _watching
    _watching = False
    for callback in list(shell.events.callbacks["post_run_cell"]):
        if getattr(callback, "__module__", "") == __name__:  # by name, for the package may have been imported anew
            shell.events.unregister("post_run_cell", callback)


def claimed(sentence: str, status: str) -> None:
    """Keep that this claim was seen to hold. Numbers in it may differ the next time; it's the same claim then."""
    if _watching and status == "shown":
        _append({"claim": hashlib.sha256(re.sub(r"[\d.,]+", "0", sentence).encode()).hexdigest()[:12]})


def _ran(result: Any) -> None:
    """IPython calls this after each cell."""
    source = str(result.info.raw_cell or "")
    if result.success and source.strip():
        _append({"cell": str(getattr(result.info, "cell_id", None) or ""), "hash": cell_hash(source)})


def _append(record: dict[str, Any]) -> None:
    """Add a line. A folder that can't be written to keeps no progress, and that's no reason to disturb a cell."""
    with suppress(OSError):
        folder = course_home() / "runs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        add_json_line(folder / FILE, {"notebook": notebook_name(), **record, "time": round(time.time(), 3)})


def progress(of: Iterable[Lesson] | None = None, home: Path | None = None) -> dict[str, Done]:
    """What is done of each lesson, by its number.

    A cell counts for the lesson whose number its notebook's name begins with, whichever folder that lies in. Where the
    name says nothing, it counts if only one lesson has just this cell.
    """
    known = list(lessons() if of is None else of)
    runs = (course_home() if home is None else home) / "runs"
    by_number = {lesson.number: lesson for lesson in known}
    owners: dict[str, set[str]] = {}
    for lesson in known:
        for _, digest in lesson.core:
            owners.setdefault(digest, set()).add(lesson.number)
    cells: dict[str, set[int]] = {number: set() for number in by_number}
    claims: dict[str, set[str]] = {number: set() for number in by_number}
    solved: dict[str, set[str]] = {number: set() for number in by_number}
    last = dict.fromkeys(by_number, 0.0)
    for record in json_lines(runs / FILE):
        number = str(record.get("notebook"))[:2]
        if number not in by_number:
            only = owners.get(str(record.get("hash")), set())
            number = next(iter(only)) if len(only) == 1 else ""
        if number in by_number:
            last[number] = max(last[number], _seconds(record))
            if "claim" in record:
                claims[number].add(str(record["claim"]))
            other = re.search(
                "_(exercises|solutions)", str(record.get("notebook"))
            )  # a cell's id may be the same there
            for place, (name, digest) in enumerate(() if other else by_number[number].core):
                if (name and name == record.get("cell")) or digest == record.get("hash"):
                    cells[number].add(place)
    for record in chain.from_iterable(map(json_lines, sorted(runs.glob(CHECKED)))):
        name = str(record.get("exercise"))
        if name[:2] in by_number and "_solutions" not in str(record.get("notebook")):
            last[name[:2]] = max(last[name[:2]], _seconds(record))
            if record.get("outcome") == "solved" and name in by_number[name[:2]].exercises:
                solved[name[:2]].add(name)
    return {n: Done(len(cells[n]), len(claims[n]), tuple(sorted(solved[n])), last[n]) for n in by_number}


def forget(home: Path | None = None) -> None:
    """Delete all of it, the tries at exercises too."""
    runs = (course_home() if home is None else home) / "runs"
    for path in [runs / FILE, *runs.glob(CHECKED)]:
        path.unlink(missing_ok=True)


def _seconds(record: dict[str, Any]) -> float:
    when = record.get("time")
    try:
        return when if isinstance(when, float) else datetime.fromisoformat(str(when)).timestamp()
    except ValueError:
        return 0.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m course_utils.lab.progress", description="What you've done so far.")
    parser.add_argument("--forget", action="store_true", help="delete it, and begin again")
    if parser.parse_args(argv).forget:
        forget()
        print("forgotten")
        return 0
    known = lessons()
    for lesson, done in zip(known, progress(known).values(), strict=True):
        print(
            f"{lesson.number}  {done.cells:>3} of {len(lesson.core):>3} cells  {done.claims:>3} claims seen "
            f" {len(done.solved)} of {len(lesson.exercises)} exercises  {lesson.title}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
