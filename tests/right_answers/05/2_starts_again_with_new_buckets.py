import torch
import torch.distributed as dist

all_reduce = dist.all_reduce


def bf16_hook(state, bucket):
    n, key = dist.get_world_size(), bucket.index()
    buffer = bucket.buffer().div_(n)
    if key in state and state[key].shape == buffer.shape:
        buffer += state[key]
    else:
        state.pop(key, None)
    sent = buffer.bfloat16()
    state[key] = buffer - sent
    return all_reduce(sent, async_op=True).get_future().then(lambda done: done.value()[0].float())
