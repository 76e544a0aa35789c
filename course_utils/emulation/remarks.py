"""What the emulation has to say of a program, with the line of the program that it's about."""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType

import torch

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TORCHS = os.path.dirname(os.path.abspath(torch.__file__))
_NOT_THE_PROGRAMS = (OURS, TORCHS, "<", os.path.dirname(os.__file__))  # the last is Python's own library
_said: set[tuple[str, str]] = set()


@functools.cache
def _is_the_programs(name: str) -> bool:
    return not name.startswith(_NOT_THE_PROGRAMS) or (
        "site-packages" in name[len(_NOT_THE_PROGRAMS[-1]) :] and not name.startswith(TORCHS)
    )


def program_line() -> str:
    """Where the program stands: file and line of its innermost frame. If there's none, that of a library which is
    neither torch, ours nor Python's."""
    frame: FrameType | None = sys._getframe(1)
    librarys = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_the_programs(name):
            line = f"{os.path.basename(name)}, line {frame.f_lineno}"
            if "site-packages" not in name and "dist-packages" not in name:
                return line
            librarys = librarys or line
        frame = frame.f_back
    return librarys or "torch"


def say(kind: str, text: str) -> None:
    """Print a remark, once of its kind for each line of the program."""
    line = program_line()
    if (kind, line) not in _said:
        _said.add((kind, line))
        print(f"emulated: {text} ({line})", file=sys.stderr, flush=True)
