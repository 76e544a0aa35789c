"""Lesson 08 on the rank: each task runs the student's functions and reports what it saw."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .. import rank_side
from .cases import DTYPES_TRIED, QUESTIONS, SCALER_DEFAULTS


def formats(answer: ModuleType, given: list[tuple[float, str]]) -> None:
    """What the student's numbers are, and from which weight on steps do nothing."""
    numbers = rank_side.function(answer, "numbers")
    frozen = rank_side.function(answer, "frozen_from", "step", "dtype")
    found = numbers(doing="asking for the numbers")
    if not isinstance(found, dict) or set(found) != set(QUESTIONS):
        got = f"a dict of {', '.join(map(str, found))}" if isinstance(found, dict) else rank_side.shown(found)
        rank_side.problem(f"`numbers` returned {got}; it must return a dict of {', '.join(QUESTIONS)}.", "type")
    pairs = {k: _pair(found[k], f'`numbers` for "{k}"', "x and what becomes of it") for k in QUESTIONS}
    weights = [
        rank_side.number(frozen(step, getattr(torch, dtype), doing=f"adding {step:g} in {dtype}"), "`frozen_from`")
        for step, dtype in given
    ]
    types = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    made = {k: {how: torch.tensor(x).to(dtype).item() for how, dtype in types.items()} for k, (x, _) in pairs.items()}
    rank_side.tell(pairs=pairs, made=made, weights=weights)


