"""A step of a language model under FSDP2: Llama as torchtitan and fms-fsdp train it, MPT as llm-foundry does, and
Mixtral with its experts. Time and memory, for an emulated cluster.

A case is MODEL:BATCH:LENGTH:CHECKPOINTS:SPLIT:HOW:ACCUMULATE, as in llama3-8b:2:8192:selective:1:compiled:1 or
llama3-70b:16:8192:full:tp8:eager:1. SPLIT says what groups of GPUs share besides: tp8 each layer (tensor and sequence
parallelism, by DTensor), cp8 each sequence (context parallelism), ep8 the experts. 1 is nothing. BATCH is the sequences
of a GPU, or of a group that shares layers or sequences.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
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
    "llama-tiny": (512, 64, 2, 4, 4, 128),
    "mixtral-tiny": (512, 64, 2, 4, 4, 128),
    "mpt-tiny": (512, 64, 2, 4, 0, 256),
    "llama3-8b": (128256, 4096, 32, 32, 8, 14336),
    "llama3-70b": (128256, 8192, 80, 64, 8, 28672),
    "llama2-7b": (32000, 4096, 32, 32, 32, 11008),
    "llama2-13b": (32000, 5120, 40, 40, 40, 13824),
    "llama2-70b": (32000, 8192, 80, 64, 8, 28672),
    "mixtral-8x7b": (32000, 4096, 32, 32, 8, 14336),
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

    def __init__(self, words: int, width: int, layers: int, heads: int, groups: int, inner: int, layer: Any = None):
        super().__init__()
        layer = layer or (partial(LlamaLayer, groups=groups) if groups else MptLayer)
        self.words = nn.Embedding(words, width)
        self.places = None if groups else nn.Embedding(65536, width)
        self.layers = nn.ModuleList([layer(width, heads, inner=inner) for _ in range(layers)])
        self.norm: nn.Module = nn.RMSNorm(width, eps=1e-5) if groups else nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        if self.places is not None:
            x = x + self.places.weight[: tokens.shape[1]]
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

    def forward(self, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int, gated: bool = True):
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.heads, self.groups, self.each = heads, groups, width // heads
        self.first, self.second = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.k = linear(width, width), linear(width, groups * self.each)
        self.v, self.out = linear(width, groups * self.each), linear(width, width)
        if gated:
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
        return x + self.mixed(self.second(x))

    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(h)) * self.up(h))


class Expert(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(h)) * self.up(h))


class Experts(nn.ModuleList):
    """Those that lie here; each gets an even part of the rows."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([expert(part) for expert, part in zip(self, rows.chunk(len(self)), strict=True)])


class MixtralLayer(LlamaLayer):
    """Each token goes to 2 of 8 experts, which the GPUs of a group share. That each gets as many is assumed."""

    def __init__(self, width: int, heads: int, groups: int, inner: int, group: Any = None):
        super().__init__(width, heads, groups, inner, gated=False)
        self.group, sharing = group, dist.get_world_size(group) if group else 1
        self.router = nn.Linear(width, 8, bias=False)
        self.experts = Experts([Expert(width, inner) for _ in range(8 // sharing)])

    def travel(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self.group is None else all_to_all_single_autograd(rows, None, None, self.group)

    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        tokens = h.flatten(0, 1)
        shares, which = self.router(tokens).softmax(-1).topk(2)
        order = which.flatten().argsort()  # by expert
        rows = self.travel(self.experts(self.travel(tokens[order // 2])))
        back = torch.empty_like(rows).index_copy(0, order, rows)
        return (back.unflatten(0, (-1, 2)) * shares[..., None]).sum(1).view_as(h)


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

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        return self.run(self.layer, x, turns)


def divide(model: Language, mesh: Any) -> None:
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


def clip(parameters: list[nn.Parameter]) -> None:
    """Clip by one norm over all parameters, which may lie on several meshes: experts are on fewer ranks."""
    by_mesh: dict[Any, list[nn.Parameter]] = {}
    for p in parameters:
        by_mesh.setdefault(p.device_mesh, []).append(p)
    norms = [nn.utils.get_total_norm([p.grad for p in some]).full_tensor() for some in by_mesh.values()]
    total = torch.stack(norms).square().sum().sqrt()
    for some in by_mesh.values():
        nn.utils.clip_grads_with_norm_(some, 1.0, total)


def train(case: str) -> None:
    size, batch, length, checkpointing, split, how, accumulate = case.split(":")
    kind, group = split[:2] if split[0].isalpha() else "", int(split.lstrip("tcep"))
    ranks, each = dist.get_world_size(), SIZES[size][1] // SIZES[size][3]  # of a head
    mesh = init_device_mesh("cuda", (ranks // group, group), mesh_dim_names=("data", "inner"))
    everybody = mesh._flatten("everybody") if group > 1 else mesh["data"]
    layer = None
    if size.startswith("mixtral"):
        sharing = mesh["inner"].get_group() if kind == "ep" else None
        layer = partial(MixtralLayer, groups=SIZES[size][4], group=sharing)
    with torch.device("meta"):
        model = Language(*SIZES[size], layer)
    if kind == "tp":
        divide(model, mesh["inner"])
    types = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    over = mesh["data"] if kind == "tp" else everybody  # with tp a group holds each weight once anyway
    for i, one in enumerate(model.layers):
        if kind == "ep":
            fully_shard(one.experts, mesh=mesh["data"], mp_policy=types)
        wrapped = one if checkpointing == "none" else Checkpointed(one, checkpointing)
        model.layers[i] = torch.compile(wrapped) if how == "compiled" else wrapped
        fully_shard(model.layers[i], mesh=over, mp_policy=types)
    fully_shard(model, mesh=over, mp_policy=types)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def loss_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(0, 1))

    loss_of = torch.compile(loss_of) if how == "compiled" else loss_of

    def step() -> None:
        for _ in range(int(accumulate)):
            tokens = torch.randint(SIZES[size][0], (int(batch), int(length) + 1), device="cuda")
            x, wanted = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
            turns = torch.randn(int(length), each // 2, dtype=torch.complex64, device="cuda")
            buffers = {"buffers": [x, wanted, turns], "buffer_seq_dims": [1, 1, 0]}
            with (
                loss_parallel() if kind == "tp" else nullcontext(),  # each rank has a part of the words
                context_parallel(mesh["inner"], **buffers) if kind == "cp" else nullcontext(),
            ):
                logits = model(x, turns)
                loss = loss_of(logits, wanted)
                del logits
                loss.backward()
        clip(list(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.cuda.synchronize()
    with timer() as t:
        step()
        torch.cuda.synchronize()
    tokens_per_s = int(batch) * int(length) * int(accumulate) / t.seconds / (group if kind in ("tp", "cp") else 1)
    report(case=case, seconds=t.seconds, tokens_per_s=tokens_per_s, peak_bytes=torch.cuda.max_memory_allocated())


def main() -> None:
    dist.init_process_group()
    torch.cuda.set_device(device())
    for case in sys.argv[1:]:
        train(case)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
