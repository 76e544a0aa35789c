"""Lesson 03 in one process: runs the student's functions beside a DataParallel of four places on the CPU, and tells what it saw."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_utils.checks import inside
from course_utils.checks.cases_03 import BYTES_CASES, GATHER_CASES, LOSS_CASES, SCATTER_CASES, UNEQUAL, shown

# --- a DataParallel that can be counted, one replica after the other ------------------------------------------------------


class Move(torch.autograd.Function):
    """A tensor goes from one place to another, and its gradient goes back; `log` gets (from, to, bytes)."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, log: list[tuple[int, int, int]], start: int, end: int) -> Tensor:
        ctx.log, ctx.back = log, (end, start)
        return _sent(tensor, log, start, end)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _sent(gradients[0], ctx.log, *ctx.back), None, None, None


def _sent(tensor: Tensor, log: list[tuple[int, int, int]], start: int, end: int) -> Tensor:
    if start == end:
        return tensor.view_as(tensor)
    log.append((start, end, tensor.nbytes))
    return tensor.clone()


def replicas_of(module: nn.Module, n: int, log: list[tuple[int, int, int]]) -> list[nn.Module]:
    made = []
    for k in range(n):
        weights: dict[Any, Any] = {p: Move.apply(p, log, 0, k) for p in module.parameters()}
        buffers = {b: _sent(b, log, 0, k) for b in module.buffers()}
        twins = {m: object.__new__(type(m)) for m in module.modules()}
        for m, twin in twins.items():
            twin.__dict__.update(m.__dict__)
            twin.__dict__["_parameters"] = {}
            twin.__dict__["_buffers"] = {name: None if b is None else buffers[b] for name, b in m._buffers.items()}
            twin.__dict__["_modules"] = {name: None if child is None else twins[child] for name, child in m._modules.items()}
            twin.__dict__.update({name: None if p is None else weights[p] for name, p in m._parameters.items()})
        made.append(twins[module])
    return made


def split(module: nn.Module, n: int, log: list[tuple[int, int, int]], *args: Tensor, doing: str = "") -> Tensor:
    """The module on n places: scattered, replicated, applied, gathered. Scalars are gathered as a vector."""
    inputs = list(zip(*([Move.apply(c, log, 0, k) for k, c in enumerate(a.chunk(n))] for a in args), strict=True))
    outputs = [replica(*part) for replica, part in zip(replicas_of(module, len(inputs), log), inputs, strict=True)]
    moved: list[Any] = [Move.apply(y, log, k, 0) for k, y in enumerate(outputs)]
    return torch.cat(moved) if moved[0].ndim else torch.stack(moved)


# --- 03.1: scatter and gather ----------------------------------------------------------------------------------------------


class Options:
    """Something that is not a tensor; replicas are handed this very object."""


OPTIONS = Options()


def sample(shape: Any) -> Any:
    """The value that a case describes: a number of rows is a tensor, a string is an object, containers hold such things."""
    if isinstance(shape, int):
        return torch.arange(shape * 3, dtype=torch.float64).reshape(shape, 3)
    if isinstance(shape, str):
        return OPTIONS if shape == "object" else shape
    if isinstance(shape, dict):
        return {name: sample(part) for name, part in shape.items()}
    return type(shape)(sample(part) for part in shape) if isinstance(shape, (list, tuple)) else shape


def words(value: Any) -> Any:
    """A value as JSON: types, shapes, the numbers of tensors, and whether the object is the very same."""
    if isinstance(value, Tensor):
        return ["tensor", list(value.shape), value.detach().flatten().tolist()]
    if isinstance(value, dict):
        return ["dict", {str(name): words(part) for name, part in value.items()}]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [words(part) for part in value]]
    if isinstance(value, Options):
        return ["object", "the same" if value is OPTIONS else "another"]
    return [type(value).__name__, str(value)]


def pieces(answer: ModuleType) -> None:
    scatter = inside.function(answer, "scatter", "value", "n")
    gather = inside.function(answer, "gather", "outputs")
    told: dict[str, Any] = {"scattered": [], "gathered": []}
    for shape, n in SCATTER_CASES:
        parts = scatter(sample(shape), n, doing=f"scattering {shown(shape)} over {n} devices")
        if not isinstance(parts, (list, tuple)):
            inside.problem(f"`scatter` returned a {type(parts).__name__}; it must return a list with one value for each device.", "type")
        told["scattered"].append([words(part) for part in parts])
    for shape, n in UNEQUAL:
        try:
            told.setdefault("unequal", []).append(len(scatter(sample(shape), n, doing=f"scattering {shown(shape)}, whose rows differ")))
        except ValueError:
            told["unequal"].append("ValueError")
    for parts in GATHER_CASES:
        values = [torch.tensor(float(p[1])) if isinstance(p, tuple) and p[:1] == ("scalar",) else sample(p) for p in parts]
        told["gathered"].append(words(gather(values, doing=f"gathering {shown(parts)}")))
    x = torch.ones(5, 3, requires_grad=True)
    joined = gather([2 * part for part in scatter(x, 4, doing="scattering a tensor that needs a gradient")], doing="gathering outputs that have a gradient")
    told["gradient"] = bool(isinstance(joined, Tensor) and joined.requires_grad)
    if told["gradient"]:
        joined.sum().backward()
        told["gradient"] = x.grad is not None and bool((x.grad == 2).all())
    inside.tell(**told)


# --- 03.2: the bytes of the first device -----------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))


