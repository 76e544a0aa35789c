"""What the emulation has to say of a program, with the line of the program that it's about."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TORCHS = os.path.dirname(os.path.abspath(torch.__file__))
_NOT_THE_PROGRAMS = (OURS, TORCHS, "<", os.path.dirname(os.__file__))  # the last is Python's own library
_PYTHONS = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
NOT_COMPUTED = "a value is read that was not computed, so it means nothing"
_said: set[tuple[str, str]] = set()
_unsaid: set[str] = set()  # kinds of remarks that nobody needs now


@functools.cache
def whose(file: str) -> str:
    """Who wrote the code in a file: "torch", "python", a "package" that's installed, or the "program"."""
    if file.startswith(TORCHS + os.sep):
        return "torch"
    if file.startswith(OURS + os.sep):  # what the course's lessons run is a program as any other
        return "program"
    if "site-packages" in file or "dist-packages" in file:
        return "package"
    return "python" if file.startswith((_PYTHONS, "<frozen")) else "program"


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


def without(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, about which nothing of this kind is said."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _unsaid.add(kind)
        try:
            return function(*args, **kwargs)
        finally:
            _unsaid.discard(kind)

    return call


def say(kind: str, text: str) -> None:
    """Print a remark, once of its kind for each line of the program."""
    line = program_line()
    if kind not in _unsaid and (kind, line) not in _said:
        _said.add((kind, line))
        sys.stderr.write(f"emulated: {text} ({line})\n")  # some programs replace `print` on all ranks but the first
        sys.stderr.flush()
