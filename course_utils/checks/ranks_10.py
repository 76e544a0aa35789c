"""Lesson 10 on the ranks: one adapter a task runs the student's functions and tells what it saw."""

from __future__ import annotations

import copy
import itertools
import numbers
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.checks import inside
from course_utils.checks.cases_10 import (
    DECAY,
    HIDDEN,
    LEARNING_RATE,
    OPTIMIZER_RANKS,
    PLAN_CASES,
    RESHARD_CASES,
    ROWS,
    SHAPES,
    SPLIT_RANKS,
    STEPS,
    WIDTH,
)  # fmt: skip
from course_utils.checks.inside import RANK


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60} (a {type(value).__name__})"


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        inside.problem(f"{what} returned {_shown(value)}; it must return a number.", "type")
    return float(value)


def _class(answer: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(answer, name, None)
    if not isinstance(found, type):
        inside.problem(f"The cell defines no class `{name}`. Keep its name as it was given.", "missing")
    return inside.function(answer, name, *{"ShardedOptimizer": ("params", "make"), "SplitMLP": ("up", "down")}[name])


# --- 10.1 -------------------------------------------------------------------------------------------------------------------


def optimizer(answer: ModuleType) -> None:
    make = _class(answer, "ShardedOptimizer")
    cases: list[dict[str, Any] | None] = []
    for ranks in OPTIMIZER_RANKS:
        with inside.world(ranks) as member:
            cases.append(_optimizer_case(make, ranks) if member else None)
    inside.tell(cases=cases)


def _adam(tensors: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(tensors, lr=LEARNING_RATE, weight_decay=DECAY)


def _optimizer_case(make: Callable[..., Any], ranks: int) -> dict[str, Any]:
    torch.manual_seed(3)  # the same numbers on all ranks
    start = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
    gradients = torch.randn(STEPS, ranks, sum(t.numel() for t in start), dtype=torch.float64)
    flat = torch.cat([t.flatten() for t in start])

    def twin(of_step: Callable[[int], Tensor], forget: bool = False) -> list[Tensor]:
        """The parameters after each step of one process."""
        whole, found = flat.clone().requires_grad_(), []
        one = _adam([whole])
        for step in range(STEPS):
            one = _adam([whole]) if forget else one
            whole.grad = of_step(step)
            one.step()
            found.append(whole.detach().clone())
        return found

    made: list[tuple[list[Tensor], torch.optim.Optimizer]] = []

    def noted(tensors: list[Tensor]) -> torch.optim.Optimizer:
        if not isinstance(tensors, (list, tuple)) or not all(isinstance(t, Tensor) for t in tensors):
            inside.problem(f"`make` was called with {_shown(tensors)}; it takes a list of tensors.", "type")
        made.append((list(tensors), _adam(list(tensors))))
        return made[-1][1]

    inside.seed_differently()
    params = [t.clone().requires_grad_() for t in start]
    places = [p.data_ptr() for p in params]
    with inside.Collectives() as before:
        student = make(params, noted, doing=f"making the optimizer on {ranks} ranks")
    part = -(-len(flat) // ranks)

    def of_owners(step: int) -> Tensor:
        """Each slice by the gradients of the rank that owns it."""
        return torch.cat([gradients[step, r, part * r : part * (r + 1)] for r in range(ranks)])

    rights, sums = twin(lambda s: gradients[s].mean(0)), twin(lambda s: gradients[s].sum(0))
    alone, owners = twin(lambda s: gradients[s, RANK]), twin(of_owners)
    forgetful = twin(lambda s: gradients[s].mean(0), forget=True)
    gaps: dict[str, list[float]] = {name: [] for name in ("right", "sum", "alone", "owners", "forgets", "start", "sliced")}
    calls = []
    for step in range(STEPS):
        for p, g in zip(params, gradients[step, RANK].split([t.numel() for t in start]), strict=True):
            p.grad = g.view_as(p).clone()
        inside.report(call=f"taking step {step + 1} on {ranks} ranks")
        with inside.Collectives() as counted:
            student.step()
        inside.report(call="")
        calls.append(counted.calls)
        now = torch.cat([p.detach().flatten() for p in params])
        others = {"right": rights, "sum": sums, "alone": alone, "owners": owners, "forgets": forgetful}
        for name, found in others.items():
            gaps[name].append((now - found[step]).abs().max().item())
        gaps["start"].append((now - flat).abs().max().item())
        gaps["sliced"].append((now - rights[step])[part * RANK : part * (RANK + 1)].abs().sum().item())
    state = sum(t.numel() for _, one in made for s in one.state.values() for t in s.values() if isinstance(t, Tensor) and t.dim())
    return {
        "gaps": gaps,
        "before": [name for name, _ in before.calls],
        "calls": calls,
        "state": state,
        "made": len(made),
        "moved": places != [p.data_ptr() for p in params],
    }


# --- 10.2 and 10.4: no ranks needed ----------------------------------------------------------------------------------------


def reshard(answer: ModuleType) -> None:
    function = inside.function(answer, "reads", "rows", "saved_on", "loaded_on", "rank")
    plans: list[list[Any]] = []
    for rows, saved_on, loaded_on in RESHARD_CASES:
        plans.append([])
        for rank in range(loaded_on):
            value = function(rows, saved_on, loaded_on, rank, doing=f"asking what rank {rank} of {loaded_on} reads of {rows} rows saved on {saved_on} ranks")
            pieces = [tuple(piece) for piece in value] if isinstance(value, (list, tuple)) and all(isinstance(p, (list, tuple)) for p in value) else None
            if pieces is None or any(len(p) != 3 or not all(isinstance(i, int) and not isinstance(i, bool) for i in p) for p in pieces):
                inside.problem(f"`reads` returned {_shown(value)}; it must return a list of (file, first, last), three int each.", "type")
            plans[-1].append(pieces)
    inside.tell(plans=plans)


def plan(answer: ModuleType) -> None:
    memory = inside.function(answer, "memory_bytes", "params", "ranks", "stage", "activation_bytes", "recompute")
    seconds = inside.function(answer, "step_s", "params", "ranks", "stage", "compute_s", "recompute", "bandwidth_Bps")
    chosen = inside.function(answer, "plan", "params", "ranks", "activation_bytes", "compute_s", "bandwidth_Bps", "device_bytes")
    held, took, plans = [], [], []
    for params, ranks, activations, compute, bandwidth, device in PLAN_CASES:
        for stage, recompute in itertools.product(range(4), (False, True)):
            held.append(_number(memory(params, ranks, stage, activations, recompute), "`memory_bytes`"))
            took.append(_number(seconds(params, ranks, stage, compute, recompute, bandwidth), "`step_s`"))
        value = chosen(params, ranks, activations, compute, bandwidth, device, doing=f"planning for {params / 1e9:g} billion parameters on {ranks} ranks")
        if value is not None and not (isinstance(value, (list, tuple)) and len(value) == 2):
            inside.problem(f"`plan` returned {_shown(value)}; it must return (stage, recompute), or None where nothing fits.", "type")
        plans.append(None if value is None else [int(value[0]), bool(value[1])])
    inside.tell(held=held, took=took, plans=plans)


# --- 10.3 -------------------------------------------------------------------------------------------------------------------


def split(answer: ModuleType) -> None:
    make = _class(answer, "SplitMLP")
    cases: list[dict[str, Any] | None] = []
    for ranks in SPLIT_RANKS:
        with inside.world(ranks) as member:
            cases.append(_split_case(make, ranks) if member else None)
    inside.tell(cases=cases)


def _split_case(make: Callable[..., Any], ranks: int) -> dict[str, Any]:
    torch.manual_seed(5)  # the same numbers on all ranks
    up, down = nn.Linear(WIDTH, HIDDEN).double(), nn.Linear(HIDDEN, WIDTH).double()
    x, weight = torch.randn(2, ROWS, WIDTH, dtype=torch.float64)
    given_up, given_down = copy.deepcopy(up), copy.deepcopy(down)
    one = x.clone().requires_grad_()
    expected = down(torch.tanh(up(one)))
    (expected * weight).sum().backward()
    inside.seed_differently()
    with inside.Collectives() as before:
        module = make(given_up, given_down, doing=f"splitting an MLP over {ranks} ranks")
    _shapes(module, ranks)
    theirs = {p.untyped_storage().data_ptr() for p in [*given_up.parameters(), *given_down.parameters()]}
    shared = [name for name, p in module.named_parameters() if p.untyped_storage().data_ptr() in theirs]
    mine = x.clone().requires_grad_()
    inside.report(call=f"running forward on {ranks} ranks")
    with inside.Collectives() as forward:
        output = module(mine)
    if not isinstance(output, Tensor) or output.shape != expected.shape:
        shown = f"shape {list(output.shape)}" if isinstance(output, Tensor) else _shown(output)
        inside.problem(f"`forward` returned {shown}; it must return the whole output, of shape {list(expected.shape)}.", "shape")
    if not output.requires_grad:
        inside.problem("The output does not know how it was computed: autograd has no way back.", "no graph")
    inside.report(call=f"running backward on {ranks} ranks")
    with inside.Collectives() as backward:
        (output * weight).sum().backward()
    inside.report(call="")
    gradients = {
        "the gradient of x": (mine.grad, one.grad),
        "the gradient of up.weight": (module.up.weight.grad, _grad(up.weight).chunk(ranks)[RANK]),
        "the gradient of up.bias": (module.up.bias.grad, _grad(up.bias).chunk(ranks)[RANK]),
        "the gradient of down.weight": (module.down.weight.grad, _grad(down.weight).chunk(ranks, 1)[RANK]),
        "the gradient of bias": (module.bias.grad, _grad(down.bias)),
    }
    found: dict[str, list[float] | None] = {"the output": [_gap(output, expected), _gap(output, expected + (ranks - 1) * down.bias)]}
    for name, (got, wanted) in gradients.items():
        found[name] = None if got is None else [_gap(got, wanted), _gap(got, ranks * wanted)]
    slices = [(module.up.weight, up.weight.chunk(ranks)[RANK]), (module.down.weight, down.weight.chunk(ranks, 1)[RANK])]
    return {
        "found": found,
        "slices": max(_gap(got, wanted) for got, wanted in slices),
        "before": [name for name, _ in before.calls],
        "forward": [name for name, _ in forward.calls],
        "backward": [name for name, _ in backward.calls],
        "held": sum(p.numel() for p in module.parameters()),
        "shared": shared,
        "given": [p.grad is not None for p in [*given_up.parameters(), *given_down.parameters()]].count(True),
    }


def _grad(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


def _gap(a: Tensor, b: Tensor | None) -> float:
    assert b is not None
    return (a.detach() - b.detach()).abs().max().item() if a.shape == b.shape else float("inf")


def _shapes(module: Any, ranks: int) -> None:
    wanted = {"up.weight": [HIDDEN // ranks, WIDTH], "up.bias": [HIDDEN // ranks], "down.weight": [WIDTH, HIDDEN // ranks], "bias": [WIDTH]}
    found = {name: list(p.shape) for name, p in module.named_parameters()} if isinstance(module, nn.Module) else {}
    if found != wanted:
        inside.problem(f"On {ranks} ranks the module's parameters are {found or 'none'}; they must be {wanted}.", "parts")


if __name__ == "__main__":
    {"optimizer": optimizer, "reshard": reshard, "split": split, "plan": plan}[sys.argv[1]](inside.load(sys.argv[2]))
