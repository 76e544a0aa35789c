"""A deep MLP trained with DDP, ZeRO-1 and FSDP: what a rank holds, what it sends in a step, and what it has learned.

The ways to train are arguments; the first one is what the others are compared with.
"""

import gc
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.rank import amp_dtype, device, report
from course_utils.workloads import batch, deep_mlp

POLICIES = {"FSDP, gathers of 16 bits": (amp_dtype, torch.float32), "FSDP, all of 16 bits": (amp_dtype, amp_dtype)}


class Traffic(TorchDispatchMode):
    """Counts the calls of collectives, and the bytes that a rank sends for them in a ring."""

    def __init__(self):
        super().__init__()
        self.calls, self.sent_bytes = {}, 0.0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            name = function.overloadpacket.__name__.strip("_")
            flat = [t for arg in args for t in (arg if isinstance(arg, (list, tuple)) else [arg])]
            tensors = [t for t in flat if isinstance(t, torch.Tensor)]
            if tensors:
                whole = max(t.nbytes for t in tensors)  # of a gather the output, of a scatter the input
                n, halves = dist.get_world_size(), 2 if name == "allreduce" else 1
                self.sent_bytes += halves * whole * (n - 1) / n  # of a broadcast: the mean over the ranks
                self.calls[name] = self.calls.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


def local_bytes(tensors):
    """Bytes that lie on this rank."""
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)


def whole_weights(model):
    """All weights as one tensor, gathered from all ranks where they are sharded."""
    full = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in full])


def make_model():
    """The same model on every rank: blocks of a linear layer and ReLU, then a layer that gives the logits."""
    torch.manual_seed(0)
    layers = list(deep_mlp())
    blocks = [nn.Sequential(*layers[i : i + 2]) for i in range(0, len(layers) - 1, 2)]
    return nn.Sequential(*blocks, layers[-1]).to(device())


def build(way):
    model = make_model()
    if way == "DDP":
        model = DDP(model)
    elif way == "ZeRO-1":
        model = DDP(model)
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    else:
        options = {"mesh": init_device_mesh(device().type, (dist.get_world_size(),))}
        options["reshard_after_forward"] = way != "FSDP, weights kept"
        if way in POLICIES:
            param, reduce = (kind() if callable(kind) else kind for kind in POLICIES[way])
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)
        for unit in [*model[:-1], model]:
            fully_shard(unit, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def noted_all_reduce(state, bucket):
    """What DDP does without a hook; keeps each bucket."""
    state[bucket.index()] = bucket.buffer()
    return allreduce_hook(None, bucket)


def step(model, optimizer, x, y):
    """One step; returns the bytes of weights between forward and backward, and of gradients after backward."""
    optimizer.zero_grad()
    loss = cross_entropy(model(x).float(), y)
    weights = local_bytes(model.parameters())
    loss.backward()
    gradients = local_bytes(p.grad for p in model.parameters())
    optimizer.step()
    return weights, gradients


def counted(way, x, y, start, first):
    """Train three steps, count in the last, and report. Returns the weights, those of all ranks."""
    model, optimizer = build(way)
    buckets, shards = {}, local_bytes(model.parameters())
    if isinstance(model, DDP):
        model.register_comm_hook(buckets, noted_all_reduce)
    for _ in range(2):
        step(model, optimizer, x, y)  # DDP makes its buckets
        buckets.clear()
    with Traffic() as traffic:
        weights, gradients = step(model, optimizer, x, y)
    state = (optimizer.optim if way == "ZeRO-1" else optimizer).state
    held = local_bytes(t for of_one in state.values() for t in of_one.values() if t.dim())
    of_gradients = {p.grad.untyped_storage().data_ptr() for p in model.parameters()} if buckets else set()
    apart = sum(b.nbytes for b in buckets.values() if b.untyped_storage().data_ptr() not in of_gradients)
    found = whole_weights(model)
    first = found if first is None else first
    report(
        way=way,
        params=len(found),
        weight_bytes=weights,
        gradient_bytes=gradients,
        optimizer_bytes=held,
        beside_bytes=shards if weights > shards else apart,
        sent_bytes=traffic.sent_bytes,
        calls=[f"{times} x {name}" for name, times in traffic.calls.items()],
        gap=((found - first).norm() / (first - start).norm()).item(),  # 1 would be as far as training has moved
        kept=str(next(model.parameters()).dtype),
    )
    return found


def main():
    dist.init_process_group()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    torch.manual_seed(1 + dist.get_rank())
    x, y = (t.to(device()) for t in batch(64))  # each rank has its own
    start, first = whole_weights(make_model()), None
    for way in sys.argv[1:]:
        found = counted(way, x, y, start, first)
        first = found if first is None else first
        gc.collect()  # so that the next model finds room
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    main()
