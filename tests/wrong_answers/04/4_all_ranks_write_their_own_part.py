# symptom: all write
# says: one rank writes
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def bare(model):
    return model.module if isinstance(model, DDP) else model


def save_checkpoint(model, optimizer, epoch, path):
    state = {"model": bare(model).state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    partial = f"{path}.{os.getpid()}"
    torch.save(state, partial)
    os.replace(partial, path)
    if dist.is_initialized():
        dist.barrier()


def load_checkpoint(model, optimizer, path):
    state = torch.load(path, map_location="cpu")
    bare(model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]
