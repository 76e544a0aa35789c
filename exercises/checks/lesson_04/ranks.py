"""Lesson 04 on the ranks, exercises 1 to 3: each task runs the student's functions and tells what it saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import Dataset, DistributedSampler, TensorDataset

from .. import rank_side
from ..rank_side import RANK
from .cases import EPOCHS, N_TRAIN, SHARD_CALLS, shard_cases

# --- 04.1: shard a data set -------------------------------------------------------------------------------------------


def shard(load: Callable[[], ModuleType]) -> None:
    """Asks every rank for its own indices in all cases and epochs, and for the next rank's, in a process group of the
    case's size."""

    def not_here(*_: Any, **__: Any) -> None:
        rank_side.problem("The answer makes a DistributedSampler. Here you write what it does yourself.", "library")

    DistributedSampler.__init__ = not_here
    answer = load()
    function = rank_side.function(
        answer, "shard", "n_samples", "rank", "world_size", "epoch", "seed", "shuffle", "drop_last"
    )
    seed = rank_side.launch_seed()
    cases = shard_cases(seed)
    got: list[list[list[int]] | None] = [None] * len(cases)
    neighbours: list[list[int] | None] = [None] * len(cases)
    for size in sorted({case[1] for case in cases}):
        with rank_side.world(size) as member:
            for i, (n, ranks, shuffle, drop_last) in enumerate(cases):
                if member and ranks == size:
                    doing = (
                        f"sharding {n} samples over {size} rank{'s' * (size > 1)} (shuffle={shuffle},"
                        f" drop_last={drop_last})"
                    )
                    got[i] = [
                        _indices(function(n, RANK, size, epoch, seed, shuffle, drop_last, doing=doing))
                        for epoch, seed in SHARD_CALLS
                    ]
                    other = (RANK + 1) % size
                    neighbours[i] = _indices(function(n, other, size, 0, 0, shuffle, drop_last, doing=doing))
    elsewhere = True
    with rank_side.world(1) as member:
        if member:
            here = list(function(100, 0, 2, 1, 3))
            vars(answer)["hash"] = _hash_of_another_process
            elsewhere = list(function(100, 0, 2, 1, 3)) == here
    rank_side.tell(seed=seed, shards=got, neighbours=neighbours, elsewhere=elsewhere)


def _hash_of_another_process(value: Any) -> int:
    """Python gives the hash of a text a new salt in each process; a number's hash is the same everywhere."""
    texts = [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, (str, bytes))]
    return hash(value) ^ (0x5A17 if texts else 0)


