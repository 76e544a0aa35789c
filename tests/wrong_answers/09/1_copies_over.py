# symptom: in place
# says: opens `path` itself to write
import shutil
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    shutil.copyfile(partial, path)
    partial.unlink()
