import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    fd, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(str(path.parent), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
