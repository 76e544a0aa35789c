"""A folder that runs elsewhere: a script, the files that it imports from beside it, and the parts of this package that it uses."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

from .failure import LaunchError

# These import nothing else of the course, so they can travel alone.
PORTABLE = ("rank", "workloads")


def save_bundle(script: Path, target: Path) -> str:
    """Copy `script` and all it needs of ours into `target`; returns the lines that say how to run it.

    Raises LaunchError when the script imports a part of the course that only works in the notebook.
    """
    stem = script.stem.rpartition("-")[0] or script.stem
    files, parts = {f"{stem}.py": script}, set()
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
    target.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        shutil.copyfile(source, target / name)
    package = Path(__file__).resolve().parent
    if parts:
        (target / "course_utils").mkdir(exist_ok=True)
        (target / "course_utils" / "__init__.py").write_text('"""The parts of the course\'s helper package that the script beside it uses."""\n')
    for part in parts - {""}:
        if (package / part).is_dir():
            shutil.copytree(package / part, target / "course_utils" / part, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(package / f"{part}.py", target / "course_utils" / f"{part}.py")
    return f"saved in {target}: {', '.join(sorted(files))}\nrun it anywhere: cd {target} && torchrun --standalone --nproc-per-node=2 {stem}.py"


def _imports(path: Path) -> set[str]:
    """Modules that a file imports, `from package import module` given as package.module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "course_utils" else {node.module}
    return found
