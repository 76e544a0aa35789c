"""Lesson 10 on the ranks: each task runs the student's functions and reports what it saw."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .. import rank_side
from .cases import DECAY, LEARNING_RATE, STEPS


def _class(answer: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(answer, name, None)
    if not isinstance(found, type):
        rank_side.problem(f"The cell defines no class `{name}`. Keep the name you were given.", "missing")
    parameters = {"ShardedOptimizer": ("params", "make"), "SplitMLP": ("up", "down")}[name]
    return rank_side.function(answer, name, *parameters, changes=("the random state",))  # which a new layer moves


# --- 10.1 -------------------------------------------------------------------------------------------------------------


def optimizer(answer: ModuleType, given: list[dict[str, Any]]) -> None:
    make = _class(answer, "ShardedOptimizer")
    cases: list[list[dict[str, Any]] | None] = []
    for case in given:
        with rank_side.world(case["ranks"]) as member:
            cases.append(_optimizer_case(make, case["ranks"], case["models"]) if member else None)
    rank_side.tell(cases=cases)


def ordinary(kind: str, tensors: list[Tensor]) -> torch.optim.Optimizer:
    if kind == "SGD":
        return torch.optim.SGD(tensors, lr=LEARNING_RATE, momentum=0.9, weight_decay=DECAY)
    return torch.optim.AdamW(tensors, lr=LEARNING_RATE, weight_decay=DECAY)


def start_of(model: dict[str, Any]) -> list[Tensor]:
    """The parameters at the beginning: the same in all processes."""
    generator = torch.Generator().manual_seed(model["seed"])
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in model["shapes"]]


def gradients_of(seed: int, elements: int) -> Tensor:
    """The gradients [steps, elements] of the rank whose seed this is."""
    return torch.randn(STEPS, elements, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _optimizer_case(make: Callable[..., Any], ranks: int, models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What becomes of each model. The models take turns, each with an optimizer of its own."""
    found: list[dict[str, Any]] = []
    running = []
    for model in models:
        start, seed = start_of(model), rank_side.secret_seed()
        gradients = gradients_of(seed, sum(t.numel() for t in start))
        made: list[tuple[list[Tensor], torch.optim.Optimizer]] = []

        def noted(tensors: list[Tensor], made: list[Any] = made, kind: str = model["kind"]) -> torch.optim.Optimizer:
            if not isinstance(tensors, (list, tuple)) or not all(isinstance(t, Tensor) for t in tensors):
                rank_side.problem(
                    f"`make` was called with {rank_side.shown(tensors)}; it takes a list of tensors.", "type"
                )
            made.append((list(tensors), ordinary(kind, list(tensors))))
            return made[-1][1]

        params = [t.clone().requires_grad_() for t in start]
        with rank_side.Collectives() as before:
            student = make(params, noted, doing=f"making the optimizer on {ranks} ranks")
        found.append({"seed": seed, "before": [name for name, _ in before.calls], "steps": [], "calls": []})
        running.append((params, gradients, student, made))
    for step in range(STEPS):
        for seen, (params, gradients, student, _) in zip(found, running, strict=True):
            shapes = [p.shape for p in params]
            pieces = gradients[step].split([p.numel() for p in params])
            for p, g in zip(params, pieces, strict=True):
                p.grad = g.view_as(p).clone()
            rank_side.report(call=f"taking step {step + 1} on {ranks} ranks")
            with rank_side.Collectives() as counted:
                student.step()
            rank_side.report(call="")
            seen["calls"].append(counted.calls)
            if any(
                p.grad is None or not torch.equal(p.grad, g.view_as(p)) for p, g in zip(params, pieces, strict=True)
            ):
                rank_side.problem(
                    f"`step` changed the .grad of the parameters, on {ranks} ranks. They belong to the caller.",
                    "gradients changed",
                )
            for i, (p, shape) in enumerate(zip(params, shapes, strict=True)):
                if p.dtype != torch.float64 or p.shape != shape or not p.is_leaf or not p.requires_grad:
                    rank_side.problem(
                        f"After a step parameter {i} is {_kind(p)}; it must be what it was, float64 of shape"
                        f" {list(shape)}, a leaf.",
                        "kind of parameter",
                    )
            seen["steps"].append(torch.cat([p.detach().double().flatten() for p in params]).tolist())
    for seen, (_, _, _, made) in zip(found, running, strict=True):
        averages = [t for _, one in made for s in one.state.values() for t in s.values() if isinstance(t, Tensor)]
        seen["state"] = sum(t.numel() for t in averages if t.dim())
        seen["largest"] = max((t.numel() for tensors, _ in made for t in tensors), default=0)
    return found


