"""A step of a language model under FSDP2: Llama as torchtitan and fms-fsdp train it, MPT as llm-foundry does, GPT as
Megatron-LM does, and Mixtral with its experts. Time and memory, for an emulated cluster.

A case is MODEL:BATCH:LENGTH:CHECKPOINTS:SPLIT:HOW:ACCUMULATE, as in llama3-8b:2:8192:selective:1:compiled:1 or
llama3-70b:1:8192:full:tp8pp4x2:eager:16. SPLIT says what groups of GPUs share besides: tp8 each layer (tensor and
sequence parallelism, by DTensor), cp8 each sequence (context parallelism), ep8 the experts, pp4 the layers one after
the other (a pipeline of 4 stages; pp4x2 has two on each rank, interleaved). 1 is nothing. BATCH is the sequences of a
GPU, or of a group that shares layers or sequences; ACCUMULATE such batches make a step: a pipeline's micro-batches.

A pipeline's ranks do different things, so emulate one for each stage: 4 ranks, one_of=64.
"""

from __future__ import annotations

import re
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
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
# et al., Llama 2; llm-foundry@8c8dd48 scripts/train/yamls/pretrain, whose layers have a GELU and no gate (0 groups);
# Korthikanti et al., arXiv 2205.05198, table 3.
SIZES = {
    "llama-tiny": (512, 64, 2, 4, 4, 128),
    "mixtral-tiny": (512, 64, 2, 4, 4, 128),
    "mpt-tiny": (512, 64, 2, 4, 0, 256),
    "llama3-8b": (128256, 4096, 32, 32, 8, 14336),
    "llama3-70b": (128256, 8192, 80, 64, 8, 28672),
    "llama3-405b": (128256, 16384, 126, 128, 8, 53248),
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
    "gpt-tiny": (512, 64, 8, 4, 0, 256),
    "gpt-22b": (51200, 6144, 48, 64, 0, 24576),
    "gpt-175b": (51200, 12288, 96, 96, 0, 49152),
}


class Language(nn.Module):
    """A language model that keeps its logits in float32 for the loss, or one stage of it. `turns` are set from outside:
    a pipeline passes the states on, and nothing else."""

    turns: torch.Tensor

    def __init__(
        self, words: int, width: int, layers: int, heads: int, groups: int, inner: int, length: int = 65536,
        layer: Any = None, stage: int = 0, stages: int = 1,
    ):  # fmt: skip
        super().__init__()
        layer = layer or (partial(LlamaLayer, groups=groups) if groups else MptLayer)
        first, last = stage == 0, stage == stages - 1
        self.words = nn.Embedding(words, width) if first else None
        self.places = nn.Embedding(length, width) if first and not groups else None
        self.place = 0  # of the first of these states in its sequence, in numbers of states
        ends = layers % stages != 0  # they count as a layer each, then
        mine = (layers + 2) // stages - first - last if ends else layers // stages
        self.layers = nn.ModuleList([layer(width, heads, inner=inner) for _ in range(mine)])
        self.norm: nn.Module | None = None
        self.head: nn.Module | None = None
        if last:
            self.norm = nn.RMSNorm(width, eps=1e-5) if groups else nn.LayerNorm(width, bias=False)
            self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.words is not None:
            x = self.words(x)
        if self.places is not None:
            x = x + self.places.weight.narrow(0, self.place * x.shape[1], x.shape[1])
        for layer in self.layers:
            x = layer(x, self.turns)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


class MptLayer(nn.Module):
    """A GPT's layer without biases."""

    def __init__(self, width: int, heads: int, inner: int):
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.each = width // heads
        self.first, self.second = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, inner), linear(inner, width)

    def forward(self, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.first(x)).unflatten(-1, (3, -1, self.each))  # with tensor parallelism a part of the heads
        mixed = self.attend(*(t.transpose(1, 2) for t in qkv.unbind(2))).transpose(1, 2)
        x = x + self.dropped(self.out(mixed.flatten(2)))
        return x + self.dropped(self.down(F.gelu(self.up(self.second(x)))))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def dropped(self, x: torch.Tensor) -> torch.Tensor:
        return x


