"""Lesson 04 on the ranks, exercise 4: saves in some launches, and loads in others, in every direction."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from .. import rank_side
from ..rank_side import RANK

NEXT = 9  # the batch of the step after loading
DELAY_S = 0.3  # slows the writer down, so that a rank that doesn't wait for it shows
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR

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


class Files:
    """Watches what this rank writes. Can slow a write down, break it off in the middle, or make its tensors come from
    another device."""

    def __init__(self, folder: Path) -> None:
        self.watched = {str(folder.resolve()), os.path.abspath(tempfile.gettempdir())}
        self.writes = 0
        self.target = ""  # a good file, which must stay until another takes its place
        self.lost: str | None = None  # what happened to it
        self.saved = False  # whether `torch.save` was called
        self.slow = self.broken = self.from_gpu = self._quiet = False
        self._save = torch.save
        torch.save = self.save  # before the student's file is loaded, which may import `save` by name
        os.rename, os.replace = self._same_disk(os.rename), self._same_disk(os.replace)
        sys.addaudithook(self._audit)
        torch.serialization.register_package(0, lambda _: "cuda:7" if self.from_gpu else None, lambda *_: None)

    def _same_disk(self, original: Callable[..., None]) -> Callable[..., None]:
        """A rename works within one file system. Here every folder outside the target's is on another."""

        def rename(src: Any, dst: Any, **options: Any) -> None:
            to = os.path.dirname(os.path.abspath(os.fsdecode(dst)))
            if to in self.watched and not options and not os.path.abspath(os.fsdecode(src)).startswith(to + os.sep):
                raise OSError(18, "Invalid cross-device link", os.fsdecode(src), None, os.fsdecode(dst))
            original(src, dst, **options)

        return rename

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self.target and event in ("os.remove", "os.rename") and self._is_target(args[0]):
            self.lost = "removed" if event == "os.remove" else "moved away"
        if event != "open" or self._quiet or isinstance(args[0], int):
            return
        path, mode, flags = args
        writes = set(mode) & set("wax+") if isinstance(mode, str) else (flags or 0) & WRITE_FLAGS
        if writes and self.target and self._is_target(path):
            self.lost = "opened for writing, which empties it"
        if writes and os.path.dirname(os.path.abspath(os.fsdecode(path))) in self.watched:
            self.writes += 1

    def _is_target(self, path: Any) -> bool:
        return not isinstance(path, int) and os.path.realpath(os.fsdecode(path)) == os.path.realpath(self.target)

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        is_file = hasattr(f, "write")
        self.saved = True
        if self.target and not is_file and self._is_target(f):
            self.lost = "written over"
        self._quiet = True
        try:
            if self.broken or self.slow:
                (
                    f.write(b"half of a checkpoint")
                    if is_file and self.broken
                    else None
                    if is_file
                    else Path(f).write_bytes(b"half of a checkpoint")
                )
            if self.broken and not is_file:  # what torch's own writer says of a full disk
                raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598")
            if self.broken:
                raise OSError(28, "No space left on device")
            time.sleep(DELAY_S if self.slow else 0)
            self._save(obj, f, *args, **kwargs)
        finally:
            self._quiet = False
        self.writes += not is_file


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