def _kind(p: Tensor) -> str:
    role = "a leaf" if p.is_leaf and p.requires_grad else "not a leaf that requires a gradient"
    return f"{str(p.dtype).removeprefix('torch.')} of shape {list(p.shape)}, {role}"


# --- 10.2: no ranks needed --------------------------------------------------------------------------------------------


def reshard(answer: ModuleType, given: list[tuple[int, int, int]]) -> None:
    function = rank_side.function(answer, "reads", "rows", "saved_on", "loaded_on", "rank")
    plans: list[list[Any]] = []
    for rows, saved_on, loaded_on in given:
        plans.append([])
        for rank in range(loaded_on):
            value = function(
                rows,
                saved_on,
                loaded_on,
                rank,
                doing=f"asking what rank {rank} of {loaded_on} reads of {rows} rows saved on {saved_on} ranks",
            )
            pieces = (
                [tuple(piece) for piece in value]
                if isinstance(value, (list, tuple)) and all(isinstance(p, (list, tuple)) for p in value)
                else None
            )
            if pieces is None or any(
                len(p) != 3 or not all(isinstance(i, int) and not isinstance(i, bool) for i in p) for p in pieces
            ):
                rank_side.problem(
                    f"`reads` returned {rank_side.shown(value)}; it must return a list of (file, first, last), three"
                    " int each.",
                    "type",
                )
            plans[-1].append(pieces)
    rank_side.tell(plans=plans)


# --- 10.5: no ranks needed --------------------------------------------------------------------------------------------


def film(answer: ModuleType, given: list[tuple[int, bool]]) -> None:
    """The films that an answer makes, as they are."""
    function = rank_side.function(answer, "film", "blocks", "reshard")
    films = []
    for blocks, reshard in given:
        doing = f"making the film of {blocks} block{'s' * (blocks > 1)} with reshard={reshard}"
        frames = function(blocks, reshard, doing=doing)
        rank_side.must_return(isinstance(frames, (list, tuple)), "film", frames, "a list of frames, a str each")
        for frame in frames:
            if not isinstance(frame, str):
                rank_side.problem(
                    f"`film` returned a list with {rank_side.shown(frame)} in it; a frame is a str such as 'gather 0'.",
                    "type",
                )
        films.append(list(frames))
    rank_side.tell(films=films)


# --- 10.3 -------------------------------------------------------------------------------------------------------------


def split(answer: ModuleType, given: list[dict[str, Any]]) -> None:
    make = _class(answer, "SplitMLP")
    cases: list[dict[str, Any] | None] = []
    for case in given:
        with rank_side.world(case["ranks"]) as member:
            cases.append(_split_case(make, case) if member else None)
    rank_side.tell(cases=cases)


def mlp(case: dict[str, Any]) -> tuple[nn.Linear, nn.Linear, Tensor, Tensor]:
    """The MLP, three inputs [3, rows, width], and what their outputs are weighted with: the same in all processes."""
    state = torch.get_rng_state()
    torch.manual_seed(case["seed"])
    dtype = getattr(torch, case["dtype"])
    up, down = (
        nn.Linear(a, b).to(dtype) for a, b in ((case["width"], case["hidden"]), (case["hidden"], case["width"]))
    )
    x, weight = torch.randn(2, 3, case["rows"], case["width"], dtype=dtype)
    torch.set_rng_state(state)
    return up, down, x, weight


