"""Run lessons here and keep their main results under data/recorded/, for readers whose hardware is another.

A cell tagged `record=VARIABLE` says that the `Run` or `Sweep` of that name is kept once the cell has run, as `NN_VARIABLE.MACHINE.json`.
Needs IPython and matplotlib, and no Jupyter: cells run one after the other in this process. A cell that fails ends its lesson.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from course_utils import recorded  # noqa: E402
from course_utils.run import Run, Sweep  # noqa: E402

TAG = "record="


def lessons(wanted: list[str], folder: Path = ROOT / "notebooks") -> list[Path]:
    """The lessons with a tagged cell, of those that were asked for by number. Exits for a number that no such lesson has."""
    tagged = [path for path in sorted(folder.glob("*.ipynb")) if any(names(cell) for cell in cells(path))]
    for number in wanted:
        if not any(path.name.startswith(number) for path in tagged):
            sys.exit(f"no lesson {number} has a cell tagged {TAG}VARIABLE; those that have: {', '.join(path.name[:2] for path in tagged) or 'none'}")
    return [path for path in tagged if not wanted or path.name[:2] in wanted]


def cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def names(cell: dict) -> list[str]:
    return [tag.removeprefix(TAG) for tag in cell["metadata"].get("tags", []) if tag.startswith(TAG)]


def record(path: Path, out: Path | None = None) -> list[Path]:
    """Run one lesson and save what its tags name; returns the files."""
    from IPython.core.interactiveshell import InteractiveShell

    os.environ["COURSE_NOTEBOOK"], os.environ["MPLBACKEND"] = path.name, "Agg"
    os.chdir(path.parent)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    written = []
    for cell in cells(path):
        if not shell.run_cell("".join(cell["source"])).success:
            sys.exit(f"{path.name} failed in the cell above; what was recorded before it is kept")
        for name in names(cell):
            result = shell.user_ns.get(name)
            if not isinstance(result, (Run, Sweep)):
                sys.exit(f"{path.name}: a cell is tagged {TAG}{name}, and {name} is {type(result).__name__}, not a Run or a Sweep")
            written.append(recorded.save(f"{path.name[:2]}_{name}", result, out))
            print(f"recorded: {written[-1]}")
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lessons", nargs="*", help="numbers, as 04; all that record something by default")
    parser.add_argument("--out", type=Path, help="another folder than data/recorded")
    arguments = parser.parse_args()
    for lesson in lessons(arguments.lessons):
        record(lesson, arguments.out.resolve() if arguments.out else None)
