"""Lesson 06 on the ranks: each task runs the student's functions and tells what it saw."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from .. import rank_side
from ..rank_side import RANK
from .cases import GPIPE_CASES, OVERLAP_S, ROWS, WIDTH, balance_cases

# --- 06.1, 06.4: no ranks needed --------------------------------------------------------------------------------------


def balance(answer: ModuleType) -> None:
    function = rank_side.function(answer, "balance", "layer_s", "stages")
    counts = []
    for layer_s, stages in balance_cases(rank_side.launch_seed()):
        value = function(list(layer_s), stages, doing=f"balancing {len(layer_s)} layers over {stages} stages")
        if isinstance(value, Tensor):
            value = value.tolist()
        rank_side.must_return(
            isinstance(value, (list, tuple))
            and all(isinstance(n, numbers.Integral) and (not isinstance(n, bool)) for n in value),
            "balance",
            value,
            "a list of int, the number of layers of each stage",
        )
        counts.append([int(n) for n in value])
    rank_side.tell(seed=rank_side.launch_seed(), counts=counts)


def orders(answer: ModuleType, given: dict[str, list[list[int]]]) -> None:
    """The lists that the two functions of 06.4 return, as they are."""
    limited = rank_side.function(answer, "orders", "stages", "micro_batches", "most")
    split = rank_side.function(answer, "zero_bubble", "stages", "micro_batches")
    found = []
    for stages, m, most in given["orders"]:
        doing = f"ordering {m} micro-batches on {stages} stages with room for {most}"
        found.append(_lists(limited(stages, m, most, doing=doing), "`orders`"))
    zero = []
    for stages, m in given["zero_bubble"]:
        value = split(stages, m, doing=f"ordering {m} micro-batches with W boxes on {stages} stages")
        zero.append(_lists([] if value is None else value, "`zero_bubble`"))  # None: not written yet
    rank_side.tell(orders=found, zero_bubble=zero)


def _lists(value: Any, what: str) -> list[list[str]]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(boxes, (list, tuple)) for boxes in value):
        rank_side.problem(f"{what} returned {rank_side.shown(value)}; it must return a list for each stage.", "type")
    for box in (box for boxes in value for box in boxes):
        if not isinstance(box, str):
            rank_side.problem(
                f"{what} returned a list with {rank_side.shown(box)} in it; a box is a str such as 'F0'.", "type"
            )
    return [list(boxes) for boxes in value]


# --- 06.3: a GPipe loop -----------------------------------------------------------------------------------------------


class NoteBackward(torch.autograd.Function):
    """Notes when the backward of a micro-batch begins."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, events: list[str], i: int) -> Tensor:
        ctx.events, ctx.i = events, i
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.events.append(f"B{ctx.i}")
        return grads[0], None, None


class Stage(nn.Module):
    """Layers that note their forwards and backwards in order. `gate` gets a micro-batch's number before its forward."""

    def __init__(self, layers: nn.Module, gate: Callable[[int], None]):
        super().__init__()
        self.layers, self.gate = layers, gate
        self.events: list[str] = []
        self.begun = 0
        self.memory: set[int] = set()  # the addresses of the micro-batches that came in

    def forward(self, x: Tensor) -> Tensor:
        i = self.begun
        self.begun += 1
        self.events.append(f"F{i}")
        self.memory.add(x.data_ptr())
        self.gate(i)
        result: Tensor = NoteBackward.apply(self.layers(x), self.events, i)
        return result


class _Messages(rank_side.Collectives):
    """Notes messages among the stage's forwards and backwards."""

    def __init__(self, events: list[str]):
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = len(self.calls)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.events += [name for name, _ in self.calls[before:]]
        return result


def gpipe(answer: ModuleType) -> None:
    function = rank_side.function(
        answer, "gpipe_step", "stage", "inputs", "targets", "micro_batches", "shape", "loss_function"
    )
    cases: list[dict[str, Any] | None] = []
    for ranks, m in GPIPE_CASES:
        with rank_side.world(ranks) as member:
            cases.append(_gpipe_case(function, ranks, m) if member else None)
    rank_side.tell(cases=cases)


def layers_of(seed: int) -> nn.Sequential:
    """The layers of the rank whose seed this is."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double()


def rows_of(seed: int, m: int) -> list[Tensor]:
    """The micro-batches of the rank whose seed this is: inputs of the first rank, targets of the last."""
    random = torch.Generator().manual_seed(seed)
    return list(torch.randn(m, ROWS, WIDTH, dtype=torch.float64, generator=random))


def gradients(layers: nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.tolist() for p in layers.parameters()]


def _gpipe_case(function: Callable[..., Any], ranks: int, m: int) -> dict[str, Any]:
    seed = rank_side.secret_seed()
    begun = [rank_side.folder() / f"begun{ranks}.{rank}" for rank in range(ranks)]
    overlapped = True

    def gate(i: int) -> None:
        """From its third micro-batch on, rank 0 waits here until rank 1 has begun, which happens only if both work at
        the same time."""
        nonlocal overlapped
        begun[RANK].touch()
        if ranks == 2 and RANK == 0 and i >= 2 and overlapped:
            deadline = time.monotonic() + OVERLAP_S
            while not begun[1].exists() and time.monotonic() < deadline:
                time.sleep(0.002)
            overlapped = begun[1].exists()

    stage = Stage(layers_of(seed), gate)
    rank_side.seed_differently()
    inputs = rows_of(seed, m) if RANK == 0 else None
    targets = rows_of(seed, m) if RANK == ranks - 1 else None
    with _Messages(stage.events) as counted:
        value = function(
            stage,
            inputs,
            targets,
            m,
            (ROWS, WIDTH),
            mse_loss,
            doing=f"running {m} micro-batches through {ranks} stages",
        )
    if value is not None:
        value = rank_side.number(value, "`gpipe_step`")

    return {
        "seed": seed,
        "gradients": gradients(stage.layers),
        "events": stage.events,
        "sent": [nbytes for name, nbytes in counted.calls if name == "send"],
        "received": sum(name.startswith("recv") for name, _ in counted.calls),
        "others": sorted({name for name, _ in counted.calls if name != "send" and not name.startswith("recv")}),
        "buffers": len(stage.memory),
        "overlapped": overlapped,
        "value": value,
    }