def train(parameters: list[Tensor], seed: int) -> None:
    """The parameters of a rank after a training that nobody else knows of: `up.weight`, `up.bias`, `down.weight`."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in parameters:
            p.copy_(torch.randn(p.shape, dtype=p.dtype, generator=generator))


def _tensors() -> list[Tensor]:
    gc.collect()
    return [one for one in gc.get_objects() if issubclass(type(one), Tensor)]


def _kept_bytes(make: Callable[..., Any], case: dict[str, Any]) -> int:
    """Bytes of the tensors that live as long as a module does that was made from an MLP which nobody else holds."""
    before = {id(one): one for one in _tensors()}
    up, down, *_ = mlp(case)
    module = make(up, down, doing=f"splitting an MLP over {case['ranks']} ranks")
    del up, down, _
    storages = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in _tensors() if id(one) not in before
    }
    del module
    return sum(storages.values())


def _split_case(make: Callable[..., Any], case: dict[str, Any]) -> dict[str, Any]:
    ranks, seed = case["ranks"], rank_side.secret_seed()
    kept_bytes = _kept_bytes(make, case)
    given_up, given_down, x, weight = mlp(case)
    with rank_side.Collectives() as before:
        module = make(given_up, given_down, doing=f"splitting an MLP over {ranks} ranks")
    _shapes(module, case)
    theirs = {p.untyped_storage().data_ptr() for p in [*given_up.parameters(), *given_down.parameters()]}
    shared = [name for name, p in module.named_parameters() if p.untyped_storage().data_ptr() in theirs]
    mine = [v.clone().requires_grad_() for v in x]
    rank_side.report(call=f"running forward on {ranks} ranks")
    outputs: list[Tensor] = []
    found: list[dict[str, Any]] = []
    forward: list[list[str]] = []
    backward: list[list[str]] = []

    def run_forward(i: int) -> None:
        with rank_side.Collectives() as counted:
            outputs.append(module(mine[i]))
        forward.append([name for name, _ in counted.calls])
        _output(outputs[i], mine[i])

    def run_backward(i: int) -> None:
        output = outputs[i]
        module.zero_grad()
        with rank_side.Collectives() as counted:
            (output * weight[i]).sum().backward()
        backward.append([name for name, _ in counted.calls])
        gradients = {"the gradient of x": mine[i].grad} | {
            f"the gradient of {name}": p.grad for name, p in module.named_parameters()
        }
        found.append({"the output": output.tolist()} | {name: listed(g) for name, g in gradients.items()})

    run_forward(0)
    run_forward(1)  # before the first backward, as in a pipeline
    rank_side.report(call=f"running backward on {ranks} ranks")
    run_backward(0)
    run_backward(1)
    slices = {name: p.tolist() for name, p in module.named_parameters()}
    train([module.up.weight, module.up.bias, module.down.weight], seed)
    rank_side.report(call=f"running forward with other weights on {ranks} ranks")
    run_forward(2)
    rank_side.report(call=f"running backward with other weights on {ranks} ranks")
    run_backward(2)
    rank_side.report(call="")
    return {
        "seed": seed,
        "kept_bytes": kept_bytes,
        "found": found,
        "slices": slices,
        "before": [name for name, _ in before.calls],
        "forward": forward,
        "backward": backward,
        "shared": shared,
        "given": [p.grad is not None for p in [*given_up.parameters(), *given_down.parameters()]].count(True),
    }


def listed(gradient: Tensor | None) -> Any:
    return None if gradient is None else gradient.tolist()


def _output(output: Any, x: Tensor) -> None:
    if not isinstance(output, Tensor) or output.shape != x.shape:
        shown = f"shape {list(output.shape)}" if isinstance(output, Tensor) else rank_side.shown(output)
        rank_side.problem(
            f"`forward` returned {shown}; it must return the whole output, of shape {list(x.shape)}.", "shape"
        )
    if output.dtype != x.dtype:
        rank_side.problem(
            f"`forward` returned {output.dtype} for an MLP and an x of {x.dtype}; it must return {x.dtype}.", "dtype"
        )
    if not output.requires_grad:
        rank_side.problem("The output does not know how it was computed: autograd has no way back.", "no graph")


def _shapes(module: Any, case: dict[str, Any]) -> None:
    part, width = case["hidden"] // case["ranks"], case["width"]
    wanted = {"up.weight": [part, width], "up.bias": [part], "down.weight": [width, part], "bias": [width]}
    parameters = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
    found = {name: list(p.shape) for name, p in parameters.items()}
    if found != wanted:
        rank_side.problem(
            f"On {case['ranks']} ranks the module's parameters are {found or 'none'}; they must be {wanted}.", "parts"
        )
    for name, p in parameters.items():
        if str(p.dtype) != f"torch.{case['dtype']}":
            rank_side.problem(f"`{name}` is {p.dtype}, and the MLP that was given is {case['dtype']}.", "dtype")
