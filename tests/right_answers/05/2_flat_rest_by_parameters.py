import torch
import torch.distributed as dist


def bf16_hook(state, bucket):
    buffer = bucket.buffer()
    rest = torch.cat([state.get(id(p), torch.zeros(p.numel())) for p in bucket.parameters()])
    wanted = buffer + rest
    small = wanted.to(torch.bfloat16)
    left = wanted - small.float()
    for p, piece in zip(bucket.parameters(), left.split([p.numel() for p in bucket.parameters()])):
        state[id(p)] = piece.clone()
    future = dist.all_reduce(small, group=dist.group.WORLD, async_op=True).get_future()
    return future.then(lambda f: f.value()[0].to(buffer.dtype).div_(dist.get_world_size()))
