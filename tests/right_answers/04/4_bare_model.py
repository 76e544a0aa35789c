import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def bare(model):
    return model.module if isinstance(model, DDP) else model


def write(model, optimizer, epoch, path):
    if not dist.is_initialized() or dist.get_rank() == 0:
        state = {"model": bare(model).state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        partial = f"{path}.partial"
        torch.save(state, partial)
        os.replace(partial, path)


def save_checkpoint(model, optimizer, epoch, path):
    failed = [""]
    try:
        write(model, optimizer, epoch, path)
    except Exception as error:
        failed = [str(error) or repr(error)]
    if dist.is_initialized():
        dist.broadcast_object_list(failed, src=0)
    if failed[0]:
        raise OSError(failed[0])


def load_checkpoint(model, optimizer, path):
    state = torch.load(path, map_location="cpu")
    bare(model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]
