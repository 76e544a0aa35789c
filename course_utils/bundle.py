"""A folder that runs elsewhere: a script, the files that it imports from beside it, and the parts of this package that it uses."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from pathlib import Path

from .failure import LaunchError

# These import nothing else of the course, so they can travel alone.
PORTABLE = ("rank", "workloads")


def save_bundle(script: Path, target: Path) -> str:
    """Copy `script` and all it needs of ours into `target`; returns the lines that say how to run it.

    Raises LaunchError when the script imports a part of the course that only works in the notebook, or `target` cannot be written.
    """
    stem = re.sub(r"-[0-9a-f]{8}$", "", script.stem)  # without the hash of its content
    files: dict[str, Path] = {f"{stem}.py": script}
    parts: set[str] = set()
    todo = [script]
    while todo:
        for module in _imports(todo.pop()):
            top, _, rest = module.partition(".")
            beside = script.parent / f"{top}.py"
            if top == "course_utils":
                part = rest.partition(".")[0]
                if part and part not in PORTABLE:
                    raise LaunchError(f"the script imports course_utils.{part}, which needs the notebook; a script that travels may use {', '.join(PORTABLE)}")
                parts.add(part)
            elif beside.exists() and beside.name not in files:
                files[beside.name] = beside
                todo.append(beside)
    try:
        _copy(files, parts, target)
    except OSError as error:
        raise LaunchError(f"the folder {target} cannot be written: {error}") from None
    return (
        f"saved in {target}: {', '.join(sorted(files))}\nrun it anywhere: cd {shlex.quote(str(target))} && torchrun --standalone --nproc-per-node=2 {stem}.py"
    )


def _copy(files: dict[str, Path], parts: set[str], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        shutil.copyfile(source, target / name)
    if not parts:
        return
    package, copied = Path(__file__).resolve().parent, target / "course_utils"
    copied.mkdir(exist_ok=True)
    (copied / "__init__.py").write_text('"""The parts of the course\'s helper package that the script beside it uses."""\n')
    for part in parts - {""}:
        if (package / part).is_dir():
            shutil.copytree(package / part, copied / part, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(package / f"{part}.py", copied / f"{part}.py")


def _imports(path: Path) -> set[str]:
    """Modules that a file imports, `from package import module` given as package.module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "course_utils" else {node.module}
    return found
