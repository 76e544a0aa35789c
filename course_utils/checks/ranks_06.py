"""Lesson 06 on the ranks: one adapter a task runs the student's functions and tells what it saw."""

from __future__ import annotations

import copy
import numbers
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from course_utils.checks import inside
from course_utils.checks.cases_06 import BALANCE_CASES, ENOUGH_CASES, GPIPE_CASES, OVERLAP_S, PLAN_CASES, ROWS, SPAN_CASES, WIDTH
from course_utils.checks.inside import RANK


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60} (a {type(value).__name__})"


def _number(value: Any, what: str) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        inside.problem(f"{what} returned {_shown(value)}; it must return a number.", "type")
    return float(value)


# --- 06.1, 06.2, 06.4: no ranks needed -----------------------------------------------------------------------------------


def balance(answer: ModuleType) -> None:
    function = inside.function(answer, "balance", "layer_s", "stages")
    counts, changed = [], False
    for layer_s, stages in BALANCE_CASES:
        given = list(layer_s)
        value = function(given, stages, doing=f"balancing {len(given)} layers over {stages} stages")
        changed = changed or given != layer_s
        if isinstance(value, Tensor):
            value = value.tolist()
        if not isinstance(value, (list, tuple)) or not all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in value):
            inside.problem(f"`balance` returned {_shown(value)}; it must return a list of int, the number of layers of each stage.", "type")
        counts.append([int(n) for n in value])
    inside.tell(counts=counts, changed=changed)


def bubble(answer: ModuleType) -> None:
    share = inside.function(answer, "bubble", "spans")
    enough = inside.function(answer, "enough_micro_batches", "stages", "most")
    shares = [_number(share(list(spans), doing=f"computing the bubble of {len(spans)} spans"), "`bubble`") for spans in SPAN_CASES]
    counts = []
    for stages, most in ENOUGH_CASES:
        value = _number(enough(stages, most, doing=f"asking for a bubble of {most} with {stages} stages"), "`enough_micro_batches`")
        if value != int(value):
            inside.problem(f"`enough_micro_batches({stages}, {most})` returned {value}; micro-batches come in whole numbers.", "not whole")
        counts.append(int(value))
    inside.tell(shares=shares, counts=counts)


def plan(answer: ModuleType) -> None:
    times = inside.function(answer, "step_times", "compute_s", "devices", "gradient_bytes", "activation_bytes", "micro_batches", "bandwidth_Bps")
    chosen = inside.function(
        answer, "plan", "compute_s", "devices", "gradient_bytes", "activation_bytes", "micro_batches", "bandwidth_Bps", "state_bytes", "memory_bytes"
    )
    pairs, names = [], []
    for inputs, memory in PLAN_CASES:
        value = times(*inputs, doing=f"timing a step on {inputs[1]} devices")
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            inside.problem(f"`step_times` returned {_shown(value)}; it must return two numbers, the seconds of data parallel and of the pipeline.", "type")
        pairs.append([_number(v, "`step_times`") for v in value])
        name = chosen(*inputs, *memory, doing=f"choosing for {inputs[1]} devices")
        names.append(name if isinstance(name, str) else _shown(name))
    inside.tell(times=pairs, names=names)


# --- 06.3: a GPipe loop ---------------------------------------------------------------------------------------------------


class _NoteBackward(torch.autograd.Function):
    """Notes the backward of one micro-batch."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, events: list[str], i: int) -> Tensor:
        ctx.events, ctx.i = events, i
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.events.append(f"B{ctx.i}")
        return grads[0], None, None


class Stage(nn.Module):
    """Two layers, which note what is asked of them, in order. `gate` is called with the number of the micro-batch before it is computed."""

    def __init__(self, layers: nn.Module, gate: Callable[[int], None]):
        super().__init__()
        self.layers, self.gate = layers, gate
        self.events: list[str] = []
        self.begun = 0
        self.memory: set[int] = set()  # where the micro-batches that came in lie

    def forward(self, x: Tensor) -> Tensor:
        i = self.begun
        self.begun += 1
        self.events.append(f"F{i}")
        self.memory.add(x.data_ptr())
        self.gate(i)
        result: Tensor = _NoteBackward.apply(self.layers(x), self.events, i)
        return result


class _Messages(inside.Collectives):
    """Notes messages among the stage's events, with their bytes."""

    def __init__(self, events: list[str]):
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = len(self.calls)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.events += [name for name, _ in self.calls[before:]]
        return result


def gpipe(answer: ModuleType) -> None:
    function = inside.function(answer, "gpipe_step", "stage", "inputs", "targets", "micro_batches", "shape", "loss_function")
    cases: list[dict[str, Any] | None] = []
    for ranks, m in GPIPE_CASES:
        with inside.world(ranks) as member:
            cases.append(_gpipe_case(function, ranks, m) if member else None)
    inside.tell(cases=cases)


def _gpipe_case(function: Callable[..., Any], ranks: int, m: int) -> dict[str, Any]:
    torch.manual_seed(7)  # the same model and batch on all ranks
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double() for _ in range(ranks)]
    x, y = torch.randn(2, m, ROWS, WIDTH, dtype=torch.float64)
    twin, last_alone = copy.deepcopy(layers), copy.deepcopy(layers)
    loss = mse_loss(nn.Sequential(*twin)(x.flatten(0, 1)), y.flatten(0, 1))
    loss.backward()
    mse_loss(nn.Sequential(*last_alone)(x[-1]), y[-1]).backward()

    begun = [inside.folder() / f"begun{ranks}.{rank}" for rank in range(ranks)]
    overlapped = True

    def gate(i: int) -> None:
        """From its third micro-batch on a rank goes on when the next rank has begun: only with an overlap can both be at work."""
        nonlocal overlapped
        begun[RANK].touch()
        if ranks == 2 and RANK == 0 and i >= 2 and overlapped:
            deadline = time.monotonic() + OVERLAP_S
            while not begun[1].exists() and time.monotonic() < deadline:
                time.sleep(0.002)
            overlapped = begun[1].exists()

    stage = Stage(layers[RANK], gate)
    inside.seed_differently()
    inputs = list(x.clone()) if RANK == 0 else None
    targets = list(y.clone()) if RANK == ranks - 1 else None
    with _Messages(stage.events) as counted:
        value = function(stage, inputs, targets, m, (ROWS, WIDTH), mse_loss, doing=f"running {m} micro-batches through {ranks} stages")
    if value is not None:
        value = _number(value, "`gpipe_step`")

    def gap(others: list[nn.Sequential], scale: float = 1.0) -> float | None:
        pairs = list(zip(layers[RANK].parameters(), others[RANK].parameters(), strict=True))
        return None if any(p.grad is None for p, _ in pairs) else max((p.grad - scale * q.grad).abs().max().item() for p, q in pairs)

    return {
        "events": stage.events,
        "sent": [nbytes for name, nbytes in counted.calls if name == "send"],
        "received": sum(name.startswith("recv") for name, _ in counted.calls),
        "others": sorted({name for name, _ in counted.calls if name != "send" and not name.startswith("recv")}),
        "gap": gap(twin),
        "sum_gap": gap(twin, m),
        "last_gap": gap(last_alone),
        "part_gap": gap(last_alone, 1 / m),
        "buffers": len(stage.memory),
        "overlapped": overlapped,
        "value": value,
        "loss": loss.item(),
        "initialized": dist.is_initialized(),
    }


if __name__ == "__main__":
    {"balance": balance, "bubble": bubble, "gpipe": gpipe, "plan": plan}[sys.argv[1]](inside.load(sys.argv[2]))
