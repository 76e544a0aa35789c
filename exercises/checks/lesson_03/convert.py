"""Lesson 03, exercise 5: a converted script, with a DataParallel that has four places on the CPU in place of GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from .. import rank_side
from .cases import EPOCHS, FILE, SAMPLES
from .places import replicas_of

PLACES = 4


class Net(nn.Module):
    """A model that returns the mean loss of what it gets. `seen` holds the rows of each call, by who called."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.seen: dict[str, list[int]] = {"replica": [], "alone": []}

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen["replica" if Places.running else "alone"].append(len(x))
        return cross_entropy(self.layers(x), y)


def points(seed: int) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(SAMPLES, 8, generator=random), torch.randint(4, (SAMPLES,), generator=random))


class Places(nn.DataParallel):
    """The real wrapper's behaviour: scatters, replicates, applies one replica after the other, and gathers."""

    running = False

    def __init__(self, module: nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__(module)
        self.device_ids = list(range(PLACES)) if device_ids is None else list(device_ids)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        parts: list[Any] = _parts((inputs, *sorted(kwargs.items())), len(self.device_ids))
        replicas = replicas_of(self.module, len(parts), [])
        Places.running = True
        try:
            outputs = [replica(*args, **dict(named)) for replica, (args, *named) in zip(replicas, parts, strict=True)]
        finally:
            Places.running = False
        return _joined(outputs)


def data_parallel(module: nn.Module, inputs: Any, device_ids: Any = None, *_: Any, **__: Any) -> Any:
    return Places(module, device_ids)(*(inputs if isinstance(inputs, tuple) else (inputs,)))


def _parts(value: Any, n: int) -> list[Any]:
    """As torch.nn.parallel.scatter: tensors are cut, containers part by part, and anything else goes to all."""
    if isinstance(value, Tensor):
        return list(value.chunk(n))
    if isinstance(value, (tuple, list)) and value:
        return [type(value)(parts) for parts in zip(*(_parts(part, n) for part in value), strict=False)]
    if isinstance(value, dict) and value:
        return [dict(items) for items in zip(*(_parts(item, n) for item in value.items()), strict=False)]
    return [value] * n


def _joined(outputs: list[Any]) -> Any:
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.cat(outputs) if first.ndim else torch.stack(outputs)
    if isinstance(first, dict):
        return {name: _joined([output[name] for output in outputs]) for name in first}
    return type(first)(_joined(list(parts)) for parts in zip(*outputs, strict=True))


def script(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """Runs `main` once, and tells what went through the replicas and the weights at the end."""
    torch.set_default_dtype(torch.float64)
    parallel: Any = torch.nn.parallel
    owners: list[Any] = [torch.nn, parallel, sys.modules["torch.nn.parallel.data_parallel"]]
    for owner in owners:
        owner.DataParallel = Places  # before the student's file is loaded, which may import it by name
    parallel.data_parallel = data_parallel
    model, dataset = Net(given["seed"]), points(given["seed"])
    function = rank_side.function(load(), "main", "model", "dataset", "epochs", "path", changes=("the random state",))
    function(model, dataset, EPOCHS, Path(given["folder"]) / FILE, doing="training")
    weights = {name: p.flatten().tolist() for name, p in model.state_dict().items()}
    rank_side.tell(weights=weights, seen=model.seen)
