# symptom: torn
# says: bytes, the process left nothing that loads
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    torch.save(state, path)
