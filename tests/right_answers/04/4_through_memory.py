# Through a buffer, and synced; the temporary file has a random name in the same folder, and goes when writing fails.
import contextlib
import io
import os
import tempfile

import torch
import torch.distributed as dist


def bare(model):
    return getattr(model, "module", model)


def save_checkpoint(model, optimizer, epoch, path):
    failed = torch.zeros(())
    try:
        if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
            buffer = io.BytesIO()
            torch.save((bare(model).state_dict(), optimizer.state_dict(), epoch), buffer)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(buffer.getvalue())
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(name, path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
                raise
    except BaseException:
        failed += 1
        raise
    finally:
        if dist.is_initialized():
            dist.all_reduce(failed)
    if failed:
        raise RuntimeError("the rank that writes could not")


def load_checkpoint(model, optimizer, path):
    weights, averages, epoch = torch.load(path, map_location="cpu", weights_only=False)
    bare(model).load_state_dict(weights)
    optimizer.load_state_dict(averages)
    return epoch
