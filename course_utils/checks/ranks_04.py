"""Lesson 04 on the ranks, exercises 1 to 3: one adapter a task runs the student's functions, beside a twin, and tells what it saw."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import Dataset, TensorDataset

from course_utils.checks import inside
from course_utils.checks.cases_04 import ACCURACY_CASES, EPOCHS, LR, N_TRAIN, SHARD_CALLS, SHARD_CASES
from course_utils.checks.inside import RANK

# --- 04.1: shard a data set ---------------------------------------------------------------------------------------------


def shard(answer: ModuleType) -> None:
    """Asks every rank for its indices in all cases and epochs, in a process group of the case's size."""
    function = inside.function(answer, "shard", "n_samples", "rank", "world_size", "epoch", "seed", "shuffle", "drop_last")
    got: list[list[list[int]] | None] = [None] * len(SHARD_CASES)
    touched: set[str] = set()
    for size in sorted({case[1] for case in SHARD_CASES}):
        with inside.world(size) as member:
            for i, (n, ranks, shuffle, drop_last) in enumerate(SHARD_CASES):
                if member and ranks == size:
                    before = inside.random_states()
                    doing = f"sharding {n} samples over {size} rank{'s' * (size > 1)} (shuffle={shuffle}, drop_last={drop_last})"
                    got[i] = [_indices(function(n, RANK, size, epoch, seed, shuffle, drop_last, doing=doing)) for epoch, seed in SHARD_CALLS]
                    after = inside.random_states()
                    touched |= {name for name, state in before.items() if after[name] != state}
    inside.tell(shards=got, touched=sorted(touched))