def _indices(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        what = (
            f"a list of {type(value[0]).__name__}"
            if isinstance(value, list) and value
            else f"a {type(value).__name__}"
            if value is not None
            else "None"
        )
        rank_side.problem(
            f"`shard` returned {what} on rank {RANK}; it must return a list of int (a tensor gives one with"
            " `.tolist()`).",
            "type",
        )
    return value


# --- 04.2: average a metric over ranks --------------------------------------------------------------------------------


class Batches:
    """A rank's batches, as a loader hands them out; `handed_out` counts them."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]):
        self.batches, self.handed_out = batches, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            self.handed_out += 1
            yield batch


def accuracy(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """Gives every rank its own batches of each case, and counts the collectives of each call."""
    mine = rank_side.take(given["dealt"])
    answer = load()
    function = rank_side.function(answer, "global_accuracy", "batches", "n_samples")
    cases = given["cases"]
    seen: list[dict[str, Any] | None] = [None] * len(cases)
    for size in sorted({ranks for _, ranks, _ in cases}):
        with rank_side.world(size) as member:
            for i, (n, ranks, _) in enumerate(cases):
                if member and ranks == size:
                    seen[i] = _measure(function, mine[i], n, f"measuring {n} samples on {ranks} ranks")
    rank_side.tell(cases=seen)


def _measure(function: Callable[..., Any], mine: list[list[list[int]]], n: int, doing: str) -> dict[str, Any]:
    batches = Batches([(torch.tensor(p), torch.tensor(y)) for p, y in mine])
    kept = rank_side.snapshot(batches.batches)
    with rank_side.Collectives() as counted:
        value = function(batches, n, doing=doing)
    if not rank_side.same(kept, batches.batches):
        rank_side.problem(
            f"`global_accuracy` changed its argument `batches`, while {doing}. It belongs to the caller.",
            "argument changed",
        )
    if isinstance(value, (str, bytes)):
        value = None
    try:
        value = float(value)
    except (TypeError, ValueError, RuntimeError):
        rank_side.problem(
            f"`global_accuracy` returned {_shown(value)} on rank {RANK}; it must return a float, on every rank.",
            "nothing returned",
        )
    return {"value": value, "collectives": len(counted.calls), "handed_out": batches.handed_out}


def _shown(value: Any) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else f"a {type(value).__name__}"
        if value is not None
        else "nothing"
    )


# --- 04.3: mend a trainer ---------------------------------------------------------------------------------------------


class Toy(nn.Module):
    """Small, with what a careless copy gets wrong: a frozen layer, two layers that share their weight, and buffers.

    x of shape (batch, 8) to logits of shape (batch, 3)
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.inner = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.inner.weight
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(x - self.mean)
        return self.head(self.tied(self.inner(x).relu()).relu() + x)


class Points(Dataset):
    """`dataset[i]` is (x of shape (8,), class)."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Trace:
    """What a training did: the weights before its first step and after each; for each step the samples that the model
    was trained on, and the collectives."""

    def __init__(self, model: nn.Module, dataset: Points, counted: rank_side.Collectives):
        self.model, self.counted = model, counted
        self.index = {row.numpy().tobytes(): i for i, row in enumerate(dataset.x)}
        self.start: dict[str, Tensor] | None = None
        self.weights: list[Tensor] = []
        self.samples: list[list[int]] = []
        self.calls: list[list[tuple[str, int]]] = []
        self.evaluating = 0  # training forwards with the model in evaluation mode
        self._trained_on: list[int] = []
        self._called = 0
        # A loader may fetch samples in advance: only the model's forward sees those that it trains on.
        model.register_forward_pre_hook(self._forward)
        self._handles = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]

    def _forward(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            self.evaluating += not model.training
            rows = (self.index.get(row.detach().numpy().tobytes()) for row in inputs[0])
            self._trained_on += [i for i in rows if i is not None]

    def _before(self, *_: Any) -> None:
        if self.start is None:
            self.start = {k: v.clone() for k, v in self.model.state_dict().items()}

    def _after(self, *_: Any) -> None:
        self.weights.append(flat(self.model))
        self.samples.append(self._trained_on)
        self.calls.append(self.counted.calls[self._called :])
        self._trained_on, self._called = [], len(self.counted.calls)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def told(self) -> dict[str, Any]:
        """What the judge gets to see."""
        return {
            "start": {name: value.flatten().tolist() for name, value in (self.start or {}).items()},
            "weights": [w.tolist() for w in self.weights],
            "samples": self.samples,
            "calls": [[name for name, _ in step] for step in self.calls],
            "evaluating": self.evaluating,
        }


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def class_data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """n points of shape (8,) in 3 classes of unequal size."""
    random = torch.Generator().manual_seed(seed)
    y = torch.tensor([0, 0, 0, 1, 1, 2]).repeat(-(-n // 6))[:n]
    return torch.randn(n, 8, generator=random) + 0.7 * y[:, None], y


def points() -> Points:
    return Points(*class_data(N_TRAIN, 1))


def held_out() -> TensorDataset:
    return TensorDataset(*class_data(30, 2))


def trainer(answer: ModuleType, evaluates: bool = False) -> None:
    """Trains on two ranks that start from different weights, and tells what each held after every step."""
    torch.set_default_dtype(torch.float64)  # what remains between two right answers is then rounding of 1e-16
    parameters = ("model", "dataset", "test_set", "epochs") if evaluates else ("model", "dataset", "epochs")
    function = rank_side.function(answer, "train", *parameters, changes=("the random state",))
    dataset = points()
    with rank_side.world(2):
        model = Toy()
        with rank_side.Collectives() as counted:
            trace = Trace(model, dataset, counted)
            result = function(model, dataset, *([held_out()] if evaluates else []), EPOCHS, doing="training")
            trace.close()
    rank_side.tell(**trace.told(), result=_floats(result))


def evaluating_trainer(answer: ModuleType) -> None:
    trainer(answer, evaluates=True)


def _floats(value: Any) -> list[float] | None:
    try:
        return [float(v) for v in value]
    except (TypeError, ValueError):
        return None
