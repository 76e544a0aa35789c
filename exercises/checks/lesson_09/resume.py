"""Lesson 09.2 on the ranks: one run is saved on its way and goes on to the end. In other processes, a second one goes
on from what was saved."""

from __future__ import annotations

import hashlib
import numbers
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from .. import rank_side
from ..rank_side import RANK

# The functions themselves, before an answer can put others in their place
GAUSS, PYTHON_STATE = random.gauss, random.getstate
NORMAL, NUMPY_STATE = np.random.normal, np.random.get_state
TORCH_STATE = torch.get_rng_state

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))


class Average:
    """A part of another kind, whose state is plain numbers: a running mean of the size of the weights."""

    def __init__(self) -> None:
        self.mean, self.steps = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.steps = state["mean"], state["steps"]


class Counted(nn.Module):
    """Counts the batches of the training in a buffer: a state of the model that's no weight, and a whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        return x


def _new(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3), Counted())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {
        "model": model,
        "optimizer": optimizer,
        "schedule": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 18),
        "average": Average(),
    }


def _step(parts: dict[str, Any], indices: list[int], group: Any) -> None:
    """A step of data parallel training, in a group of its own, so that no collective of the student's can get mixed up
    with it.

    It draws one normal number from Python and one from NumPy. Both make two at a time, and keep the second for the next
    step.
    """
    noise = torch.tensor([GAUSS(0, 1), NORMAL()] * 3, dtype=torch.float32)
    parts["optimizer"].zero_grad()
    parts["model"](X[indices] + noise).square().mean().backward()
    for p in parts["model"].parameters():
        dist.all_reduce(p.grad, group=group)
    parts["optimizer"].step()
    parts["schedule"].step()
    average = parts["average"]
    size = parts["model"][0].weight.abs().mean().item()
    average.mean, average.steps = 0.9 * average.mean + 0.1 * size, average.steps + 1


def _states(parts: dict[str, Any]) -> dict[str, str]:
    """A digest of every state, by name: equal for equal states."""
    states = {name: part.state_dict() for name, part in parts.items()} | {
        "random numbers of torch": TORCH_STATE(),
        "random numbers of Python": PYTHON_STATE(),
        "random numbers of NumPy": NUMPY_STATE(),
    }
    return {name: hashlib.sha256(repr(_plain(state)).encode()).hexdigest()[:16] for name, state in states.items()}


def _plain(value: Any) -> Any:
    """The state as plain values that are equal for equal states, whatever the order of a dict, and whether it's a list
    or a tuple."""
    if isinstance(value, (Tensor, np.ndarray)):
        return (str(value.dtype).removeprefix("torch."), *value.shape, value.tolist())
    if isinstance(value, dict):
        return sorted((repr(k), _plain(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _sampler(ranks: int, samples: int) -> DistributedSampler[Any]:
    return DistributedSampler(range(samples), num_replicas=ranks, rank=RANK, shuffle=True, seed=5)


def _wanted(case: dict[str, Any], epoch: int, done: int = 0, size: int = 0) -> list[list[int]]:
    """The batches that this rank should get of an epoch, after the first `done`."""
    order = _sampler(case["ranks"], case["samples"])
    order.set_epoch(epoch)
    size = size or case["batch"]
    indices = list(order)
    return [indices[i : i + size] for i in range(0, len(indices), size)][done:]


def _begin() -> None:
    """Take a first optimizer step, which imports a lot, before the ranks have to wait for each other."""
    first_use = _new(0)
    first_use["model"](X).sum().backward()
    first_use["optimizer"].step()


def _group(ranks: int) -> Any:
    return dist.new_group(list(range(ranks)), timeout=timedelta(seconds=rank_side.WAIT_S))


def run(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """Train without an interruption, and save at each stop of each case on the way."""
    save_run = rank_side.function(load(), "save_run", "parts", "epoch", "batches")
    _begin()
    cases: list[dict[str, Any] | None] = []
    for case in given["cases"]:
        with rank_side.world(case["ranks"]) as member:
            cases.append(_run(save_run, case, Path(given["folder"])) if member else None)
    rank_side.tell(cases=cases)


def _run(save_run: Callable[..., Any], case: dict[str, Any], folder: Path) -> dict[str, Any]:
    group = _group(case["ranks"])
    parts = _new(10)
    torch.manual_seed(20 + RANK), random.seed(30 + RANK), np.random.seed(40 + RANK)
    before, changed = [], list[str]()
    stops = [tuple(stop) for stop in case["stops"]]
    for epoch in range(case["epochs"]):
        batches = _wanted(case, epoch)
        for number in range(len(batches) + 1):
            if (epoch, number) in stops:
                before.append(_states(parts))
                value = save_run(parts, epoch, number, doing=f"saving the run on {case['ranks']} ranks")
                changed += [name for name, state in _states(parts).items() if before[-1][name] != state]
                if RANK == 0:
                    rank_side.must_return(isinstance(value, dict), "save_run", value, "a dict")
                    file = folder / f"saved-{case['ranks']}-{stops.index((epoch, number))}.pt"
                    torch.save(value, file)
            if number < len(batches):
                _step(parts, batches[number], group)
    return {"before": before, "changed": changed, "end": _states(parts)}


def resume(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """In a new process: go on from every stop of each case to the end."""
    saved: dict[str, Any] = {}
    for file in sorted(Path(given["folder"]).glob("*.pt")):
        try:
            saved[file.name] = torch.load(file)  # before the student's file could allow more
        except Exception as error:
            rank_side.tell(refused=" ".join(str(error).split())[:200])
            return
    answer = load()
    load_run = rank_side.function(answer, "load_run", "parts", "saved", changes=("the random state",))
    rest = rank_side.function(answer, "rest_of_epoch", "sampler", "epoch", "batches", "batch_size")
    _begin()
    cases: list[list[dict[str, Any]] | None] = []
    for case in given["cases"]:
        with rank_side.world(case["ranks"]) as member:
            cases.append(
                [
                    _resume(load_run, rest, case, stop, saved[f"saved-{case['ranks']}-{i}.pt"])
                    for i, stop in enumerate(case["stops"])
                ]
                if member
                else None
            )
    rank_side.tell(cases=cases)


def _resume(
    load_run: Callable[..., Any], rest: Callable[..., Any], case: dict[str, Any], stop: list[int], saved: Any
) -> dict[str, Any]:
    group = _group(case["ranks"])
    parts = dict(reversed(_new(50 + RANK).items()))  # the same names, in another order
    rank_side.seed_differently()
    np.random.seed(60 + RANK)
    position = load_run(parts, saved, doing=f"loading the run on {case['ranks']} ranks")
    rank_side.must_return(
        isinstance(position, (tuple, list))
        and len(position) == 2
        and all(isinstance(n, numbers.Integral) for n in position),
        "load_run",
        position,
        "two whole numbers, (epoch, batches)",
    )
    after_load = _states(parts)
    sampler = _sampler(case["ranks"], case["samples"])
    done, wanted = [], []
    for epoch in range(stop[0], case["epochs"]):
        batches = stop[1] if epoch == stop[0] else 0
        doing = f"asking for the rest of epoch {epoch} after {batches} batches"
        done.append(_batches(rest(sampler, epoch, batches, case["batch"], doing=doing)))
        wanted.append(_wanted(case, epoch, batches))
    asked = []
    for epoch, batches, size in case["questions"]:
        doing = f"asking for the rest of epoch {epoch} after {batches} batches of {size}"
        asked.append([_batches(rest(sampler, epoch, batches, size, doing=doing)), _wanted(case, epoch, batches, size)])
    now = _states(parts)
    if [len(d) for d in done] == [len(w) for w in wanted]:  # as many steps on each rank
        for number in [i for batch in done for i in batch]:
            _step(parts, number, group)
    return {
        "position": [int(n) for n in position],
        "after_load": after_load,
        "done": done,
        "wanted": wanted,
        "asked": asked,
        "touched": [name for name in now if name.startswith("random") and now[name] != after_load[name]],
        "end": _states(parts),
    }


def _batches(value: Any) -> list[list[int]]:
    try:
        return [[int(i) for i in batch] for batch in value]
    except TypeError:
        rank_side.problem(
            f"`rest_of_epoch` returned {rank_side.shown(value)}; it must return a list of lists of indices.", "type"
        )
