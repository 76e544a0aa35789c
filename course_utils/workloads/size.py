"""The three sizes in which every workload of the course comes, and what they are.

`cpu` is for a core, `gpu` for a GPU of 15 GB or more (a T4 has that), `small-gpu` for cards with 8 to 12 GB.
"""

from __future__ import annotations

import os

ENOUGH_BYTES = 14e9  # a "16 GB" card has at least 15.6e9 bytes, and one of "12 GB" at most 12.9e9

PIXELS = {"cpu": 32, "small-gpu": 128, "gpu": 224}  # of an image's side
# width, depth, batch size
MLP = {"cpu": (512, 12, 256), "small-gpu": (2048, 16, 2048), "gpu": (4096, 16, 2048)}
# width, depth, heads, tokens in a sequence, batch size
TRANSFORMER = {"cpu": (128, 4, 4, 64, 16), "small-gpu": (768, 12, 12, 512, 8), "gpu": (1024, 12, 16, 1024, 8)}


def default_size() -> str:
    """`"cpu"`, `"small-gpu"` or `"gpu"`: what the environment variable COURSE_SIZE says, or else what fits into the
    smallest GPU of the machine, so that ranks and launches agree.

    Call this inside a rank, not in the notebook: without the course's launcher, which leaves COURSE_GPU_BYTES, it asks
    torch and may start CUDA, and a process with CUDA running must not fork. Raises ValueError when COURSE_SIZE is
    anything else.
    """
    size = os.environ.get("COURSE_SIZE")
    if size:
        return checked(size)
    smallest = int(os.environ.get("COURSE_GPU_BYTES", 0))
    if not smallest:
        import torch

        if not torch.cuda.is_available():
            return "cpu"
        smallest = min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
    return "gpu" if smallest >= ENOUGH_BYTES else "small-gpu"


def checked(size: str | None) -> str:
    """`size` itself, or the default for None."""
    if size is None:
        return default_size()
    if size not in PIXELS:
        *others, last = (f'"{name}"' for name in PIXELS)
        raise ValueError(
            f"size must be {', '.join(others)} or {last}; got {size!r} (the argument, or the environment variable"
            " COURSE_SIZE)"
        )
    return size
