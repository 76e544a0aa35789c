"""The two sizes in which every workload of the course comes."""

from __future__ import annotations

import os


def default_size() -> str:
    """`"cpu"` or `"gpu"`: what the environment variable COURSE_SIZE says, otherwise `"gpu"` where torch sees a GPU.

    Ask inside a rank, not in the notebook: the question may start CUDA, and a process in which CUDA runs must not fork.
    Raises ValueError when COURSE_SIZE is something else.
    """
    size = os.environ.get("COURSE_SIZE")
    if size:
        return checked(size)
    import torch

    return "gpu" if torch.cuda.is_available() else "cpu"


def checked(size: str | None) -> str:
    """`size` itself, or the default for None."""
    if size is None:
        return default_size()
    if size not in ("cpu", "gpu"):
        raise ValueError(f'a size is "cpu" or "gpu"; got {size!r} (from the argument, or from the environment variable COURSE_SIZE)')
    return size