class GptLayer(MptLayer):
    """As Megatron-LM had it before there was FlashAttention: with a matrix of scores, and dropout. `again` computes the
    scores once more in backward, where they'd take the most memory."""

    def __init__(self, width: int, heads: int, inner: int, again: bool):
        super().__init__(width, heads, inner)
        self.again = again

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return checkpoints.checkpoint(scores, q, k, v, use_reentrant=False) if self.again else scores(q, k, v)

    def dropped(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.1)


def scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    found = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    later = torch.ones(found.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return F.dropout(found.masked_fill(later, float("-inf")).softmax(-1), 0.1) @ v


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
    here = dict(model.named_children())
    parallelize_module(model, mesh, {name: how for name, how in plan.items() if name in here})
    model.place = mesh.get_local_rank()
    for layer in model.layers:
        inner = {
            "first": SequenceParallel(),
            "second": SequenceParallel(),
            "out": RowwiseParallel(output_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        own = dict(layer.named_children())
        columns = [name for name in ("q", "k", "v", "qkv", "gate", "up") if name in own]
        inner |= {name: ColwiseParallel(input_layouts=Shard(1)) for name in columns}
        parallelize_module(layer, mesh, inner)


def clip(parameters: list[nn.Parameter], pipe: Any = None) -> None:
    """Clip by one norm over all parameters, which may lie on several meshes: experts are on fewer ranks. `pipe` is the
    group of a pipeline's stages."""
    by_mesh: dict[Any, list[nn.Parameter]] = {}
    for p in parameters:
        by_mesh.setdefault(p.device_mesh, []).append(p)
    norms = [nn.utils.get_total_norm([p.grad for p in some]).full_tensor() for some in by_mesh.values()]
    squares = torch.stack(norms).square().sum()
    if pipe is not None:
        dist.all_reduce(squares, group=pipe)
    total = squares.sqrt()
    for some in by_mesh.values():
        nn.utils.clip_grads_with_norm_(some, 1.0, total)


def parts(split: str) -> dict[str, int]:
    """What a SPLIT says: the size of each group, and `chunks`, the stages on a rank."""
    found = {"tp": 1, "cp": 1, "ep": 1, "pp": 1, "chunks": 1}
    for kind, size, chunks in re.findall(r"(tp|cp|ep|pp)(\d+)(?:x(\d+))?", split):
        found |= {kind: int(size)} | ({"chunks": int(chunks)} if chunks else {})
    return found


def stage_of(case: str, mesh: Any, stage: int, stages: int) -> Language:
    """The model, or one stage of it, shared out over the mesh as the case says."""
    size, _, length, checkpointing, split, how, _ = case.split(":")
    by = parts(split)
    everybody = mesh["data", "inner"]._flatten("everybody") if by["tp"] * by["cp"] * by["ep"] > 1 else mesh["data"]
    layer = None
    if size.startswith("mixtral"):
        sharing = mesh["inner"].get_group() if by["ep"] > 1 else None
        layer = partial(MixtralLayer, groups=SIZES[size][4], group=sharing)
    elif size.startswith("gpt"):
        layer = partial(GptLayer, again=checkpointing == "core")
    with torch.device("meta"):
        model = Language(*SIZES[size], int(length), layer, stage, stages)
    if by["tp"] > 1:
        divide(model, mesh["inner"])
    types = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    over = mesh["data"] if by["tp"] > 1 else everybody  # with tp a group holds each weight once anyway
    # A pipeline's weights are fetched once for all micro-batches of a step.
    shard = partial(fully_shard, mp_policy=types, reshard_after_forward=None if stages == 1 else False)
    for i, one in enumerate(model.layers):
        if by["ep"] > 1:
            shard(one.experts, mesh=mesh["data"])
        wrapped = one if checkpointing in ("none", "core") else Checkpointed(one, checkpointing)
        model.layers[i] = torch.compile(wrapped) if how == "compiled" else wrapped
        shard(model.layers[i], mesh=over)
    shard(model, mesh=over)
    return model.to_empty(device="cuda")


def pipeline(case: str, stages: list[Language], mesh: Any, loss_of: Any) -> Any:
    """The schedule of a case, which runs forward and backward of all micro-batches."""
    size, batch, length, _, split, _, accumulate = case.split(":")
    by, rank = parts(split), mesh["pipe"].get_local_rank()
    words, width, *_ = SIZES[size]
    ids = torch.empty(int(batch), int(length), dtype=torch.int64, device="meta")
    empty = partial(torch.empty, dtype=torch.bfloat16, device="meta", requires_grad=True)
    states = empty(int(batch), int(length) // by["tp"], width)
    logits = empty(int(batch), int(length), words)
    count = by["pp"] * by["chunks"]
    made = []
    for chunk, stage in enumerate(stages):
        index = rank + chunk * by["pp"]
        given, found = ids if index == 0 else states, logits if index == count - 1 else states
        group = mesh["pipe"].get_group()
        made.append(PipelineStage(stage, index, count, torch.device("cuda"), given, found, group=group))
    if by["chunks"] > 1:
        return ScheduleInterleaved1F1B(made, int(accumulate), loss_fn=loss_of)
    return Schedule1F1B(made[0], int(accumulate), loss_fn=loss_of)


def train(case: str) -> None:
    size, batch, length, _, split, how, accumulate = case.split(":")
    by = parts(split)
    group, each = by["tp"] * by["cp"] * by["ep"], SIZES[size][1] // SIZES[size][3]  # of a head
    shape = by["pp"], dist.get_world_size() // group // by["pp"], group
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("pipe", "data", "inner"))
    rank = mesh["pipe"].get_local_rank()
    count = by["pp"] * by["chunks"]
    stages = [stage_of(case, mesh, stage, count) for stage in range(rank, count, by["pp"])]
    parameters = [p for stage in stages for p in stage.parameters()]
    optimizer = torch.optim.AdamW(parameters, fused=True)

    def loss_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(0, 1))

    loss_of = torch.compile(loss_of) if how == "compiled" else loss_of
    schedule = pipeline(case, stages, mesh, loss_of) if by["pp"] > 1 else None

    def batches(sequences: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens = torch.randint(SIZES[size][0], (sequences, int(length) + 1), device="cuda")
        turns = torch.randn(int(length), each // 2, dtype=torch.complex64, device="cuda")
        for stage in stages:
            stage.turns = turns
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), turns

    def step() -> None:
        for _ in range(int(accumulate) if schedule is None else 1):
            x, wanted, turns = batches(int(batch) * (1 if schedule is None else int(accumulate)))
            buffers = {"buffers": [x, wanted, turns], "buffer_seq_dims": [1, 1, 0]}
            with (
                loss_parallel() if by["tp"] > 1 else nullcontext(),  # each rank has a part of the words
                context_parallel(mesh["inner"], **buffers) if by["cp"] > 1 else nullcontext(),
            ):
                if schedule is not None:
                    last = rank == by["pp"] - 1
                    given = {"target": wanted} if last else {}
                    schedule.step(*([x] if rank == 0 else []), **given, return_outputs=False)  # the logits
                else:
                    logits = stages[0](x)
                    loss = loss_of(logits, wanted)
                    del logits
                    loss.backward()
        clip(parameters, mesh["pipe"].get_group() if by["pp"] > 1 else None)
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.cuda.synchronize()
    with timer() as t:
        step()
        torch.cuda.synchronize()
    sharing = by["pp"] * by["tp"] * by["cp"]  # a batch; experts have one each
    tokens_per_s = int(batch) * int(length) * int(accumulate) / t.seconds / sharing
    memory = {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}
    report(case=case, seconds=t.seconds, tokens_per_s=tokens_per_s, **memory)


def main() -> None:
    dist.init_process_group()
    torch.cuda.set_device(device())
    for case in sys.argv[1:]:
        train(case)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
