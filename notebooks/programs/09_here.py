"""Steps of a small transformer with dropout, activations kept or computed again in turn: bytes, seconds, gradients."""

import weakref

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from course_utils.rank import device, report, timer
from course_utils.workloads import default_size
from course_utils.workloads.models import Block

CPU, GPU = (256, 6, 4, 128, 4), (1024, 12, 16, 1024, 4)  # width, depth, heads, length, sequences
ROUNDS = 7


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors made inside that are still alive (`now`), and the most at any time (`peak`)."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self.add(t.untyped_storage(), given)  # a view has the storage of its base
        self.peak = max(self.peak, self.now)
        return out

    def add(self, storage, given):
        key, nbytes = storage._cdata, storage.nbytes()
        if key not in self.known and key not in given:
            self.known.add(key)
            self.now += nbytes
            weakref.finalize(storage, self.remove, key, nbytes).atexit = False

    def remove(self, key, nbytes):
        self.known.discard(key)
        self.now -= nbytes


def forward(blocks, x, again):
    torch.manual_seed(1)  # the same dropout in each step
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False) if again else block(x)
    return x.square().mean()


def main():
    if device().type == "cuda":
        torch.cuda.set_device(device())
    width, depth, heads, length, batch = CPU if default_size() == "cpu" else GPU
    torch.manual_seed(0)
    with device():
        blocks = nn.ModuleList([nn.Sequential(Block(width, heads), nn.Dropout(0.1)) for _ in range(depth)])
        x = torch.randn(batch, length, width)
    for p in blocks.parameters():
        p.grad = torch.zeros_like(p)  # so that no byte of a gradient is counted
    gradients = {}
    for name, again in (("kept", False), ("computed again", True)):
        blocks.zero_grad(set_to_none=False)
        with LiveBytes() as live:
            loss = forward(blocks, x, again)
            kept = live.now  # what backward will ask for
            loss.backward()
        gradients[name] = torch.cat([p.grad.flatten().cpu() for p in blocks.parameters()])
        report(name=name, kept_bytes=kept, peak_bytes=live.peak)
    for _ in range(ROUNDS):
        for name, again in (("kept", False), ("computed again", True)):  # in turn: a busy moment meets both
            with timer() as t:
                forward(blocks, x, again).backward()
            report(name=name, step_s=t.seconds)
    kept, again = gradients["kept"], gradients["computed again"]
    report(apart=((kept - again).abs().max() / kept.abs().max()).item(), on=device().type)


if __name__ == "__main__":
    main()
