"""Lesson 03 in one process: runs the student's functions, exercises 1 to 3, and tells what it saw."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .. import rank_side
from . import cases
from .cases import shown

# --- 03.1: scatter and gather -----------------------------------------------------------------------------------------


class Options:
    """Something that isn't a tensor. Every replica must get this very object."""


OPTIONS = Options()


def sample(shape: Any, dtypes: Iterator[str] | None = None) -> Any:
    """The value that a case describes (see `cases.SCATTER_CASES`). The tensors in it take the dtypes in turn."""
    dtypes = dtypes or itertools.cycle(cases.DTYPES)
    if isinstance(shape, int):
        return torch.arange(shape * 3).to(getattr(torch, next(dtypes))).reshape(shape, 3)
    if isinstance(shape, str):
        return OPTIONS if shape == "object" else shape
    if isinstance(shape, dict):
        return {name: sample(part, dtypes) for name, part in shape.items()}
    if shape[:1] == ("scalar",):
        return torch.tensor(float(shape[1]))
    return type(shape)([sample(part, dtypes) for part in shape])


def words(value: Any) -> Any:
    """A value as JSON: types, shapes, the numbers of tensors, and whether an object is the very same."""
    if isinstance(value, Tensor):
        numbers = value.detach().flatten().double().tolist()
        return ["tensor", list(value.shape), numbers, str(value.dtype).removeprefix("torch.")]
    if isinstance(value, dict):
        return ["dict", {str(name): words(part) for name, part in value.items()}]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [words(part) for part in value]]
    if isinstance(value, Options):
        return ["object", "the same" if value is OPTIONS else "another"]
    return [type(value).__name__, str(value)]


def pieces(answer: ModuleType) -> None:
    scatter = rank_side.function(answer, "scatter", "value", "n")
    gather = rank_side.function(answer, "gather", "outputs")
    told: dict[str, Any] = {"scattered": [], "gathered": []}
    scattered, unequal, gathered = cases.pieces(rank_side.draw_seed())
    for shape, n in scattered:
        parts = scatter(sample(shape), n, doing=f"scattering {shown(shape)} over {n} devices")
        if not isinstance(parts, (list, tuple)):
            rank_side.problem(
                f"`scatter` returned a {type(parts).__name__}; it must return a list with one value for each device.",
                "type",
            )
        told["scattered"].append([words(part) for part in parts])
    for shape, n in unequal:
        try:
            told.setdefault("unequal", []).append(
                len(scatter(sample(shape), n, doing=f"scattering {shown(shape)}, whose rows differ"))
            )
        except ValueError:
            told["unequal"].append("ValueError")
    for parts in gathered:
        told["gathered"].append(words(gather([sample(p) for p in parts], doing=f"gathering {shown(parts)}")))
    x = torch.ones(5, 3, requires_grad=True)
    joined = gather(
        [2 * part for part in scatter(x, 4, doing="scattering a tensor that needs a gradient")],
        doing="gathering outputs that have a gradient",
    )
    told["gradient"] = bool(isinstance(joined, Tensor) and joined.requires_grad)
    if told["gradient"]:
        joined.sum().backward()
        told["gradient"] = x.grad is not None and bool((x.grad == 2).all()) and _nested_gradient(scatter, gather)
    rank_side.tell(**told)


def _nested_gradient(scatter: Callable[..., Any], gather: Callable[..., Any]) -> bool:
    """Whether the gradient comes back to a tensor inside containers, from rows and from numbers."""
    x, doing = torch.ones(5, 3, requires_grad=True), "scattering a dict whose tensor needs a gradient"
    parts = scatter({"ids": torch.arange(5), "x": [x]}, 4, doing=doing)
    outputs = [(2 * part["x"][0], part["x"][0].sum()) for part in parts]
    rows, numbers = gather(outputs, doing="gathering outputs that have a gradient, in tuples")
    if not rows.requires_grad or not numbers.requires_grad:
        return False
    (rows.sum() + numbers.sum()).backward()
    return x.grad is not None and bool((x.grad == 3).all())


# --- 03.2: the bytes of the first device ------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))


def model_of(kind: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """The model of a case, and a function that makes its input, with a number of rows."""
    if kind == "tokens":
        words = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 3))
        return words, lambda rows: torch.arange(rows * 6).reshape(rows, 6) % 11
    if kind == "tied":
        return Tied(), lambda rows: torch.arange(rows * 6).reshape(rows, 6) % 11
    model: nn.Module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    if kind == "frozen":
        for p in model[0].parameters():
            p.requires_grad = False
    if kind == "frozen bias":
        model[2].bias.requires_grad = False
    if kind == "own buffer":
        model.register_buffer("scale", torch.ones(7), persistent=False)
    if kind == "buffers":
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    if kind == "double":
        model = model.double()
    return model, lambda rows: torch.linspace(
        -1, 1, rows * 6, dtype=torch.float64 if kind == "double" else torch.float32
    ).reshape(rows, 6)