def _pair(value: Any, what: str, of: str) -> list[float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        rank_side.problem(f"{what} returned {rank_side.shown(value)}; it must be two numbers, {of}.", "type")
    return [rank_side.number(v, what) for v in value]


class _Weights(nn.Module):
    """Three weights. The last one takes no part in the loss, and the second is in a parameter group of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = (nn.Parameter(torch.full((3,), v)) for v in (0.3, -0.7, 1.0))

    def forward(self, factor: float, step: int) -> Tensor:
        good = self.first.sum() * 0.37 + (self.second**2).sum() * 1.3
        # A bad factor reaches one number of one weight, not always the same one. A large factor reaches them all.
        reached = self.second if step % 2 else self.first
        return good + (reached.sum() if 1e30 < abs(factor) < float("inf") else reached[(step + 1) % 3]) * factor

    def optimizer(self) -> torch.optim.Optimizer:
        groups = [{"params": [self.first, self.unused], "weight_decay": 0.01}, {"params": [self.second], "lr": 0.05}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def _values(model: nn.Module) -> list[list[float]]:
    return [p.tolist() for p in model.parameters()]


class _Torchs:
    """Takes the place of torch's own scaler while the student's code runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        rank_side.problem("The cell uses torch's `GradScaler`. Write what it does.", "torch's own")


def scaler(load: Callable[[], ModuleType], given: list[Any]) -> None:
    torch.amp.GradScaler = torch.amp.grad_scaler.GradScaler = torch.cuda.amp.GradScaler = _Torchs
    answer = load()
    make = getattr(answer, "LossScaler", None)
    if not isinstance(make, type):
        rank_side.problem("The cell defines no class `LossScaler`. Keep the name you were given.", "missing")
    for name, parameter in inspect.signature(make).parameters.items():
        if name in SCALER_DEFAULTS and parameter.default != SCALER_DEFAULTS[name]:
            given_default = f"`LossScaler` has another default for `{name}` than {SCALER_DEFAULTS[name]:g}"
            rank_side.problem(f"{given_default}. Keep the line you were given.", "signature")
    cases = []
    for factors, settings in given:
        model = _Weights()
        optimizer = model.optimizer()
        scaled = make(**settings)
        for name in ("multiply", "step"):
            if not callable(getattr(scaled, name, None)):
                rank_side.problem(f"`LossScaler` has no method `{name}`. Keep the names you were given.", "missing")
        steps = []
        for i, factor in enumerate(factors):
            optimizer.zero_grad()
            before = _values(model)
            rank_side.report(call=f"multiplying the loss of step {i + 1}")
            plain = model(factor, i)
            kept = rank_side.snapshot(plain.detach())
            loss = scaled.multiply(plain)
            rank_side.must_return(
                isinstance(loss, Tensor) and loss.numel() == 1, "multiply", loss, "the loss times the scale, a tensor"
            )
            loss.backward()
            rank_side.report(call=f"taking step {i + 1}")
            went = scaled.step(optimizer)
            rank_side.report(call="")
            steps.append(
                {
                    "weights": _values(model),
                    "moved": _values(model) != before,
                    "went": went if isinstance(went, bool) else rank_side.shown(went),
                    "loss": loss.item(),
                    "dtype": str(loss.dtype),
                    "kept": rank_side.same(kept, plain.detach()),
                    "scale": rank_side.number(scaled.scale, "`scale`"),
                    "left": _left(model),
                }
            )
        cases.append(steps)
    rank_side.tell(cases=cases)


def _left(model: nn.Module) -> list[list[float] | None]:
    """What a step leaves in `grad`, for whoever logs it."""
    return [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()]


def scaler_twin(load: Callable[[], ModuleType], given: list[Any]) -> None:
    """The same trainings with torch's own scaler."""
    cases = []
    for factors, settings in given:
        model = _Weights()
        optimizer = model.optimizer()
        real = torch.amp.GradScaler(
            "cpu",
            init_scale=settings["scale"],
            growth_interval=int(settings["interval"]),
            growth_factor=settings.get("growth", 2.0),
            backoff_factor=settings.get("backoff", 0.5),
        )
        steps = []
        for i, factor in enumerate(factors):
            optimizer.zero_grad()
            before = float(real.get_scale())
            loss = real.scale(model(factor, i))
            loss.backward()
            real.step(optimizer)
            real.update()
            steps.append(
                {
                    "weights": _values(model),
                    "loss": loss.item(),
                    "before": before,
                    "scale": float(real.get_scale()),
                    "left": _left(model),
                }
            )
        cases.append(steps)
    rank_side.tell(cases=cases)


class Energy(nn.Module):
    """A linear layer, then the logarithm of a sum of large squares, which is too large for fp16 before the
    logarithm."""

    def __init__(self, width: int):
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.seen: list[tuple[str, bool, str]] = []

    def forward(self, h: Tensor) -> Tensor:
        mixed = self.mix(h)
        self.seen.append((_name(h), torch.is_autocast_enabled("cpu"), _name(mixed)))
        large = 1000 * mixed
        return (large * large).sum(-1, keepdim=True).log()


class Model(nn.Module):
    """`features`, then `energy` of the features, then `head` of both."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self.energy = Energy(width)
        self.head = nn.Linear(width + 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        out: Tensor = self.head(torch.cat([h, self.energy(h)], dim=-1))
        return out


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def layers(answer: ModuleType) -> None:
    function = rank_side.function(answer, "mixed_forward", "model", "x", "dtype")
    cases = []
    for name in DTYPES_TRIED:
        torch.manual_seed(3)
        model = Model()
        twin = copy.deepcopy(model)
        x = torch.randn(5, 8)
        model.train(name == "float16")
        modes = [m.training for m in model.modules()]
        model.head.weight.grad = kept = torch.zeros_like(model.head.weight)
        given: list[Tensor] = []
        model.features[-1].register_forward_hook(lambda m, i, o, to=given: to.append(o.detach().float()))
        model.energy.register_forward_pre_hook(lambda m, i, to=given: to.append(i[0].detach()))
        outputs: dict[str, list[str]] = {"features": [], "head": []}
        model.features[-1].register_forward_hook(lambda m, i, o, to=outputs["features"]: to.append(_name(o)))
        model.head.register_forward_hook(lambda m, i, o, to=outputs["head"]: to.append(_name(o)))
        out = function(model, x, getattr(torch, name), doing=f"running the model in {name}")
        rank_side.must_return(
            isinstance(out, Tensor) and out.shape == (5, 4), "mixed_forward", out, "the output of `head`, [5, 4]"
        )
        cleared = model.head.weight.grad is not kept
        want = twin(x)
        weights = sorted({_name(p) for p in model.parameters()})
        if out.requires_grad:
            out.float().sum().backward()
            want.sum().backward()
        gradients = out.requires_grad and all(
            p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters()
        )
        apart = 9.0
        if gradients and weights == ["float32"]:
            pairs = zip(model.features.parameters(), twin.features.parameters(), strict=True)
            apart = max(((p.grad - q.grad).norm() / q.grad.norm()).item() for p, q in pairs)
        gap = (out.float() - want).abs().max().item()
        cases.append(
            {
                "outputs": outputs,
                "energy": model.energy.seen,
                "gives": _name(out),
                "finite": bool(out.isfinite().all()),
                "gap": gap if gap == gap and gap < 1e30 else 1e30,
                "weights": weights,
                "gradients": gradients,
                "apart": apart if apart == apart else 9.0,
                "modes": modes == [m.training for m in model.modules()],
                "cleared": cleared,
                "handed_on": len(given) == 2 and torch.equal(*given),
                "left_on": torch.is_autocast_enabled("cpu"),
            }
        )
    rank_side.tell(cases=cases)
