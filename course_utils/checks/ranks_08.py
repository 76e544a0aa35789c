"""Lesson 08 on the rank: one adapter a task runs the student's functions and tells what it saw."""

from __future__ import annotations

import copy
import numbers
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.checks import inside
from course_utils.checks.cases_08 import DTYPES_TRIED, GRADIENT_CASES, SCALE_CASES, SCALER_CASES, SPEED_CASES


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60} (a {type(value).__name__})"


def _number(value: Any, what: str) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        inside.problem(f"{what} returned {_shown(value)}; it must return a number.", "type")
    return float(value)


def _pair(value: Any, what: str, of: str) -> list[float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        inside.problem(f"{what} returned {_shown(value)}; it must return two numbers, {of}.", "type")
    return [_number(v, what) for v in value]


def underflow(answer: ModuleType) -> None:
    shares = inside.function(answer, "underflow", "gradients", "scale")
    largest = inside.function(answer, "largest_scale", "gradients")
    changed, pairs = False, []
    for rows, scale in GRADIENT_CASES:
        gradients = [torch.tensor(row) for row in rows]
        value = shares(gradients, scale, doing=f"counting with a scale of {scale:g}")
        pairs.append(_pair(value, "`underflow`", "the shares that become zero and infinite"))
        changed = changed or any(not torch.equal(g, torch.tensor(row)) for g, row in zip(gradients, rows, strict=True))
    scales = []
    for rows in SCALE_CASES:
        value = largest([torch.tensor(row) for row in rows], doing=f"looking for the largest scale of {rows}")
        scales.append(_number(value, "`largest_scale`"))
    inside.tell(pairs=pairs, scales=scales, changed=changed)


class _Weights(nn.Module):
    """Three weights, of which the last takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = (nn.Parameter(torch.full((3,), v)) for v in (0.3, -0.7, 1.0))

    def forward(self, factor: float, step: int) -> Tensor:
        good = self.first.sum() * 0.37 + (self.second**2).sum() * 1.3
        # The bad factor reaches one number of one weight, not always the same.
        bad = (self.second if step % 2 else self.first)[1] * factor
        return good + bad


def scaler(answer: ModuleType) -> None:
    make = getattr(answer, "LossScaler", None)
    if not isinstance(make, type):
        inside.problem("The cell defines no class `LossScaler`. Keep its name as it was given.", "missing")
    cases = []
    for factors, settings in SCALER_CASES:
        mine, theirs = _Weights(), _Weights()
        optimizer, twin = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (mine, theirs))
        scaled = make(**settings)
        for name in ("multiply", "step"):
            if not callable(getattr(scaled, name, None)):
                inside.problem(f"`LossScaler` has no method `{name}`. Keep its names as they were given.", "missing")
        renamed = {"scale": "init_scale", "interval": "growth_interval", "growth": "growth_factor", "backoff": "backoff_factor"}
        real = torch.amp.GradScaler("cpu", **{renamed[key]: int(v) if key == "interval" else v for key, v in settings.items()})
        steps = []
        for i, factor in enumerate(factors):
            optimizer.zero_grad()
            twin.zero_grad()
            before = [p.detach().clone() for p in mine.parameters()]
            loss = scaled.multiply(mine(factor, i))
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                inside.problem(f"`multiply` returned {_shown(loss)}; it must return the loss times the scale, a tensor.", "type")
            expected = real.scale(theirs(factor, i))
            same_loss = bool(torch.equal(loss, expected)) or not bool(loss.isfinite())
            loss.backward()
            expected.backward()
            went = scaled.step(optimizer)
            scale = float(real.get_scale())
            real.step(twin)
            real.update()
            moved = any(not torch.equal(p, q) for p, q in zip(mine.parameters(), before, strict=True))
            gap = max((p - q).abs().max().item() for p, q in zip(mine.parameters(), theirs.parameters(), strict=True))
            gap = gap if gap == gap else float("inf")
            told = {"gap": min(gap, 1e30), "moved": moved, "went": went if isinstance(went, bool) else _shown(went), "same_loss": same_loss}
            steps.append({**told, "scale": _number(scaled.scale, "`scale`"), "wanted": float(real.get_scale()), "before": scale})
        cases.append(steps)
    inside.tell(cases=cases)


def speed(answer: ModuleType) -> None:
    function = inside.function(answer, "speed_up", "products_s", "rest_s", "weights", "compute_ratio", "memory_Bps")
    pairs = [_pair(function(*case, doing=f"predicting {name}"), "`speed_up`", "the low and the high end") for name, case in SPEED_CASES.items()]
    inside.tell(pairs=pairs)


class Energy(nn.Module):
    """The logarithm of a sum of squares of large numbers, mixed: too large for fp16 before the logarithm."""

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
    function = inside.function(answer, "mixed_forward", "model", "x", "dtype")
    cases = []
    for name in DTYPES_TRIED:
        torch.manual_seed(3)
        model = Model()
        twin = copy.deepcopy(model)
        x = torch.randn(5, 8)
        outputs: dict[str, list[str]] = {"features": [], "head": []}
        model.features[-1].register_forward_hook(lambda m, i, o, to=outputs["features"]: to.append(_name(o)))
        model.head.register_forward_hook(lambda m, i, o, to=outputs["head"]: to.append(_name(o)))
        out = function(model, x, getattr(torch, name), doing=f"running the model in {name}")
        if not isinstance(out, Tensor) or out.shape != (5, 4):
            inside.problem(f"`mixed_forward` returned {_shown(out)}; it must return the output of `head`, [5, 4].", "type")
        want = twin(x)
        weights = sorted({_name(p) for p in model.parameters()})
        if out.requires_grad:
            out.float().sum().backward()
            want.sum().backward()
        gradients = out.requires_grad and all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
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
                "left_on": torch.is_autocast_enabled("cpu"),
            }
        )
    inside.tell(cases=cases)


if __name__ == "__main__":
    {"underflow": underflow, "scaler": scaler, "speed": speed, "layers": layers}[sys.argv[1]](inside.load(sys.argv[2]))
