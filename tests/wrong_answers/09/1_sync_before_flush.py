# symptom: before flush
# says: bytes
import io
import os
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb", buffering=1 << 24) as file:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            file.write(buffer.getvalue())
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
