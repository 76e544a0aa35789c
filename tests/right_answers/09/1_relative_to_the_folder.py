import os
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    partial = path.name + ".partial"
    try:
        try:
            with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o644, dir_fd=folder)) as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(partial, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)
