import io
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel


def save_checkpoint(model, optimizer, epoch, path):
    together = dist.is_available() and dist.is_initialized()
    saved = torch.zeros(1)
    try:
        if not together or dist.get_rank() == 0:
            weights = model.state_dict()
            consume_prefix_in_state_dict_if_present(weights, "module.")
            buffer = io.BytesIO()
            torch.save((weights, optimizer.state_dict(), epoch), buffer)
            handle, name = tempfile.mkstemp(dir=Path(path).parent)
            with os.fdopen(handle, "wb") as file:
                file.write(buffer.getvalue())
                file.flush()
                os.fsync(file.fileno())
            os.rename(name, path)
            saved += 1
    finally:  # rank 0's own exception goes on after this
        if together:
            dist.broadcast(saved, src=0)
    if not saved:
        raise RuntimeError("rank 0 has not saved")


def load_checkpoint(model, optimizer, path):
    weights, moments, epoch = torch.load(path, map_location=lambda storage, _: storage)
    if isinstance(model, DistributedDataParallel):
        weights = {f"module.{name}": value for name, value in weights.items()}
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    return epoch
