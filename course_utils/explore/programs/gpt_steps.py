"""Two steps of a GPT's layers, sharded as asked: what the button under `explore.memory()` runs."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import dropout, gelu
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from course_utils.rank import device, report


class Block(nn.Module):
    """A layer of a transformer with plain attention, whose scores lie in memory."""

    def __init__(self, width: int, recompute: str):
        super().__init__()
        self.recompute, self.heads = recompute, width // 128
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x, use_reentrant=False) if self.recompute == "full" else self.layer(x)

    def layer(self, x: torch.Tensor) -> torch.Tensor:
        n, t, width = x.shape
        heads = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, 128).permute(2, 0, 3, 1, 4)
        q, k, v = heads.reshape(3, n * self.heads, t, 128)  # copied, so that nothing else of it stays
        if self.recompute == "selective":
            mixed = checkpoint(attention, q, k, v, use_reentrant=False)
        else:
            mixed = attention(q, k, v)
        mixed = mixed.view(n, self.heads, t, 128).transpose(1, 2).reshape(n, t, width)
        x = x + dropout(self.out(mixed), 0.1)
        return x + dropout(self.down(gelu(self.up(self.norm2(x)))), 0.1)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[heads, t, 128] three times to the same; each position sees those before it."""
    scores = torch.baddbmm(q.new_empty(len(q), q.shape[1], q.shape[1]), q, k.transpose(1, 2), beta=0, alpha=128**-0.5)
    later = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
    return dropout(scores.masked_fill_(later, float("-inf")).softmax(-1), 0.1) @ v


class AdamOf16Bits(torch.optim.Optimizer):
    """Adam for weights of 16 bits: it updates a copy in 32 bits, and rounds."""

    def __init__(self, params, lr: float):  # type: ignore[no-untyped-def]
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            weight, gradient = (getattr(t, "_local_tensor", t) for t in (p, p.grad))  # of a DTensor, this rank's part
            state = self.state[p]
            if not state:
                state["copy"] = weight.float()
                state["mean"], state["square"] = torch.zeros_like(state["copy"]), torch.zeros_like(state["copy"])
            state["mean"].lerp_(gradient.float(), 0.1)
            state["square"].mul_(0.999).addcmul_(gradient.float(), gradient.float(), value=0.001)
            state["copy"].addcdiv_(state["mean"], state["square"].sqrt().add_(1e-8), value=-self.defaults["lr"])
            weight.copy_(state["copy"])


def main(args: argparse.Namespace) -> None:
    dist.init_process_group()
    torch.cuda.set_device(device())
    of_16_bits = args.precision == "mixed"
    with torch.device("meta"):  # no GPU holds the whole model, not even for a moment
        model = nn.Sequential(*(Block(args.width, args.recompute) for _ in range(args.layers)))
    model = model.bfloat16() if of_16_bits else model
    kind = AdamOf16Bits if of_16_bits else torch.optim.AdamW
    if args.stage >= 2:
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        for block in model:
            fully_shard(block, mesh=mesh, reshard_after_forward=args.stage == 3)
        fully_shard(model, mesh=mesh, reshard_after_forward=args.stage == 3)
    model.to_empty(device=device())
    trained = model if args.stage >= 2 else DDP(model, gradient_as_bucket_view=True)
    if args.stage == 1:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, lr=1e-4)
    else:
        optimizer = kind(model.parameters(), lr=1e-4)
    x = torch.randn(args.batch, args.seq, args.width, device=device(), dtype=model[0].up.weight.dtype)
    for i in range(2):
        if i == 1:
            torch.cuda.reset_peak_memory_stats()  # the first step makes the optimizer's state
        autocast = torch.autocast("cuda", torch.bfloat16) if args.precision == "autocast" else contextlib.nullcontext()
        with autocast:
            loss = trained(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # gradients stay, as where several batches are added up
        report(progress=(i + 1, 2))
    report(peak_bytes=torch.cuda.max_memory_allocated())
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("layers", "width", "stage", "batch", "seq"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--precision", choices=["mixed", "autocast", "fp32"])
    parser.add_argument("--recompute", choices=["none", "selective", "full"])
    main(parser.parse_args())
