"""Lesson 06, exercise 2: a training script for a small transformer as stages on ranks; and its twin in one process."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from .. import rank_side
from ..rank_side import RANK
from .cases import LENGTH, LR, MOMENTUM, SAMPLES, VOCABULARY, WIDTH, ConvertCase
from .ranks import NoteBackward


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.token(tokens) + self.place
        return embedded


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True))
        result: Tensor = x + self.mlp(x)
        return result


def new_layer(seed: int, i: int, layers: int) -> nn.Module:
    """Layer i of a model with so many: an embedding, blocks, and a head that gives a logit for each token."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + i)
        if i == 0:
            layer: nn.Module = Embedding()
        elif i < layers - 1:
            layer = Block()
        else:
            layer = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
    return layer.double()


def new_batches(seed: int, case: ConvertCase) -> list[tuple[Tensor, Tensor]]:
    _, _, m, batches = case
    drawn = torch.Generator().manual_seed(seed)
    rows = [torch.randint(VOCABULARY, (SAMPLES * m, LENGTH + 1), generator=drawn) for _ in range(batches)]
    return [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows]


def flat(parameters: Any) -> list[float]:
    values: list[float] = torch.cat([p.detach().flatten() for p in parameters]).tolist()
    return values


class _Made:
    """Makes this rank's layers, and no others. The first of them notes its forwards and backwards in order."""

    def __init__(self, seed: int, case: ConvertCase):
        ranks, counts, self.m, _ = case
        self.seed, self.layers = seed, sum(counts)
        self.own = range(sum(counts[:RANK]), sum(counts[: RANK + 1]))
        self.words = f"{ranks} ranks with {', '.join(map(str, counts))} layers"
        self.numbers: list[int] = []
        self.events: list[str] = []

    def __call__(self, i: int) -> nn.Module:
        i = int(i)
        if i not in self.own:
            rank_side.problem(
                f"Rank {RANK} makes layer {i}, and its own are {self.own[0]} to {self.own[-1]} ({self.words}).",
                "not its own",
            )
        self.numbers.append(i)
        layer = new_layer(self.seed, i, self.layers)
        if i == self.own[0]:
            layer.register_forward_hook(self._note)
        return layer

    def _note(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return output
        if len(inputs[0]) != SAMPLES:
            rank_side.problem(
                f"A forward on rank {RANK} gets {len(inputs[0])} samples, and a micro-batch has {SAMPLES}: the batch of"
                f" {SAMPLES * self.m} makes {self.m} ({self.words}).",
                "micro-batches",
            )
        self.events.append("F")
        noted: Tensor = NoteBackward.apply(output, self.events, "")
        return noted

    def most_in_flight(self) -> int:
        """Counted from the end: before the first step the schedule may try the stage, to learn what shapes come out."""
        most = now = 0
        for event in reversed(self.events):
            now += 1 if event == "B" else -1
            most = max(most, now)
        return most


def train(answer: ModuleType, given: dict[str, Any]) -> None:
    """Trains each case, and tells which layers a rank made, what they held afterwards, and in which order it worked."""
    function = rank_side.function(answer, "train", "make_layer", "counts", "batches", "micro_batches", "lr")
    seen: list[dict[str, Any] | None] = []
    for number, case in enumerate(given["cases"]):
        with rank_side.world(case[0]) as member:
            seen.append(_train(function, given["seed"] + 100 * number, case) if member else None)
    rank_side.tell(cases=seen)


def _train(function: Callable[..., Any], seed: int, case: ConvertCase) -> dict[str, Any]:
    ranks, counts, m, batches = case
    made = _Made(seed, case)
    doing = f"training with {m} micro-batches on {ranks} ranks"
    value = function(made, list(counts), new_batches(seed, case), m, LR, doing=doing)
    if not dist.is_initialized():
        rank_side.problem(
            "`train` ends the process group. It was there before, and belongs to the caller.", "group ended"
        )
    rank_side.must_return(
        isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], nn.Module),
        "train",
        value,
        "(model, losses), and the model is an nn.Module with this rank's layers",
    )
    model, losses = value
    own = [new_layer(seed, i, sum(counts)) for i in made.own]
    return {
        "made": made.numbers,
        "backwards": made.events.count("B"),
        "in_flight": made.most_in_flight(),
        "start": flat(p for layer in own for p in layer.parameters()),
        "end": flat(model.parameters()) if list(model.parameters()) else [],
        "losses": _numbers(losses) if RANK == ranks - 1 else [],
    }


def _numbers(losses: Any) -> list[float]:
    if isinstance(losses, Tensor):
        losses = losses.tolist()
    if not isinstance(losses, (list, tuple)):
        rank_side.problem(
            f"`train` returned {rank_side.shown(losses)} for its losses; on the last rank they're a list with a number"
            " for each batch.",
            "type",
        )
    return [rank_side.number(loss, "`train`, in its list of losses,") for loss in losses]


# --- the twin ---------------------------------------------------------------------------------------------------------

# How known mistakes change the gradient, given what p.grad held, the mean's gradient, and the numbers of micro-batches
# and of ranks.
GRADIENTS: dict[str, Callable[[Tensor, Tensor, int, int], Tensor]] = {
    "": lambda old, mean, m, ranks: mean,
    "sum": lambda old, mean, m, ranks: mean * m,
    "divided twice": lambda old, mean, m, ranks: mean / m,
    "averaged": lambda old, mean, m, ranks: mean / ranks,
    "old gradients": lambda old, mean, m, ranks: old / m + mean,  # the schedule divides all that p.grad holds
    "old gradients, kept whole": lambda old, mean, m, ranks: old + mean,
}


def twins(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """For each case what comes out in one process, as it should be and as known mistakes make it. It never loads the
    answer."""
    rank_side.tell(
        cases=[
            {how: _replay(given["seed"] + 100 * number, (*case,), how) for how in GRADIENTS}
            for number, case in enumerate(given["cases"])
        ]
    )


def _replay(seed: int, case: ConvertCase, how: str) -> dict[str, Any]:
    """The weights of each stage after the training, and of each batch the losses of its micro-batches."""
    ranks, counts, m, _ = case
    layers = [new_layer(seed, i, sum(counts)) for i in range(sum(counts))]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    losses = []
    held = [torch.zeros_like(p) for p in model.parameters()]
    for tokens, targets in new_batches(seed, case):
        of_micro_batches = [
            cross_entropy(model(x).flatten(0, 1), y.flatten())
            for x, y in zip(tokens.chunk(m), targets.chunk(m), strict=True)
        ]
        means = torch.autograd.grad(torch.stack(of_micro_batches).mean(), list(model.parameters()))
        held = [GRADIENTS[how](old, mean, m, ranks) for old, mean in zip(held, means, strict=True)]
        for p, grad in zip(model.parameters(), held, strict=True):
            p.grad = grad.clone()
        optimizer.step()
        losses.append([loss.item() for loss in of_micro_batches])
    ends = [sum(counts[: stage + 1]) for stage in range(ranks)]
    stages = [layers[end - n : end] for n, end in zip(counts, ends, strict=True)]
    return {"losses": losses, "weights": [flat(p for layer in own for p in layer.parameters()) for own in stages]}