def model_of(kind: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """A model of a case, and what makes its input from a number of rows."""
    if kind == "tied":
        return Tied(), lambda rows: torch.arange(rows * 6).reshape(rows, 6) % 11
    model: nn.Module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    if kind == "frozen":
        for p in model[0].parameters():
            p.requires_grad = False
    if kind == "buffers":
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    if kind == "double":
        model = model.double()
    return model, lambda rows: torch.linspace(-1, 1, rows * 6, dtype=torch.float64 if kind == "double" else torch.float32).reshape(rows, 6)


def first_bytes(answer: ModuleType) -> None:
    function = inside.function(answer, "first_device_bytes", "model", "x", "output", "n")
    told = []
    for kind, rows, n in BYTES_CASES:
        model, make = model_of(kind)
        x = make(rows)
        log: list[tuple[int, int, int]] = []
        if n > 1:
            split(model, n, log, x).sum().backward()
        output = model(x).detach()
        got = function(model, x, output, n, doing=f"counting for {rows} samples on {n} device{'s' * (n > 1)}")
        try:
            sent, received = (int(v) for v in got)
        except (TypeError, ValueError):
            inside.problem(f"`first_device_bytes` returned {got!r:.60}; it must return two numbers, (sent, received).", "type")
        truth = [sum(b for i, _, b in log if i == 0), sum(b for _, j, b in log if j == 0)]
        told.append({"got": [sent, received], "truth": truth, "outputs": output.nbytes, "inputs": x.nbytes, "elements": x.element_size()})
    inside.tell(cases=told)


# --- 03.3: checkpoints ------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Names that a careless replacement would hit: a child called `submodule`, and buffers."""

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
    state_of = inside.function(answer, "bare_state", "model")
    load = inside.function(answer, "load_state", "model", "state")
    told: dict[str, Any] = {"loaded": {}, "saved": {}, "lenient": []}
    kinds: dict[str, Callable[[nn.Module], nn.Module]] = {"plain": lambda m: m, "wrapped": lambda m: nn.DataParallel(m)}
    for build in (Net, Owner):
        for name, wrap in kinds.items():
            told["saved"][f"{build.__name__} {name}"] = list(state_of(wrap(build()), doing=f"`bare_state` of a {name} model")) == list(build().state_dict())
        for source, wrap_source in kinds.items():
            for target, wrap_target in kinds.items():
                trained, fresh = build(), build()
                for p in trained.parameters():
                    nn.init.normal_(p)
                for b in trained.buffers():
                    b.fill_(7)
                state = wrap_source(trained).state_dict()
                names = list(state)
                refused = ""
                try:
                    load(wrap_target(fresh), state, doing=f"`load_state` of a {source} model's state into a {target} model")
                except RuntimeError as error:
                    if build is Net:  # the ordinary case: shown as the exception that it is
                        raise
                    refused = " ".join(str(error).split())[:80]
                wrong = [k for k, v in trained.state_dict().items() if not torch.equal(v, fresh.state_dict()[k])] + [refused] * bool(refused)
                told["loaded"][f"{build.__name__}: {source} into {target}"] = wrong
                if list(state) != names:
                    told["changed"] = True
    for what in ("one name less", "one name more", "another model"):
        state = dict((nn.Linear(2, 2) if what == "another model" else Net()).state_dict())
        if what == "one name less":
            state.pop("norm.bias")
        if what == "one name more":
            state["extra"] = torch.zeros(1)
        try:
            load(Net(), state, doing=f"`load_state` of a state with {what}")
            told["lenient"].append(what)
        except (RuntimeError, KeyError, ValueError):
            pass
    inside.tell(**told)


# --- 03.4: the loss of uneven replicas ---------------------------------------------------------------------------------------


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result = self.loss(self.model(x), y, doing=f"`replica_loss` on a chunk of {len(y)} samples")
        if not isinstance(result, Tensor):
            inside.problem(f"`replica_loss` returned a {type(result).__name__}; a replica hands back a tensor.", "type")
        return result


def uneven_loss(answer: ModuleType) -> None:
    replica_loss = inside.function(answer, "replica_loss", "logits", "y")
    total_loss = inside.function(answer, "total_loss", "gathered")
    told = []
    for rows, n, ignored in LOSS_CASES:
        random = torch.Generator().manual_seed(rows)
        model = nn.Linear(6, 4).double()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=random))
        x = torch.randn(rows, 6, generator=random, dtype=torch.float64)
        y = torch.randint(4, (rows,), generator=random)
        y[torch.tensor(ignored, dtype=torch.int64)] = -100
        right = cross_entropy(model(x), y)
        right.backward()
        wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
        log: list[tuple[int, int, int]] = []
        gathered = split(WithLoss(model, replica_loss), n, log, x, y)
        loss = total_loss(gathered, doing=f"`total_loss` of what {n} replicas returned")
        if not isinstance(loss, Tensor) or loss.ndim:
            inside.problem(f"`total_loss` returned {'a tensor of shape ' + str(list(loss.shape)) if isinstance(loss, Tensor) else type(loss).__name__}; "
                           "it must return a tensor with one number and no dimensions.", "type")  # fmt: skip
        seen: dict[str, Any] = {"loss": loss.item(), "right": right.item(), "numbers": gathered.numel() / len(x.chunk(n)), "gradient": loss.requires_grad}
        if loss.requires_grad:
            loss.backward()
            got = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
            seen |= {"factor": ((got @ wanted) / (wanted @ wanted)).item(), "gap": ((got - wanted).norm() / wanted.norm()).item()}
        told.append(seen)
    inside.tell(cases=told)


if __name__ == "__main__":
    {"pieces": pieces, "bytes": first_bytes, "checkpoint": checkpoint, "loss": uneven_loss}[sys.argv[1]](inside.load(sys.argv[2]))
