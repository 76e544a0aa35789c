"""Lesson 01, exercise 5: a training whose model is compiled, with a backend that counts, next to the original."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .. import rank_side
from .cases import BATCH_SIZES, MOST_GRAPHS, WARM_UP


class Original(nn.Module):
    """The model as it's handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 4)
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        h = torch.tanh(self.enter(x)) * min(1.0, self.steps / WARM_UP)
        if h.norm() > 3:
            h = h * (3 / h.norm())
        return self.leave(h)


def original(batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """The losses of the program as it's handed out."""
    model = Original()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for x, y in batches:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Counting:
    """A backend that captures graphs and generates no code. `torch.compile` uses it, whatever it's asked for."""

    def __init__(self) -> None:
        self.graphs: list[int] = []  # of each: how many layers are in it
        self.runs = 0  # those that a step can learn from
        self.learned: set[int] = set()  # those that it has learned from: a gradient came back through them
        compiles = torch.compile

        def compile_(model: Any = None, **options: Any) -> Any:
            return compiles(model, **(options | {"backend": self, "mode": None, "options": None}))

        torch.compile = compile_

    def __call__(self, graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs.append(sum("linear" in str(node.target) or "mm" in str(node.target) for node in graph.graph.nodes))

        def run(*args: Any) -> Any:
            out = graph.forward(*args)
            trained = [value for value in out if isinstance(value, Tensor) and value.requires_grad]
            self.runs += bool(trained)
            for value in trained:
                value.register_hook(partial(self._came_back, self.runs))
            return out

        return run

    def _came_back(self, run: int, gradient: Tensor) -> None:
        if gradient.any():
            self.learned.add(run)


def script(load: Callable[[], ModuleType]) -> None:
    import logging

    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    counted = Counting()  # before the student's file is loaded, which may import `compile` by name
    answer = load()
    function = rank_side.function(answer, "train", "batches", changes=("the random state",))
    draw = torch.Generator().manual_seed(rank_side.draw_seed())
    batches = [(2 * torch.randn(n, 8, generator=draw), torch.randint(4, (n,), generator=draw)) for n in BATCH_SIZES]

    def trained(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
        torch.manual_seed(5)
        return function(*given, **options)

    wanted = trained(original, batches)
    losses = trained(function, batches, doing="training")
    if not isinstance(losses, list) or not all(isinstance(loss, float) for loss in losses):
        rank_side.problem(f"`train` returned {losses!r:.80}; it must return a list of floats.", "type")
    rank_side.tell(
        losses=losses, wanted=wanted, graphs=list(counted.graphs), runs=counted.runs, learned=len(counted.learned)
    )
    if len(counted.graphs) <= MOST_GRAPHS:  # else Dynamo may have reached its limit
        more = [*batches, *batches[:3]]  # so that no number of batches is right for both
        again = trained(function, more, doing="training a second time")
        rank_side.tell(again=[float(loss) for loss in again], wanted_again=trained(original, more))
