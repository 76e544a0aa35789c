"""A step of a language model under FSDP2 and, by DTensor, tensor parallelism with sequence parallelism: Llama as
torchtitan and fms-fsdp train it, MPT as llm-foundry does. Time and memory, for an emulated cluster.

A case is MODEL:BATCH:LENGTH:CHECKPOINTS:TP:HOW:ACCUMULATE, as in llama3-8b:2:8192:selective:1:compiled:1 or
mpt-7b:6:2048:none:1:eager:2, with BATCH sequences for each TP GPUs.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints

from course_utils.rank import device, report, timer

# Words, width, layers, heads, groups of keys, inner width. Dubey et al., The Llama 3 Herd of Models, table 3; Touvron
# et al., Llama 2; llm-foundry@8c8dd48 scripts/train/yamls/pretrain, whose layers have a GELU and no gate (0 groups).
SIZES = {
    "llama3-8b": (128256, 4096, 32, 32, 8, 14336),
    "llama3-70b": (128256, 8192, 80, 64, 8, 28672),
    "llama2-7b": (32000, 4096, 32, 32, 32, 11008),
    "llama2-13b": (32000, 5120, 40, 40, 40, 13824),
    "llama2-70b": (32000, 8192, 80, 64, 8, 28672),
    "mpt-350m": (50368, 1024, 24, 16, 0, 4096),
    "mpt-760m": (50368, 1536, 24, 12, 0, 6144),
    "mpt-1b": (50368, 2048, 24, 16, 0, 8192),
    "mpt-3b": (50368, 2560, 32, 20, 0, 10240),
    "mpt-7b": (50368, 4096, 32, 32, 0, 16384),
    "mpt-13b": (50368, 5120, 40, 40, 0, 20480),
    "mpt-30b": (50368, 7168, 48, 56, 0, 28672),
    "mpt-70b": (50368, 8192, 80, 64, 0, 32768),
}


class Language(nn.Module):
    """A language model that keeps its logits in float32 for the loss."""

    def __init__(self, words: int, width: int, layers: int, heads: int, groups: int, inner: int):
        super().__init__()
        self.words, self.turning = nn.Embedding(words, width), bool(groups)
        self.places = None if groups else nn.Embedding(65536, width)
        self.layers = nn.ModuleList(
            [
                LlamaLayer(width, heads, groups, inner) if groups else MptLayer(width, heads, inner)
                for _ in range(layers)
            ]
        )
        self.norm: nn.Module = nn.RMSNorm(width, eps=1e-5) if groups else nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        if self.places is not None:
            x = x + self.places.weight[: tokens.shape[1]]
        turns = torch.randn(tokens.shape[1], 64, dtype=torch.complex64, device=tokens.device) if self.turning else None
        for layer in self.layers:
            x = layer(x, turns)
        return self.head(self.norm(x))


class MptLayer(nn.Module):
    """A GPT's layer without biases."""

    def __init__(self, width: int, heads: int, inner: int):
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, inner), linear(inner, width)

    def forward(self, x: torch.Tensor, _: None) -> torch.Tensor:
        b, s, width = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


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
        h = self.first(x)
        q = self.q(h)
        b, s = q.shape[:2]  # with sequence parallelism x has a part of the sequence only
        q = self.turned(q.view(b, s, -1, self.each), turns)
        k, v = self.turned(self.k(h).view(b, s, -1, self.each), turns), self.v(h).view(b, s, -1, self.each)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, -1))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def selective() -> Any:
    """torchtitan's selective checkpoints: attention and every other product of matrices are kept."""
    kept = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # what an emulated GPU calls
        torch.ops.aten._scaled_dot_product_flash_attention.default,
    }
    products = {False: 0, True: 0}

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        keep = func in kept
        if func is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        return checkpoints.CheckpointPolicy.MUST_SAVE if keep else checkpoints.CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoints.create_selective_checkpoint_contexts(policy)


class Checkpointed(nn.Module):
    def __init__(self, layer: nn.Module, which: str):
        super().__init__()
        self.layer = layer
        self.run = partial(
            checkpoints.checkpoint, use_reentrant=False, **({"context_fn": selective} if which == "selective" else {})
        )

    def forward(self, x: torch.Tensor, turns: Any) -> torch.Tensor:
        return self.run(self.layer, x, turns)


def split(model: Language, mesh: Any) -> None:
    """Tensor parallelism: torchtitan's plan, by torch's classes."""
    whole = {"use_local_output": False}
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), **whole),
    }
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        inner = {
            "first": SequenceParallel(),
            "second": SequenceParallel(),
            "out": RowwiseParallel(output_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        inner |= {name: ColwiseParallel(input_layouts=Shard(1)) for name in ("q", "k", "v", "gate", "up")}
        parallelize_module(layer, mesh, inner)


def train(case: str) -> None:
    size, batch, length, checkpointing, tp, how, accumulate = case.split(":")
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cuda", (ranks // int(tp), int(tp)), mesh_dim_names=("data", "tensor"))
    with torch.device("meta"):
        model = Language(*SIZES[size])
    if int(tp) > 1:
        split(model, mesh["tensor"])
    types = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, layer in enumerate(model.layers):
        wrapped = layer if checkpointing == "none" else Checkpointed(layer, checkpointing)
        model.layers[i] = torch.compile(wrapped) if how == "compiled" else wrapped
        fully_shard(model.layers[i], mesh=mesh["data"], mp_policy=types)
    fully_shard(model, mesh=mesh["data"], mp_policy=types)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def loss_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(0, 1))

    loss_of = torch.compile(loss_of) if how == "compiled" else loss_of

    def step() -> None:
        for _ in range(int(accumulate)):
            tokens = torch.randint(SIZES[size][0], (int(batch), int(length) + 1), device="cuda")
            logits = model(tokens[:, :-1])
            with loss_parallel() if int(tp) > 1 else nullcontext():  # each rank has a part of the words
                loss = loss_of(logits, tokens[:, 1:])
                del logits
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.cuda.synchronize()
    with timer() as t:
        step()
        torch.cuda.synchronize()
    tokens_per_s = int(batch) * int(length) * int(accumulate) / t.seconds / int(tp)
    report(case=case, seconds=t.seconds, tokens_per_s=tokens_per_s, peak_bytes=torch.cuda.max_memory_allocated())


def main() -> None:
    dist.init_process_group()
    torch.cuda.set_device(device())
    for case in sys.argv[1:]:
        train(case)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
