"""Check style, types, that notebooks have no outputs and link to each other, and that exercises
match solutions. `--fix` fixes what it can.

Ruff doesn't look into cells that begin with a magic of ours, so we check the scripts in them as files.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK_FOLDERS = ("notebooks", "exercises", "solutions")


def tool(name: str, *args: str) -> list[str]:
    return [sys.executable, "-m", name, *args]


def notebooks() -> list[Path]:
    return sorted(path for folder in NOTEBOOK_FOLDERS for path in (ROOT / folder).glob("*.ipynb"))


def scripts(notebook: Path) -> Iterator[tuple[str, str]]:
    """The scripts in the `%%ranks`, `%%exercise` and `%%writefile` cells of a notebook: a name, and the text below the
    magic."""
    for index, cell in enumerate(nbformat.read(notebook, as_version=4).cells):
        match = re.match(r"%%(ranks|exercise|writefile)\b[^\n]*\n", cell.source)
        if (
            cell.cell_type == "code"
            and match
            and not re.match(r"%%writefile\b.*\.(sh|sbatch|txt|json|ya?ml)\b", cell.source)
        ):
            # A line in place of the magic keeps line numbers as they are in the cell.
            yield (
                f"{notebook.parent.name}_{notebook.stem}_cell{index:02d}.py",
                "#\n" + cell.source[match.end() :].rstrip() + "\n",
            )


def run(command: list[str], title: str) -> str:
    """Run one of the tools, below its title. Returns the title if it found something, else nothing."""
    print(f"== {title}", flush=True)
    return title if subprocess.run(command, cwd=ROOT).returncode else ""


def lint_scripts(fix: bool) -> str:
    if fix:  # the text lies in a notebook: you have to fix it there
        return ""
    with tempfile.TemporaryDirectory() as folder:
        for notebook in notebooks():
            for name, text in scripts(notebook):
                (Path(folder) / name).write_text(text)
        # As in the cells of notebooks. F401: blanks leave imports unused in an exercise.
        ignored = "--extend-ignore=E501,F401,E402,E401,I001,B007,B023,B905,C408,PIE790"
        return run(
            tool(
                "ruff",
                "check",
                "--config",
                str(ROOT / "pyproject.toml"),
                "--no-cache",
                "--output-format=concise",
                ignored,
                folder,
            ),
            "ruff check, scripts in cells",
        )


def main() -> int:
    fix = "--fix" in sys.argv[1:]
    found = [str(path) for path in notebooks()]
    results = [
        run(tool("ruff", "check", "--output-format=concise", *(["--fix"] if fix else []), "."), "ruff check"),
        run(tool("ruff", "format", *([] if fix else ["--check"]), "."), "ruff format"),
        lint_scripts(fix),
    ]
    if found:
        results.append(
            run(
                tool("nbstripout", "--keep-id", *([] if fix else ["--verify"]), *found),
                "nbstripout: no outputs in notebooks",
            )
        )
    results.append(
        run([sys.executable, "tools/navigation.py", *([] if fix else ["--check"])], "links between notebooks")
    )
    results.append(run([sys.executable, "tools/exercises.py", *([] if fix else ["--check"])], "exercises"))
    results.append(run(tool("mypy"), "mypy"))
    if red := [title for title in results if title]:
        print(f"Found something: {', '.join(red)}. See above.")
    return int(bool(red))


if __name__ == "__main__":
    sys.exit(main())
