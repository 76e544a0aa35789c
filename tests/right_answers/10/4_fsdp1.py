import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def main(make_model, batches, path):
    """The older FSDP, whose shards are flat and ordinary tensors."""
    warnings.simplefilter("ignore", FutureWarning)
    dist.init_process_group()
    torch.manual_seed(0)
    plain = make_model()
    units = ModuleWrapPolicy({type(plain.blocks[0])})
    model = FullyShardedDataParallel(plain, auto_wrap_policy=units, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for x, y in batches:
        loss = cross_entropy(model(x), y)
        loss.backward()
        squares = get_total_norm([p.grad for p in model.parameters()]) ** 2  # of this rank's shards
        dist.all_reduce(squares)
        clip_grads_with_norm_(model.parameters(), 1.5, squares.sqrt())
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    how = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, how):
        whole = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(whole, path)
    dist.destroy_process_group()
    return losses
