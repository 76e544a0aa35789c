"""Does torch.compile pay for your training? Plain PyTorch, on one GPU or CPU, or on several ranks with DDP.

    python 01_compile.py --steps 200
    torchrun --standalone --nproc-per-node=8 01_compile.py

To make it yours, replace the model and the data. See also where it cuts your model, and why it starts again:

    TORCH_LOGS=graph_breaks,recompiles python 01_compile.py
"""

import argparse
import copy
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

CLASSES = 10


class Block(nn.Module):
    """Many small operations around one matrix product."""

    def __init__(self, n=128):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(n), nn.Linear(n, n)

    def forward(self, x):
        y = self.linear(self.norm(x))
        return x + y * torch.sigmoid(1.7 * y)


def new_model():
    return nn.Sequential(Block(), Block(), nn.Linear(128, CLASSES))


def batches(n, size, device):
    """Points around ten centres: a stand-in for your own data. All batches have one size: see `drop_last`."""
    generator = torch.Generator().manual_seed(int(os.environ.get("RANK", 0)))
    centres = torch.randn(CLASSES, 128, generator=torch.Generator().manual_seed(0))
    for _ in range(n):
        labels = torch.randint(CLASSES, (size,), generator=generator)
        points = centres[labels] + torch.randn(size, 128, generator=generator)
        yield points.to(device), labels.to(device)


def train(model, steps, size, device):
    """Returns the seconds of each step, and the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seconds = []
    for x, y in batches(steps, size, device):
        start = time.perf_counter()
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()  # waits for the GPU, so the clock is right
        seconds.append(time.perf_counter() - start)
    return seconds, last


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=4096, help="of each rank")
    parser.add_argument("--backend", default="inductor", help="aot_eager needs no C++ compiler, and gains nothing")
    parser.add_argument("--mode", default=None, help="reduce-overhead, max-autotune")
    args = parser.parse_args()

    ranks, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    gpu = torch.cuda.device_count() >= here
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)

    torch.manual_seed(0)
    model = new_model().to(device)
    x, _ = next(batches(1, args.batch_size, device))
    found = torch._dynamo.explain(model)(x)  # before DDP, which cuts the graph on purpose
    counters.clear()
    plain, fast = model, copy.deepcopy(model)
    if ranks > 1:  # wrap first, compile then
        plain, fast = (DDP(m, device_ids=[device] if gpu else None) for m in (plain, fast))
    fast = torch.compile(fast, backend=args.backend, mode=args.mode)

    eager_s, eager_loss = train(plain, args.steps, args.batch_size, device)
    fast_s, fast_loss = train(fast, args.steps, args.batch_size, device)
    if not ranks > 1 or dist.get_rank() == 0:
        e, c, first = statistics.median(eager_s[3:]), statistics.median(fast_s[3:]), fast_s[0]
        print(f"eager {e * 1e3:.2f} ms a step, compiled {c * 1e3:.2f} ms, the first {first:.1f} s")
        print(f"loss after {args.steps} steps: eager {eager_loss:.4f}, compiled {fast_loss:.4f}")
        print(f"graphs: {found.graph_count}, compiled {counters['stats']['unique_graphs']} times")
        for reason in found.break_reasons:
            print(f"  broken at line {reason.user_stack[-1].lineno}: {reason.user_stack[-1].line.strip()}")
        if c < e:
            print(f"paid back after {(first - c) / (e - c):,.0f} steps")
        else:
            print("a compiled step saves nothing here")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
