"""Write exercises/NN_name_exercises.ipynb from solutions/NN_name_solutions.ipynb. `--check` writes nothing, and fails
where they differ.

In a solution, the lines from `### BEGIN SOLUTION` to `### END SOLUTION` become one line, `...  # your code here`, with
the indentation of the first marker. A cell tagged `solution` is left out of the exercise. Everything else is copied;
cell ids are kept, outputs are not.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
BLANK = "...  # your code here"
SOLUTION_TAG = "solution"


class GeneratorError(Exception):
    """A solution can't be turned into an exercise; the message says where and why."""


def blank(source: str, where: str) -> str:
    """The source of a cell with every solution block replaced by a blank. Raises GeneratorError for a marker without a
    partner."""
    lines: list[str] = []
    inside = False
    for number, line in enumerate(source.split("\n"), 1):
        marker = line.strip()
        if marker in (BEGIN, END):
            if inside == (marker == BEGIN):
                raise GeneratorError(f"{where}, line {number}: {marker} without its partner")
            inside = not inside
            if inside:
                lines.append(line[: len(line) - len(line.lstrip())] + BLANK)
        elif BEGIN in line or END in line:
            raise GeneratorError(f"{where}, line {number}: a marker must be alone on its line, got {line.strip()!r}")
        elif not inside:
            lines.append(line)
    if inside:
        raise GeneratorError(f"{where}: {BEGIN} without {END}")
    return "\n".join(lines)


def exercise_from(solution: Any, name: str) -> Any:
    """The exercise notebook of a solution notebook. Raises GeneratorError, also for a solution without any block."""
    result = nbformat.v4.new_notebook()
    kernel = solution.metadata.get("kernelspec", {"display_name": "Python 3", "language": "python", "name": "python3"})
    result.metadata = nbformat.from_dict(
        {"kernelspec": kernel, "language_info": {"name": "python"}, "generated_from": f"solutions/{name}"}
    )
    blanks = 0
    for index, cell in enumerate(solution.cells):
        if SOLUTION_TAG in cell.metadata.get("tags", []):
            continue
        cell = copy.deepcopy(cell)
        cell.setdefault("id", f"cell-{index:02d}")
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            blanked = blank(cell.source, f"solutions/{name}, cell {index}")
            blanks += blanked != cell.source
            cell.source = blanked
        elif BEGIN in cell.source:
            raise GeneratorError(
                f"solutions/{name}, cell {index}: a solution block in a text cell; tag the whole cell {SOLUTION_TAG!r}"
                " instead"
            )
        result.cells.append(cell)
    if not blanks:
        raise GeneratorError(f"solutions/{name} has no solution block: nothing would be left to do")
    nbformat.validate(result)
    return result


def exercise_name(solution: Path) -> str:
    """What the exercise file of a solution file is called: two open tabs must not have the same name."""
    return solution.name.replace("_solutions.ipynb", "_exercises.ipynb")


def render(solution: Path) -> str:
    """The text of the exercise file of one solution file."""
    return nbformat.writes(exercise_from(nbformat.read(solution, as_version=4), solution.name)) + "\n"


def generate(root: Path, check: bool = False) -> list[str]:
    """Write (or with `check` only compare) all exercises below `root`. Returns one line for every file that differs or
    differed."""
    changed = []
    solutions = {exercise_name(path): path for path in sorted((root / "solutions").glob("*_solutions.ipynb"))}
    for name, solution in solutions.items():
        target = root / "exercises" / name
        new = render(solution)
        old = target.read_text(encoding="utf-8") if target.exists() else ""
        if new == old:
            continue
        pairs = itertools.zip_longest(old.splitlines(), new.splitlines())
        line = next((number for number, (one, other) in enumerate(pairs, 1) if one != other), "the last")
        changed.append(f"exercises/{name} doesn't match its solution (from line {line} on)")
        if not check:
            target.parent.mkdir(exist_ok=True)
            target.write_text(new, encoding="utf-8")
    for stale in sorted((root / "exercises").glob("*.ipynb")):
        if stale.name not in solutions:
            changed.append(f"exercises/{stale.name} has no solution")
            if not check:
                stale.unlink()
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where an exercise differs from its solution"
    )
    check = parser.parse_args().check
    try:
        changed = generate(ROOT, check)
    except GeneratorError as error:
        print(error)
        return 1
    for line in changed:
        print(line if check else line + ": fixed")
    if not changed:
        print("exercises/ matches solutions/")
    elif check:
        print("`make exercises` writes them again")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
