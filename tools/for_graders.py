"""The exercises as nbgrader or otter want them, with a grade for each: `for_graders.py nbgrader OUT`, `... otter OUT`.

Both run a whole notebook, and then ask for each exercise whether the last try in that kernel solved it
(`course_utils.check.solved`). So the course has to be installed where they grade; its checks decide.
`python -m course_utils.grade` needs neither, and withstands more.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from course_utils.grade import points  # noqa: E402

CONFIG = """# The notebooks in source/ have their blanks already, so no solution has to be cleared.
c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "many-devices"
c.GenerateAssignment.preprocessors = [
    f"nbgrader.preprocessors.{name}"
    for name in ("LockCells", "ClearOutput", "CheckCellMetadata", "ComputeChecksums", "SaveCells")
]
c.Execute.timeout = 900
"""
ASKS = 'from course_utils.check import solved\n\nassert solved("{name}"), "{name} isn\'t solved yet"'
OTTER = """OK_FORMAT = True

test = {{
    "name": "q{slug}",
    "points": {worth:g},
    "suites": [
        {{
            "type": "doctest",
            "scored": True,
            "setup": "",
            "teardown": "",
            "cases": [
                {{
                    "code": ">>> from course_utils.check import solved\\n>>> solved('{name}')\\nTrue",
                    "hidden": False,
                    "locked": False,
                }}
            ],
        }}
    ],
}}
"""


def each_exercise(notebook: Any, after: Callable[[str, Any], Any]) -> Any:
    """A copy of a notebook with one more cell behind each exercise: `after` gets its name and its cell."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code" and (head := re.match(r"%%exercise (\S+)", cell.source)):
            cells.append(after(head[1], cell))
    notebook.cells = cells
    return notebook


def slug(name: str) -> str:
    """04_3a of 04.3a: what may stand in the name of a file and of a cell."""
    return name.replace(".", "_")


def for_nbgrader(out: Path, worth: dict[str, float]) -> int:
    """A course folder for nbgrader. Returns how many exercises it has."""
    count = 0

    def graded(name: str, cell: Any) -> Any:
        nonlocal count
        count += 1
        common = {"schema_version": 3, "task": False}
        cell.metadata["nbgrader"] = {
            **common, "grade": False, "solution": True, "locked": False, "grade_id": f"answer-{slug(name)}"
        }  # fmt: skip
        test = nbformat.v4.new_code_cell(ASKS.format(name=name), id=f"points-{slug(name)}")
        test.metadata["nbgrader"] = {
            **common, "grade": True, "solution": False, "locked": True, "points": worth[name],
            "grade_id": f"points-{slug(name)}",
        }  # fmt: skip
        return test

    for path in sorted((ROOT / "exercises").glob("*.ipynb")):
        folder = out / "source" / path.stem.removesuffix("_exercises")
        folder.mkdir(parents=True)
        nbformat.write(each_exercise(nbformat.read(path, as_version=4), graded), folder / path.name)
    (out / "nbgrader_config.py").write_text(CONFIG)
    return count


def for_otter(out: Path, worth: dict[str, float]) -> int:
    """A folder for each lesson: its notebook, which calls otter's checks, and their tests, of which `otter generate`
    makes an autograder. Returns how many exercises they have."""
    count = 0
    for path in sorted((ROOT / "exercises").glob("*.ipynb")):
        folder = out / path.stem.removesuffix("_exercises")
        (folder / "tests").mkdir(parents=True)

        def asked(name: str, _: Any, tests: Path = folder / "tests") -> Any:
            nonlocal count
            count += 1
            (tests / f"q{slug(name)}.py").write_text(OTTER.format(slug=slug(name), name=name, worth=worth[name]))
            return nbformat.v4.new_code_cell(f'grader.check("q{slug(name)}")', id=f"check-{slug(name)}")

        notebook = each_exercise(nbformat.read(path, as_version=4), asked)
        start = "import otter\n\ngrader = otter.Notebook()"
        notebook.cells.insert(0, nbformat.v4.new_code_cell(start, id="otter"))
        nbformat.write(notebook, folder / path.name)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grader", choices=("nbgrader", "otter"))
    parser.add_argument("out", type=Path, help="a new folder")
    asked = parser.parse_args()
    if asked.out.exists() and any(asked.out.iterdir()):
        print(f"for_graders: {asked.out} has something in it: name a new folder", file=sys.stderr)
        return 2
    count = {"nbgrader": for_nbgrader, "otter": for_otter}[asked.grader](asked.out, points())
    print(f"{count} exercises in {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