def _as_it_is(model: nn.Module) -> Any:
    """What a function must not change when it only looks at a model."""
    tensors = {name: (p, p.requires_grad, p.grad) for name, p in model.named_parameters()}
    return rank_side.snapshot([tensors, dict(model.named_buffers()), model.training])


def first_bytes(answer: ModuleType, given: list[tuple[str, int, int]]) -> None:
    function = rank_side.function(answer, "first_device_bytes", "model", "x", "output", "n")
    told = []
    for kind, rows, n in given:
        model, make = model_of(kind)
        x = make(rows)
        output, before = model(x).detach(), _as_it_is(model)
        doing = f"counting for {rows} samples on {n} device{'s' * (n > 1)}"
        got = function(model, x, output, n, doing=doing)
        if not rank_side.same(before, _as_it_is(model)):
            rank_side.problem(
                f"`first_device_bytes` changed the model, while {doing}. It belongs to the caller.", "argument changed"
            )
        try:
            sent, received = (int(v) if v == int(v) else float(v) for v in got)
        except (TypeError, ValueError):
            rank_side.problem(
                f"`first_device_bytes` returned {got!r:.60}; it must return two numbers, (sent, received).", "type"
            )
        told.append([sent, received])
    rank_side.tell(counted=told)


# --- 03.3: checkpoints ------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Has names that a careless replacement would hit: a part called `submodule`, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.submodule = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)


class Owner(nn.Module):
    """A plain model that happens to call a part of itself `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 2)


def checkpoint(answer: ModuleType) -> None:
    state_of = rank_side.function(answer, "bare_state", "model")
    load = rank_side.function(answer, "load_state", "model", "state")
    told: dict[str, Any] = {"loaded": {}, "saved": {}, "values": [], "replaced": [], "lenient": []}
    kinds: dict[str, Callable[[nn.Module], nn.Module]] = {"plain": lambda m: m, "wrapped": lambda m: nn.DataParallel(m)}
    for build in (Net, Owner):
        for name, wrap in kinds.items():
            made = build()
            saved = state_of(wrap(made), doing=f"`bare_state` of a {name} model")
            if not isinstance(saved, dict):
                rank_side.problem(
                    f"`bare_state` returned a {type(saved).__name__}; it must return a dict of tensors.", "type"
                )
            told["saved"][f"{build.__name__} {name}"] = set(saved) == set(made.state_dict())
            told["values"] += [
                f"{build.__name__} {name}"
                for k, v in made.state_dict().items()
                if k in saved and not (isinstance(saved[k], Tensor) and rank_side.same(v, saved[k]))
            ]
        for source, wrap_source in kinds.items():
            for target, wrap_target in kinds.items():
                trained, fresh = build(), build()
                for p in trained.parameters():
                    nn.init.normal_(p)
                for b in trained.buffers():
                    b.fill_(7)
                state = wrap_source(trained).state_dict()
                names, kept = list(state), rank_side.snapshot(dict(state))
                held = {name: id(t) for name, t in [*fresh.named_parameters(), *fresh.named_buffers()]}
                refused = ""
                try:
                    load(
                        wrap_target(fresh),
                        state,
                        doing=f"`load_state` of a {source} model's state into a {target} model",
                    )
                except RuntimeError as error:
                    if build is Net:  # the ordinary case: shown as the exception that it is
                        raise
                    refused = " ".join(str(error).split())[:80]
                wrong = [k for k, v in trained.state_dict().items() if not torch.equal(v, fresh.state_dict()[k])] + [
                    refused
                ] * bool(refused)
                told["loaded"][f"{build.__name__}: {source} into {target}"] = wrong
                if list(state) != names or not rank_side.same(kept, dict(state)):
                    told["changed"] = True
                now = {name: id(t) for name, t in [*fresh.named_parameters(), *fresh.named_buffers()]}
                told["replaced"] += [name for name in held if now[name] != held[name]]
                if not wrong:  # once more: the numbers of the first load must be replaced
                    for value in state.values():
                        value.add_(1)
                    load(
                        wrap_target(fresh), state, doing=f"`load_state` of a {source} model's state for the second time"
                    )
                    told["loaded"][f"{build.__name__}: {source} into {target}, for the second time"] = [
                        k for k, v in trained.state_dict().items() if not torch.equal(v, fresh.state_dict()[k])
                    ]
    for what in (
        "one name less",
        "one name more",
        "another name for a bias",
        "another model",
        "a bias of another shape",
    ):
        state = dict((nn.Linear(2, 2) if what == "another model" else Net()).state_dict())
        if what == "one name less":
            state.pop("norm.bias")
        if what == "one name more":
            state["extra"] = torch.zeros(1)
        if "another name" in what:
            state = {name.replace("norm.bias", "norm.offset"): value for name, value in state.items()}
        if "shape" in what:
            state["norm.bias"] = torch.zeros(1)
        try:
            load(Net(), state, doing=f"`load_state` of a state with {what}")
            told["lenient"].append(what)
        except (RuntimeError, KeyError, ValueError):
            pass
    rank_side.tell(**told)
