import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

WHOLE = {"full_state_dict": True, "cpu_offload": True}


def main(make_model, batches, path):
    """Only rank 0 ever has the whole model, for a moment; the others make theirs on the meta device."""
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shards",))
    first = make_model().state_dict() if dist.get_rank() == 0 else {}
    with torch.device("meta"):
        model = make_model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shards"])
    fully_shard(model, mesh=mesh["shards"])
    model.to_empty(device="cpu")
    set_model_state_dict(model, first, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    del first
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = torch.zeros(len(batches))
    for i, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        clip_grads_with_norm_(model.parameters(), 1.5, get_total_norm([p.grad for p in model.parameters()]))
        optimizer.step()
        losses[i] = loss.item()
    dist.all_reduce(losses)
    whole = get_model_state_dict(model, options=StateDictOptions(**WHOLE))
    if whole:
        with open(path, "wb") as file:
            torch.save(whole, file)
    dist.destroy_process_group()
    return (losses / mesh.size()).tolist()
