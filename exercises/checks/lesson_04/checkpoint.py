"""Lesson 04 on the ranks, exercise 4: saves in some launches, and loads in others, in every direction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from .. import rank_side
from ..files import Files
from ..rank_side import RANK

NEXT = 9  # the batch of the step after loading

Trained = tuple[nn.Module, torch.optim.Optimizer]


def new(seed: int, wrap: bool) -> Trained:
    """A small model with buffers, and its optimizer. Weights differ between ranks and between seeds."""
    torch.manual_seed(10 * seed + RANK)
    model: nn.Module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    model = DDP(model) if wrap else model
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    return model, torch.optim.AdamW([{"params": weights}, {"params": others, "weight_decay": 0.0}], lr=0.01)


def step(trained: Trained, number: int) -> None:
    """One training step on this rank's part of batch `number`."""
    model, optimizer = trained
    random = torch.Generator().manual_seed(100 * number + RANK)
    x, y = torch.randn(8, 6, generator=random), torch.randint(0, 4, (8,), generator=random)
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


def bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DDP) else model


def slower(trained: Trained) -> None:
    """Change the learning rates, as a schedule does: they are part of the state."""
    for number, group in enumerate(trained[1].param_groups):
        group["lr"] = 0.002 + 0.001 * number


def told(trained: Trained) -> dict[str, dict[str, Any]]:
    """Both states for the judge: name -> (shape, numbers)."""
    model, optimizer = trained
    state = optimizer.state_dict()
    averages = {f"{i}.{k}": torch.as_tensor(v) for i, entry in state["state"].items() for k, v in entry.items()}
    settings = {
        f"{k} of group {i}": torch.tensor(v, dtype=torch.float64)
        for i, group in enumerate(state["param_groups"])
        for k, v in group.items()
        if isinstance(v, (int, float)) and k != "params"
    }
    parts = {"model": bare(model).state_dict(), "optimizer": averages | settings}
    return {
        part: {k: [list(t.shape), t.flatten().tolist()] for k, t in tensors.items()} for part, tensors in parts.items()
    }


def readable(path: Path) -> bool:
    try:
        torch.load(path, map_location="cpu", weights_only=False)
    except Exception:
        return False
    return True


class Checkpoints:
    """The files of a check, in a folder that outlives a launch. Nothing else lies there."""

    def __init__(self, folder: str):
        self.folder = Path(folder)
        names = ("first.pt", "ddp.pt", "plain.pt", "gpu.pt", "full.pt", "failed.pt")
        self.first, self.ddp, self.plain, self.dated, self.full, self.failed = (self.folder / name for name in names)


def _load_round(read: Callable[..., Any], doing: str, path: Path, wrap: bool) -> dict[str, Any]:
    """Loads with the student's function into a model of other weights; its states then, and after one more step."""
    mine = new(seed=5, wrap=wrap)
    before = told(mine)["model"]
    got = read(*mine, path, doing=doing)
    loaded = told(mine)
    if wrap:
        rank_side.meet()
    step(mine, NEXT)
    epoch = got if isinstance(got, int) else repr(got)
    return {"epoch": epoch, "before": before, "loaded": loaded, "next": told(mine)["model"]}


def _functions(answer: ModuleType) -> tuple[Callable[..., Any], Callable[..., Any]]:
    save = rank_side.function(answer, "save_checkpoint", "model", "optimizer", "epoch", "path")
    return save, rank_side.function(answer, "load_checkpoint", "model", "optimizer", "path")


def save_wrapped(load: Callable[[], ModuleType], given: str) -> None:
    """The first launch: saves a DDP model on a slow disk, and over an older file."""
    paths = Checkpoints(given)
    files = Files(paths.folder)
    save, _ = _functions(load())
    with rank_side.world(2):
        trained = new(seed=1, wrap=True)
        for number in range(3):
            step(trained, number)
        slower(trained)
        files.slow = True
        save(*trained, 3, paths.first, doing="saving a DDP model")
        there, files.slow = readable(paths.first), False
        rank_side.tell(there=there, writes=files.writes)
        if there:
            (rank_side.folder() / f"there{RANK}").touch()
        rank_side.meet()
        if len(list(rank_side.folder().glob("there?"))) < 2:
            return
        save(*trained, 3, paths.ddp, doing="saving a DDP model")
        rank_side.meet()
        step(trained, 3)
        files.target = str(paths.ddp)
        save(*trained, 4, paths.ddp, doing="saving over an older file")
        rank_side.tell(lost=files.lost)


def load_wrapped(load: Callable[[], ModuleType], given: str) -> None:
    """The second launch: loads what the first has saved, then saves a plain model, also on a disk that is full."""
    paths = Checkpoints(given)
    files = Files(paths.folder)
    save, read = _functions(load())
    doing, rounds = "loading a DDP checkpoint into DDP", {}
    with rank_side.world(2):
        rounds[doing] = _load_round(read, doing, paths.first, wrap=True)
    if RANK == 0:
        doing = "loading a newer DDP checkpoint into a plain model"
        rounds[doing] = _load_round(read, doing, paths.ddp, wrap=False)
        plain = new(seed=2, wrap=False)
        for number in range(3):
            step(plain, number)
        slower(plain)
        alone = "saving a plain model, without a process group"
        save(*plain, 5, paths.plain, doing=alone)
        save(*plain, 5, paths.full, doing=alone)
        files.from_gpu = True
        save(*plain, 6, paths.dated, doing=alone)
        files.from_gpu = False
        rank_side.tell(**_full(save, plain, files, paths.full))
    rank_side.tell(rounds=rounds)


def _full(save: Callable[..., Any], plain: Trained, files: Files, path: Path) -> dict[str, Any]:
    """Saves once more when the disk is full. An answer that doesn't call `torch.save` succeeds."""
    step(plain, 4)
    files.broken, files.saved = True, False
    try:
        save(*plain, 7, path, doing="saving when the disk is full")
        raised = False
    except Exception:
        raised = True
    files.broken = False
    return {
        "survived": readable(path),
        "told_full": raised or not files.saved,
        "saved_anyway": not raised and not files.saved,
    }


def load_plain(load: Callable[[], ModuleType], given: str) -> None:
    """The third launch: loads what the second has saved."""
    paths = Checkpoints(given)
    _, read = _functions(load())
    rounds = {}
    if RANK == 0:
        for doing, path in (
            ("loading a plain checkpoint into a plain model", paths.plain),
            ("loading a file that was saved from cuda:7", paths.dated),
            ("loading the last good checkpoint after the disk was full", paths.full),
        ):
            rounds[doing] = _load_round(read, doing, path, wrap=False)
    doing = "loading a plain checkpoint into DDP"
    with rank_side.world(2):
        rounds[doing] = _load_round(read, doing, paths.full, wrap=True)
    rank_side.tell(rounds=rounds)


def save_in_vain(load: Callable[[], ModuleType], given: str) -> None:
    """The last launch: saves a DDP model when the disk of the rank that writes is full."""
    paths = Checkpoints(given)
    files = Files(paths.folder)
    save, _ = _functions(load())
    with rank_side.world(2):
        trained = new(seed=1, wrap=True)
        save(*trained, 7, paths.failed, doing="saving a DDP model")  # so that a file is there, an older one
        step(trained, 0)
        files.broken, files.saved = True, False
        try:
            save(*trained, 8, paths.failed, doing="saving a DDP model when the disk is full")
            raised = False
        except Exception:
            raised = True
        files.broken = False
        rank_side.meet()  # before the group goes: a rank that waits in a collective would be freed by an error of gloo
    rank_side.tell(raised=raised, tried=files.saved)
