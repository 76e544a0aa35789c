"""Check the program of a launch and what is passed to it, so that a mistake is a clear error before anything starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..failure.advice import why_not
from ..failure.errors import LaunchError
from ..failure.frames import is_cell
from . import local
from .sources import module_file


def checked_program(script: str | os.PathLike[str] | None, module: str, folder: str) -> Path:
    """The file that a launch runs: a script, or a module, which we look for in `folder` first and don't import. Raises
    LaunchError."""
    if (script is None) == (not module):
        raise LaunchError("name what to run: either the path of a script, or module='pkg.train'")
    if script is not None:
        return checked_script(script)
    if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
        raise LaunchError(f"{module!r} is not the name of a module; write it as in `import`, for example pkg.train")
    found = module_file(module, [folder, *(path for path in sys.path if path)])
    if found is None:
        raise LaunchError(
            f"there is no module {module} to run, neither in {folder} nor installed; go to the folder that holds it"
            " with %cd"
        )
    return checked_script(found)


def checked_script(script: str | os.PathLike[str]) -> Path:
    """The absolute path of a script. Raises LaunchError unless it's there and is valid Python. Links aren't followed,
    as in `python script.py`."""
    try:
        path = Path(os.path.abspath(Path(script).expanduser()))
        there = path.is_file()
        if "\0" in str(path):
            raise ValueError("it contains a zero byte")
    except (TypeError, ValueError, OSError) as error:
        raise LaunchError(f"{script!r} is not the path of a script ({error})") from None
    if not there:
        raise LaunchError(f"there is no script {path}")
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        name = "the cell" if is_cell(str(path)) else path.name
        raise LaunchError(f"{name} is not valid Python{why_not(error)}") from None
    return path


def check_passable(env: Mapping[str, str], args: Sequence[object]) -> None:
    """Refuse arguments and variables that no program can be started with. A warm start would hide them until the
    script itself starts a process."""
    if any("\0" in text for text in (*env, *env.values(), *map(str, args))):
        raise LaunchError(
            "an argument or an environment variable contains a zero byte, which can't be passed to a program"
        )
    if long := local.too_long(env):
        raise LaunchError(
            f"the variable {long[0]} has {len(env[long[0]]) >> 10} KB, and Linux can't start a program with one of"
            f" more than 128 KB; put its text into a file, or leave it out with env={{{long[0]!r}: None}}"
        )
