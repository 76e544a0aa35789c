"""Lesson 08, exercises 3 and 5: what a training loop does to its model, seen from outside."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .cases import ROWS

Batch = tuple[Tensor, Tensor]
NO_NUMBER = 1e30  # stands for infinite and NaN


class Scaler(torch.amp.GradScaler):
    """torch's own, which also counts the losses that it's given."""

    scaled = 0

    def scale(self, outputs: Any) -> Any:
        self.scaled += 1
        return super().scale(outputs)


@dataclass
class Moment:
    """The state of a training just before a forward, or at its end; then what that forward gave."""

    weights: Tensor
    types: set[str]  # of the weights
    state: dict[str, Any]  # `schedule`, `scale`, `optimizer`, as far as there are such things
    layers: set[str] = field(default_factory=set)  # types that linear layers gave
    logits: Tensor | None = None


@dataclass
class Seen:
    """`moments` has one for each forward, and one more at the end. Steps are (forwards so far, gradient)."""

    twin: nn.Module
    moments: list[Moment] = field(default_factory=list)
    steps: list[tuple[int, Tensor]] = field(default_factory=list)


def new_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def batches(seed: int, n: int, size: float = 1.0, broken: tuple[int, ...] = ()) -> list[Batch]:
    """`n` micro-batches with inputs of about `size`; those in `broken` have an infinite number in x, or
    a NaN: only a NaN shows in the loss, since tanh makes 1 of what's infinite."""
    random = torch.Generator().manual_seed(seed)
    drawn = []
    for i in range(n):
        x, y = size * torch.randn(ROWS, 8, generator=random), torch.randint(4, (ROWS,), generator=random)
        if i in broken:
            x[2, 3] = float("nan" if i % 2 else "inf")
        drawn.append((x, y))
    return drawn


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])


def name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@contextmanager
def watched(model: nn.Module, state: Callable[[], dict[str, Any]] = dict) -> Iterator[Seen]:
    """Notes each forward of `model` and each step of an optimizer. Asks for `state` at each forward, and at the end."""
    seen = Seen(copy.deepcopy(model))
    own = list(model.parameters())  # also while `functional_call` puts others in their place

    def moment() -> Moment:
        return Moment(torch.cat([p.detach().float().flatten() for p in own]), {name(p) for p in own}, state())

    def gave(_: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.moments[-1].layers.add(name(output))

    def ended(_: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.moments[-1].logits = output.detach().float().clone()

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
        seen.steps.append((len(seen.moments), torch.cat([g.detach().float().flatten() for g in gradients])))

    handles: list[Any] = [
        model.register_forward_pre_hook(lambda *_: seen.moments.append(moment())),
        *(layer.register_forward_hook(gave) for layer in model.modules() if isinstance(layer, nn.Linear)),
        model.register_forward_hook(ended),
        register_optimizer_step_pre_hook(stepped),
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
    seen.moments.append(moment())


def state_of(schedule: Any, scaler: Any, optimizer: torch.optim.Optimizer) -> Callable[[], dict[str, Any]]:
    """What a step changes besides the weights."""

    def state() -> dict[str, Any]:
        held = [v for values in optimizer.state.values() for v in values.values() if isinstance(v, Tensor)]
        return {
            "scheduled": schedule is not None,
            "schedule": schedule.last_epoch if schedule else 0,
            "scale": scaler.get_scale() if scaler else 1.0,
            "optimizer": torch.cat([torch.zeros(1), *(v.detach().float().flatten() for v in held)]),
        }

    return state


def told(seen: Seen, given: list[Batch], window: int, max_norm: float) -> list[dict[str, Any]]:
    """For each window of micro-batches what happened in it, beside a twin in float32 that begins it with the same
    weights. A loop that ran the model more or less often is told up to where both have something."""
    found = []
    ran = len(seen.moments) - 1
    before = torch.zeros(())
    for first in range(0, min(ran, len(given)), window):
        part = given[first : first + window]
        last = min(first + len(part), ran)
        moments, now, then = seen.moments[first:last], seen.moments[first], seen.moments[last]
        steps = [gradient for forwards, gradient in seen.steps if first < forwards <= last]
        mean, ends = _gradient(seen.twin, now.weights, part)
        wanted = {how: _clipped(g, max_norm) for how, g in _variants(mean, ends, window, before).items()}
        wanted["unclipped"] = mean
        found.append(
            {
                "forwards": ran,
                "layers": sorted(set().union(*(m.layers for m in moments))),
                "weights": sorted(set().union(*(m.types for m in moments)) | then.types),
                "fresh": _logits_off(seen.twin, moments, part, now.weights),
                "first": _logits_off(seen.twin, moments, part, seen.moments[0].weights),
                "broken": not bool(mean.isfinite().all()),
                "norm": _number(mean.norm()),
                "steps": len(steps),
                "finite": all(bool(g.isfinite().all()) for g in steps),
                "off": {how: _off(steps[-1], g) if steps else 0.0 for how, g in wanted.items()},
                "ratio": _number(steps[-1].norm() / wanted[""].norm()) if steps else 0.0,
                "moved": not torch.equal(now.weights, then.weights),
                "held": _same(now.state.get("optimizer"), then.state.get("optimizer")),
                "scheduled": now.state.get("scheduled", False),
                "schedule": [m.state.get("schedule", 0) for m in (now, then)],
                "scale": [m.state.get("scale", 1.0) for m in (now, then)],
            }
        )
        before = steps[-1] if steps else before
    return found


def losses_of(seen: Seen, given: list[Batch]) -> list[float]:
    """The loss of each micro-batch, in float32, from the logits that the model gave."""
    pairs = zip(seen.moments, given, strict=False)
    return [_number(cross_entropy(m.logits, y)) for m, (_, y) in pairs if m.logits is not None]


def _gradient(twin: nn.Module, weights: Tensor, part: list[Batch]) -> tuple[Tensor, list[Tensor]]:
    """The mean gradient over micro-batches, and that of each of them."""
    nn.utils.vector_to_parameters(weights.clone(), twin.parameters())
    each = []
    for x, y in part:
        gradients = torch.autograd.grad(cross_entropy(twin(x), y), list(twin.parameters()))
        each.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(each).mean(0), each


def _variants(mean: Tensor, each: list[Tensor], window: int, before: Tensor) -> dict[str, Tensor]:
    """The gradient of a step as it should be, and as known mistakes make it."""
    n = len(each)
    return {
        "": mean,
        "sum": mean * n,
        "last window": mean * n / window,
        "last micro-batch": each[-1] / n,
        "old gradients": mean + before,
    }


def _clipped(gradient: Tensor, max_norm: float) -> Tensor:
    return gradient * (max_norm / (gradient.norm() + 1e-6)).clamp(max=1.0) if max_norm else gradient


def _logits_off(twin: nn.Module, moments: list[Moment], part: list[Batch], weights: Tensor) -> float:
    """How far the logits are from those that these weights give in float32, relative to their size."""
    nn.utils.vector_to_parameters(weights.clone(), twin.parameters())
    with torch.no_grad():
        gaps = [
            _off(m.logits, twin(x))
            for m, (x, _) in zip(moments, part, strict=False)
            if m.logits is not None and bool(x.isfinite().all())
        ]
    return max(gaps, default=0.0)


def _off(got: Tensor, wanted: Tensor) -> float:
    return _number((got - wanted).norm() / wanted.norm()) if got.shape == wanted.shape else NO_NUMBER


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is None or b is None or a.shape == b.shape and torch.equal(a, b)


def _number(value: Tensor) -> float:
    return float(value) if bool(value.isfinite().all()) else NO_NUMBER
