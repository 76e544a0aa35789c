"""What the lessons say of themselves: title, question, minutes, the cells of the core, the exercises. The notebooks are
the only list."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..folders import COURSE


@dataclass(frozen=True)
class Lesson:
    """A lesson as its notebooks describe it. `core` has the id and the hash of each code cell of the core;
    `exercises` the names of its exercises ("04.1"). The paths are relative to the course's root."""

    number: str
    title: str
    question: str
    minutes: int  # for the core; 0 if the lesson doesn't say
    path: str
    core: tuple[tuple[str, str], ...]
    exercises: tuple[str, ...]
    exercises_path: str  # empty for a lesson without exercises
    solutions_path: str


def lessons(root: Path = COURSE) -> list[Lesson]:
    """The lessons below `root`, in their order. A notebook that can't be read is left out."""
    return [lesson for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")) if (lesson := _read(root, path))]


def cell_hash(source: str) -> str:
    """The same for a cell wherever it's copied, as long as nobody edits it."""
    return hashlib.sha256(source.strip().encode()).hexdigest()[:12]


def _read(root: Path, path: Path) -> Lesson | None:
    cells = _cells(path)
    opening = next((text for kind, _, text, _ in cells if kind == "markdown" and re.search(r"^# ", text, re.M)), "")
    title = re.search(r"^# +(?:\d\d · )?(.+)$", opening, re.M)
    if not title:
        return None
    question = re.search(r"^\*\*([^*\n]+[?.!])\*\*\s*$", opening, re.M)
    minutes = re.search(r"(\d+) minutes", opening)
    exercises, solutions = (
        f"{folder}/{path.stem}_{folder}.ipynb" if (root / folder / f"{path.stem}_{folder}.ipynb").exists() else ""
        for folder in ("exercises", "solutions")
    )
    tasks = re.findall(r"^%%exercise (\d\d\.\S+)", "\n".join(text for *_, text, _ in _cells(root / exercises)), re.M)
    return Lesson(
        number=path.name[:2],
        title=title[1].strip(),
        question=question[1] if question else "",
        minutes=int(minutes[1]) if minutes else 0,
        path=f"notebooks/{path.name}",
        core=tuple((name, cell_hash(text)) for kind, name, text, core in cells if kind == "code" and core),
        exercises=tuple(dict.fromkeys(tasks)),
        exercises_path=exercises,
        solutions_path=solutions,
    )


def _cells(path: Path) -> list[tuple[str, str, str, bool]]:
    """Type, id, source, and whether it's of the core, for each cell that isn't empty; nothing for a damaged file."""
    try:
        raw: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found = [
            (c["cell_type"], c.get("id", ""), "".join(c["source"]), "core" in c["metadata"].get("tags", ()))
            for c in raw
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [cell for cell in found if cell[2].strip()]
