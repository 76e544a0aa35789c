# symptom: not on disk
# says: gets its name before its bytes
import os
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    """Save `state` with torch.save in the file `path`, where an older checkpoint may lie.

    Killed at any moment, the process leaves the old file or the new one at `path`, whole; what it leaves beside it does not keep a later save
    from working. When writing fails, the exception goes to the caller, the old file is still there, and nothing half-written stays in the folder.
    When the function returns, the new file is on the disk, under its name, also if the machine loses power in the next moment.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save(state, file)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
