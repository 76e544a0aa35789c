import os
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    partial = path.parent / "next.tmp"
    try:
        torch.save(state, partial)
        fd = os.open(partial, os.O_RDWR)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(partial, path)
    except Exception:
        if partial.exists():
            partial.unlink()
        raise
    fd = os.open(path.parent, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