def _indices(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        what = f"a list of {type(value[0]).__name__}" if isinstance(value, list) and value else f"a {type(value).__name__}" if value is not None else "None"
        inside.problem(f"`shard` returned {what} on rank {RANK}; it must return a list of int (a tensor gives one with `.tolist()`).", "type")
    return value


# --- 04.2: average a metric over ranks ------------------------------------------------------------------------------------


def accuracy(answer: ModuleType) -> None:
    """Gives every rank the batches that a DistributedSampler would, and counts the collectives of each call."""
    function = inside.function(answer, "global_accuracy", "batches", "n_samples")
    seen: list[dict[str, Any] | None] = [None] * len(ACCURACY_CASES)
    for size in sorted({case[1] for case in ACCURACY_CASES}):
        with inside.world(size) as member:
            for i, (n, ranks, batch_size) in enumerate(ACCURACY_CASES):
                if member and ranks == size:
                    seen[i] = _accuracy_case(function, n, ranks, batch_size)
    inside.tell(cases=seen)


def _accuracy_case(function: Callable[..., Any], n: int, ranks: int, batch_size: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(n)
    labels = torch.randint(0, 10, (n,), generator=random)
    right = torch.rand(n, generator=random) < torch.linspace(0.95, 0.2, n)  # the first samples, which pad, are mostly right
    right[0] = True
    predictions = torch.where(right, labels, (labels + 1) % 10)

    def positions(rank: int) -> Tensor:
        return torch.arange(rank, -(-n // ranks) * ranks, ranks)

    mine = positions(RANK) % n
    batches = list(zip(predictions[mine].split(batch_size), labels[mine].split(batch_size), strict=True))
    with inside.Collectives() as counted:
        value = function(batches, n, doing=f"measuring {n} samples on {ranks} ranks")
    try:
        value = float(value)
    except (TypeError, ValueError):
        inside.problem(f"`global_accuracy` returned {_shown(value)} on rank {RANK}; it must return a float, on every rank.", "nothing returned")

    def mean(values: list[Tensor]) -> float:
        kept = [v.double().mean() for v in values if len(v)]
        return float(sum(kept) / len(kept))

    padded = [right[positions(r) % n] for r in range(ranks)]
    real = [right[positions(r)[positions(r) < n]] for r in range(ranks)]
    return {
        "value": value,
        "collectives": len(counted.calls),
        "batches": len(batches),
        "truth": float(right.double().mean()),
        "padded": float(torch.cat(padded).double().mean()),
        "local": float(padded[RANK].double().mean()),
        "local_real": float(real[RANK].double().mean()) if len(real[RANK]) else None,
        "mean_of_ranks": mean(real),
        "mean_of_batches": mean([b for p in padded for b in p.split(batch_size)]),
        "correct": int(right.sum()),
    }


def _shown(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}" if value is not None else "nothing"


# --- 04.3: mend a trainer ---------------------------------------------------------------------------------------------------


class Toy(nn.Module):
    """Small, with what trips a careless copy: a frozen layer, two layers that share their weight, and buffers.

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
    """What happened up to each optimizer step: weights before the first and after each, samples that the model was trained on, collectives."""

    def __init__(self, model: nn.Module, dataset: Points, counted: inside.Collectives):
        self.model, self.counted = model, counted
        self.index = {row.numpy().tobytes(): i for i, row in enumerate(dataset.x)}
        self.start: dict[str, Tensor] | None = None
        self.weights: list[Tensor] = []
        self.samples: list[list[int]] = []
        self.calls: list[list[tuple[str, int]]] = []
        self._trained_on: list[int] = []
        self._called = 0
        # The model's own forward sees every sample, whichever way it is called and whatever a loader fetches in advance.
        model.register_forward_pre_hook(self._forward)
        self._handles = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]

    def _forward(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
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


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def class_data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """n points of shape (8,) in 3 classes of unequal size."""
    random = torch.Generator().manual_seed(seed)
    y = torch.tensor([0, 0, 0, 1, 1, 2]).repeat(-(-n // 6))[:n]
    return torch.randn(n, 8, generator=random) + 0.7 * y[:, None], y


def trainer(answer: ModuleType, evaluates: bool = False) -> None:
    """Trains on two ranks that start from different weights; rank 0 then replays the same samples, step by step, in one process."""
    torch.set_default_dtype(torch.float64)  # what remains between two right answers is then rounding of 1e-16
    parameters = ("model", "dataset", "test_set", "epochs") if evaluates else ("model", "dataset", "epochs")
    function = inside.function(answer, "train", *parameters)
    dataset, test_set = Points(*class_data(N_TRAIN, 1)), TensorDataset(*class_data(30, 2))
    with inside.world(2):
        model = Toy()
        with inside.Collectives() as counted:
            trace = Trace(model, dataset, counted)
            result = function(model, dataset, *([test_set] if evaluates else []), EPOCHS, doing="training")
            trace.close()
    own = inside.folder() / f"trace{RANK}.pt"
    seen = {"start": trace.start, "weights": trace.weights, "samples": trace.samples, "calls": trace.calls, "result": _floats(result)}
    torch.save(seen, own.with_suffix(".part"))
    own.with_suffix(".part").rename(own)
    if RANK == 0:
        traces = [own, own.with_name("trace1.pt")]
        inside.wait_for(*traces)
        inside.tell(**compare([torch.load(path) for path in traces], dataset, test_set))


def _floats(value: Any) -> list[float] | None:
    try:
        return [float(v) for v in value]
    except (TypeError, ValueError):
        return None


def compare(traces: list[dict[str, Any]], dataset: Points, test_set: TensorDataset) -> dict[str, Any]:
    """The numbers that the check needs: how far the ranks are from each other and from the twin after each step, and what each saw."""
    samples = [t["samples"] for t in traces]
    facts: dict[str, Any] = {
        "steps": [len(t["weights"]) for t in traces],
        "samples": samples,
        "calls": [[[name for name, _ in step] for step in t["calls"]] for t in traces],
        "result": [t["result"] for t in traces],
    }
    if min(facts["steps"]) == 0:
        return facts
    starts = [t["start"] for t in traces]
    facts["start_gap"] = {k: gap(starts[0][k], starts[1][k]) for k in starts[0] if gap(starts[0][k], starts[1][k]) > 0}
    facts["rank_gap"] = [gap(a, b) for a, b in zip(traces[0]["weights"], traces[1]["weights"], strict=False)]
    facts["bias"] = [s["head.bias"].tolist() for s in starts]
    facts["log_frequency"] = dataset.y.bincount().div(len(dataset)).log().tolist()
    twin = Toy()
    twin.load_state_dict(starts[0])
    optimizer = torch.optim.SGD(twin.parameters(), lr=LR)
    facts["twin_gap"], facts["accuracy"] = [], []
    for step in range(min(facts["steps"])):
        batch = samples[0][step] + samples[1][step]
        if not batch:
            break
        optimizer.zero_grad()
        cross_entropy(twin(dataset.x[batch]), dataset.y[batch]).backward()
        optimizer.step()
        facts["twin_gap"].append([gap(flat(twin), t["weights"][step]) for t in traces])
        if (step + 1) % (facts["steps"][0] // EPOCHS or 1) == 0:
            x, y = test_set.tensors
            facts["accuracy"].append(float((twin(x).argmax(1) == y).double().mean()))
    return facts


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.shape == b.shape else float("inf")


if __name__ == "__main__":
    tasks = {"shard": shard, "accuracy": accuracy, "trainer": trainer, "evaluating trainer": lambda answer: trainer(answer, evaluates=True)}
    tasks[sys.argv[1]](inside.load(sys.argv[2]))
