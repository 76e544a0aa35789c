"""Lesson 08, exercise 3: runs each mended loop, and tells what it did."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from .. import rank_side
from .cases import CLIPPED, FREEZE_LR, FREEZE_STEPS, MAX_NORM, SKIP_CASES, STAIRCASE, STREAMS
from .loops import Scaler, batches, flat, losses_of, name, new_model, state_of, told, watched


def numbers_of(values: Any, what: str, count: int) -> list[float]:
    if not isinstance(values, (list, tuple)) or len(values) != count:
        got = f"{len(values)} of them" if isinstance(values, (list, tuple)) else rank_side.shown(values)
        rank_side.problem(f"`train` returned {got}; it must return a list of {what}: {count} here.", "type")
    return [_plain(v) for v in values]


def _plain(value: Any) -> float:
    """A number that `train` returned, also in a tensor; NaN and infinite ones as `NO_NUMBER`."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        rank_side.problem(f"`train` returned {rank_side.shown(value)} in its list; it must be a number.", "type")
    return float(value) if abs(value) < 1e30 else 1e30


def staircase(answer: ModuleType) -> None:
    function = rank_side.function(answer, "train", "model", "optimizer", "batches", "epochs")
    n, epochs = STAIRCASE
    model, given = new_model(1), batches(rank_side.secret_seed(), n)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    with watched(model, state_of(None, None, optimizer)) as seen:
        losses = function(model, optimizer, given, epochs, doing=f"training {epochs} epochs of {n} batches")
    rank_side.tell(
        windows=told(seen, given * epochs, 1, 0.0),
        count=n * epochs,
        losses=numbers_of(losses, "losses, one for each batch", n * epochs),
        right=losses_of(seen, given * epochs),
    )


def clipped(answer: ModuleType) -> None:
    function = rank_side.function(answer, "train", "model", "optimizer", "scaler", "batches")
    cases = []
    for n, size, scale, broken in CLIPPED:
        model, given = new_model(2), batches(rank_side.secret_seed(), n, size, tuple(broken))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
        scaler = Scaler("cpu", init_scale=scale)
        with watched(model, state_of(None, scaler, optimizer)) as seen:
            norms = function(model, optimizer, scaler, given, doing=f"training with a scale of {scale:g}")
        norms = numbers_of(norms, "norms, one for each batch", n)
        cases.append({"windows": told(seen, given, 1, MAX_NORM), "count": n, "norms": norms, "scaled": scaler.scaled})
    rank_side.tell(cases=cases)


def frozen(answer: ModuleType) -> None:
    function = rank_side.function(answer, "train", "model", "batches", "lr")
    model, given = new_model(3), batches(rank_side.secret_seed(), FREEZE_STEPS)
    twin = copy.deepcopy(model)
    start = flat(twin)
    with watched(model) as seen:
        function(model, given, FREEZE_LR, doing=f"training {FREEZE_STEPS} steps")
    optimizer = torch.optim.AdamW(twin.parameters(), lr=FREEZE_LR)
    for x, y in given:
        optimizer.zero_grad()
        cross_entropy(twin(x), y).backward()
        optimizer.step()
    way, twins = flat(model) - seen.moments[0].weights, flat(twin) - start
    rank_side.tell(
        windows=told(seen, given, 1, 0.0),
        count=FREEZE_STEPS,
        unmoved=(way == 0).float().mean().item(),
        apart=((way - twins).norm() / twins.norm()).item(),
        far=(way.norm() / twins.norm()).item(),
    )


def counter(answer: ModuleType) -> None:
    function = rank_side.function(answer, "accuracy", "model", "samples")
    random = torch.Generator().manual_seed(rank_side.secret_seed())
    cases = []
    for n, share in STREAMS:
        model = torch.nn.Linear(8, 4)
        x, hit = torch.randn(n, 1, 8, generator=random), torch.rand(n, generator=random) < share
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            classes = model(x).argmax(-1)
        samples = list(zip(x, torch.where(hit[:, None], classes, (classes + 1) % 4), strict=True))
        given: list[tuple[str, int]] = []  # the type of each output, and the class that it says
        handle = model.register_forward_hook(
            lambda _, inputs, output, to=given: to.append((name(output), int(output[0].argmax())))
        )
        value = function(model, samples, doing=f"counting {n} samples")
        handle.remove()
        hits = sum(c == int(y) for (_, c), (_, y) in zip(given, samples, strict=False))
        cases.append(
            {
                "value": rank_side.number(value, "`accuracy`"),
                "right": hits / n,
                "n": n,
                "forwards": len(given),
                "layers": sorted({kind for kind, _ in given}),
            }
        )
    rank_side.tell(cases=cases)


def skipped(answer: ModuleType) -> None:
    function = rank_side.function(answer, "train", "model", "optimizer", "schedule", "scaler", "batches")
    cases = []
    for n, scale, interval, broken in SKIP_CASES:
        model, given = new_model(5), batches(rank_side.secret_seed(), n, 1.0, tuple(broken))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=n)
        scaler = Scaler("cpu", init_scale=scale, growth_interval=interval)
        with watched(model, state_of(schedule, scaler, optimizer)) as seen:
            function(model, optimizer, schedule, scaler, given, doing=f"training with a scale of {scale:g}")
        cases.append({"windows": told(seen, given, 1, 0.0), "count": n, "scaled": scaler.scaled})
    rank_side.tell(cases=cases)
