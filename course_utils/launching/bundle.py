"""Make a folder that runs elsewhere: a script, the files next to it that it imports, and the parts of this package that
it uses."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from ..failure.errors import LaunchError
from ..folders import PACKAGE
from .program import imports

# These import nothing else of the course, so they can travel alone.
PORTABLE = ("rank", "workloads")


def save_bundle(script: Path, target: Path) -> str:
    """Copy `script` and everything of ours that it needs into `target`; returns the lines that say how to run it.

    Raises LaunchError if the script imports a part of the course that only works in the notebook, or if we can't write
    to `target`.
    """
    stem = re.sub(r"-[0-9a-f]{8}$", "", script.stem)  # without the hash of its content
    files: dict[str, Path] = {f"{stem}.py": script}
    parts: set[str] = set()
    todo = [script]
    while todo:
        for module in imports(todo.pop()):
            top, _, rest = module.partition(".")
            beside = script.parent / f"{top}.py"
            if top == "course_utils":
                part = rest.partition(".")[0]
                if part and part not in PORTABLE:
                    raise LaunchError(
                        f"the script imports course_utils.{part}, which needs the notebook; a script that runs"
                        f" elsewhere can use {', '.join(PORTABLE)}"
                    )
                parts.add(part)
            elif beside.exists() and beside.name not in files:
                files[beside.name] = beside
                todo.append(beside)
    try:
        _copy(files, parts, target)
    except OSError as error:
        raise LaunchError(f"can't write to the folder {target}: {error}") from None
    return (
        f"saved in {target}: {', '.join(sorted(files))}\n"
        f"run it anywhere: cd {shlex.quote(str(target))} && torchrun --standalone --nproc-per-node=2 {stem}.py"
    )


def _copy(files: dict[str, Path], parts: set[str], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        shutil.copyfile(source, target / name)
    if not parts:
        return
    copied = target / "course_utils"
    copied.mkdir(exist_ok=True)
    what = '"""The parts of the course\'s helper package that the script next to it uses."""\n'
    (copied / "__init__.py").write_text(what)
    ignore = shutil.ignore_patterns("__pycache__")
    for part in parts - {""}:
        if (PACKAGE / part).is_dir():
            shutil.copytree(PACKAGE / part, copied / part, dirs_exist_ok=True, ignore=ignore)
        else:
            shutil.copyfile(PACKAGE / f"{part}.py", copied / f"{part}.py")
