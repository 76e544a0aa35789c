import os
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        torch.save(state, partial)
        os.sync()
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    os.sync()
