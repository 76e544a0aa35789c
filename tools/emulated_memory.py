"""One rank of `tools/bench_emulation.py memory`: training steps whose peak of memory is known from elsewhere.

`counted` is the same program without any GPU, by fake tensors and torch's own MemTracker. `by_hand` adds up weights,
gradients, the optimizer's state and what the layers keep, by formula.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints


class Block(nn.Module):
    """A transformer's layer as Korthikanti et al. count it (arXiv 2205.05198): attention written out, with dropout."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    @staticmethod
    def dropout(x: torch.Tensor) -> torch.Tensor:
        """CUDA's own, whose mask has a byte an element: fake tensors of the CPU would take another."""
        return torch.native_dropout(x, 0.1, True)[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        shares = self.dropout(((q @ k.transpose(2, 3)) * (h / self.heads) ** -0.5).softmax(-1))
        x = x + self.dropout(self.out((shares @ v).transpose(1, 2).reshape(b, s, h)))
        return x + self.dropout(self.down(F.gelu(self.up(self.second(x)))))


class Llama(nn.Module):
    """Llama 3.1 as torchtitan trains it: grouped attention, RMS norms, and a head that keeps its logits in float32."""

    def __init__(self, width: int = 4096, layers: int = 32, heads: int = 32, groups: int = 8, inner: int = 14336):
        super().__init__()
        self.words = nn.Embedding(128256, width)
        self.layers = nn.ModuleList([LlamaLayer(width, heads, groups, inner) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, 128256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        turns = torch.randn(tokens.shape[1], 64, dtype=torch.complex64, device=x.device)
        for layer in self.layers:
            x = layer(x, turns)
        return self.head(self.norm(x))


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int):
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.heads, self.groups, self.each = heads, groups, width // heads
        self.first, self.second = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.k = linear(width, width), linear(width, groups * self.each)
        self.v, self.out = linear(width, groups * self.each), linear(width, width)
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

    def turned(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        as_complex = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(as_complex * turns[:, None]).flatten(3).type_as(x)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        h = self.first(x)
        q = self.turned(self.q(h).view(b, s, self.heads, -1), turns)
        k, v = self.turned(self.k(h).view(b, s, self.groups, -1), turns), self.v(h).view(b, s, self.groups, -1)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, width))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


Step = Callable[[], None]


def step_of(case: str, device: Any) -> tuple[Step, nn.Module]:
    """A training step and its model: resnet50, resnet18, gpt or gpt-small."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if case in GPT else torch.float32)
    with torch.device(device):
        if case in GPT:
            width, depth, heads, length, batch = GPT[case]
            model: nn.Module = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
            optimizer: Any = torch.optim.Adam(model.parameters())
            x, y = torch.randn(batch, length, width), None
        else:
            batch, pixels = (64, 224) if case == "resnet50" else (16, 112)
            model = getattr(torchvision.models, case)()
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            x, y = torch.randn(batch, 3, pixels, pixels), torch.zeros(batch, dtype=torch.long)
    torch.set_default_dtype(before)

    def loss() -> torch.Tensor:
        return model(x).sum() if y is None else F.cross_entropy(model(x), y)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model


# width, depth, heads, length, batch
GPT = {"gpt": (2048, 24, 16, 1024, 4), "gpt-small": (256, 4, 4, 128, 8)}


def counted(case: str) -> float:
    """The peak by torch's own MemTracker on fake tensors, with nothing of ours. They're the CPU's: autograd would ask
    a driver about those of a GPU."""
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        tracker = MemTracker()
        with tracker:
            step, model = step_of(case, "cpu")
            step()
            tracker.reset_mod_stats()
            step()
    (found,) = (kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())
    return float(found)


def by_hand(case: str) -> float:
    """Of a GPT in bfloat16 at the end of forward: 2 bytes for each weight, 4 for Adam, and what the layers keep. There
    are no gradients yet, since zero_grad drops them."""
    from course_utils.predict import transformer_activation_bytes

    width, depth, heads, length, batch = GPT[case]
    parameters = depth * (12 * width**2 + 13 * width)
    return 6 * parameters + depth * transformer_activation_bytes(batch=batch, seq=length, hidden=width, heads=heads)


def llama(batch: int, length: int, ranks: int) -> None:
    """A step of Llama 3.1 8B under FSDP2, with torchtitan's selective checkpoints: attention and every other product of
    matrices are kept."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    kept = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # what an emulated GPU calls
        torch.ops.aten._scaled_dot_product_flash_attention.default,
    }

    def contexts() -> Any:
        products = {False: 0, True: 0}

        def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            keep = func in kept
            if func is torch.ops.aten.mm.default:
                products[context.is_recompute] += 1
                keep = products[context.is_recompute] % 2 == 1
            return checkpoints.CheckpointPolicy.MUST_SAVE if keep else checkpoints.CheckpointPolicy.PREFER_RECOMPUTE

        return checkpoints.create_selective_checkpoint_contexts(policy)

    with torch.device("meta"):
        model = Llama()
    types = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        forward = layer.forward
        layer.forward = partial(checkpoints.checkpoint, forward, use_reentrant=False, context_fn=contexts)
        fully_shard(layer, mp_policy=types)
    fully_shard(model, mp_policy=types, reshard_after_forward=True)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        tokens = torch.randint(128256, (batch, length + 1), device="cuda")
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(0, 1))
        del logits
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    import torch.distributed as dist

    from course_utils.rank import device, report

    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    dist.init_process_group()
    torch.cuda.set_device(device())
    for case in parser.parse_args().cases:
        torch.cuda.reset_peak_memory_stats()
        if case == "llama":
            llama(2, 8192, dist.get_world_size())
        else:
            step, model = step_of(case, device())
            step()
            torch.cuda.reset_peak_memory_stats()
            step()
            del step, model
        report(case=case, peak_bytes=torch.cuda.max_memory_allocated())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
