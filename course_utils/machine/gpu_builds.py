"""Which builds of PyTorch have code for which GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence


def arch_fits(capability: tuple[int, int], archs: Sequence[str]) -> bool:
    """Whether a build has code for this compute capability.

    Machine code (`sm_86`) runs on the same major version with the same or a higher minor version; with an a (`sm_90a`)
    it only runs on exactly its own version. Portable code (`compute_80`) is compiled on any newer GPU.
    """
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if not match:
            continue
        kind, major, minor, letter = match[1], int(match[2]), int(match[3]), match[4]
        if letter == "a":
            fits = capability == (major, minor)
        elif kind == "sm" or letter == "f":
            fits = capability[0] == major and capability[1] >= minor
        else:
            fits = capability >= (major, minor)
        if fits:
            return True
    return False


def build_for(capability: tuple[int, int]) -> str:
    """The setting of `make` that brings a build of PyTorch with code for this GPU: those for CUDA 13 have dropped what
    is older than Turing, such as P100 (6.0) and V100 (7.0)."""
    return "TORCH=cu126" if capability < (7, 5) else "TORCH=auto"
