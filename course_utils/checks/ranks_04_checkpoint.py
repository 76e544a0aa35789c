"""Lesson 04 on the ranks, exercise 4: saves and loads in every direction, beside a run that was never interrupted."""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.checks import inside
from course_utils.checks.inside import RANK

DELAY_S = 0.3  # a writer is made this slow, so that a rank that does not wait for it is found out
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR

Tensors = dict[str, Tensor]
Trained = tuple[nn.Module, torch.optim.Optimizer]


def new(seed: int, wrap: bool) -> Trained:
    """A small model with buffers, and its optimizer. Each rank's weights differ, and are not those of another seed."""
    torch.manual_seed(10 * seed + RANK)
    model: nn.Module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    model = DDP(model) if wrap else model
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


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


def states(trained: Trained) -> dict[str, Any]:
    """Copies of both states, as PyTorch names them."""
    model, optimizer = trained
    return copy.deepcopy({"model": bare(model).state_dict(), "optimizer": optimizer.state_dict()})


def differing(a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[str]]:
    """For model and optimizer the names whose values are not equal to the last bit, or that one side lacks."""

    def flat(part: dict[str, Any]) -> Tensors:
        return {f"{i}.{k}": torch.as_tensor(v) for i, entry in part["state"].items() for k, v in entry.items()} if "state" in part else part

    found = {}
    for part in ("model", "optimizer"):
        one, other = flat(a[part]), flat(b[part])
        found[part] = sorted(k for k in one.keys() | other.keys() if k not in one or k not in other or not torch.equal(one[k], other[k]))
    return found


class Files:
    """Watches what this rank writes. Can slow a write down, break it off in the middle, or date it from another device."""

    def __init__(self, folder: Path) -> None:
        self.watched = {str(folder.resolve()), os.path.abspath(tempfile.gettempdir())}
        self.writes = 0
        self.slow = self.broken = self.from_gpu = self._quiet = False
        self._save = torch.save
        torch.save = self.save  # before the student's file is loaded, which may take the function by name
        sys.addaudithook(self._audit)
        torch.serialization.register_package(0, lambda _: "cuda:7" if self.from_gpu else None, lambda *_: None)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or self._quiet or isinstance(args[0], int):
            return
        path, mode, flags = args
        writes = set(mode) & set("wax+") if isinstance(mode, str) else (flags or 0) & WRITE_FLAGS
        if writes and os.path.dirname(os.path.abspath(os.fsdecode(path))) in self.watched:
            self.writes += 1

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        is_file = hasattr(f, "write")
        self._quiet = True
        try:
            if self.broken or self.slow:
                f.write(b"half of a checkpoint") if is_file and self.broken else None if is_file else Path(f).write_bytes(b"half of a checkpoint")
            if self.broken:
                raise OSError(28, "No space left on device")
            time.sleep(DELAY_S if self.slow else 0)
            self._save(obj, f, *args, **kwargs)
        finally:
            self._quiet = False
        self.writes += not is_file

    def keep(self, obj: Any, path: Path) -> None:
        """What the check itself saves."""
        self._save(obj, path)


def readable(path: Path) -> bool:
    try:
        torch.load(path, map_location="cpu", weights_only=False)
    except Exception:
        return False
    return True


class Round:
    """Loads with the student's function into a model of other weights, compares at once, and again after one step more."""

    def __init__(self, load: Callable[..., Any]):
        self.load, self.results = load, dict[str, dict[str, Any]]()

    def __call__(self, doing: str, path: Path, wrap: bool, truth: dict[str, Any], epoch: int, together: bool) -> None:
        mine = new(seed=5, wrap=wrap)
        before = states(mine)
        got = self.load(*mine, path, doing=doing)
        found = states(mine)
        result: dict[str, Any] = {"epoch": got if isinstance(got, int) else repr(got), "wanted": epoch} | differing(found, truth)
        result["untouched"] = not differing(before, found)["model"]
        if together:
            inside.meet()
        twin = new(seed=6, wrap=wrap)
        bare(twin[0]).load_state_dict(truth["model"])
        twin[1].load_state_dict(copy.deepcopy(truth["optimizer"]))
        for trained in (mine, twin):
            step(trained, number=9)
        result["next"] = differing(states(mine), states(twin))["model"]
        self.results[doing] = result


def main(answer_path: str) -> None:
    folder = inside.folder() / "checkpoints"
    folder.mkdir(exist_ok=True)
    files = Files(folder)
    answer = inside.load(answer_path)
    save = inside.function(answer, "save_checkpoint", "model", "optimizer", "epoch", "path")
    load = inside.function(answer, "load_checkpoint", "model", "optimizer", "path")
    round_ = Round(load)
    of_ddp, of_plain, dated, truth_file = (folder / name for name in ("ddp.pt", "plain.pt", "gpu.pt", "truth"))

    with inside.world(2):
        trained = new(seed=1, wrap=True)
        for number in range(3):
            step(trained, number)
        files.slow = True
        save(*trained, 3, of_ddp, doing="saving a DDP model")
        there, writes, files.slow = readable(of_ddp), files.writes, False
        inside.tell(there=there, writes=writes)
        if there:
            (inside.folder() / f"there{RANK}").touch()
        inside.meet()
        if len(list(inside.folder().glob("there?"))) < 2:
            return
        if RANK == 0:  # after the first write: buffers differ between ranks, and those of rank 0 count
            files.keep(states(trained), truth_file)
        inside.meet()
        truth = torch.load(truth_file)
        round_("loading a DDP checkpoint into DDP", of_ddp, True, truth, 3, together=True)

    if RANK == 0:
        round_("loading a DDP checkpoint into a plain model", of_ddp, False, truth, 3, together=False)
        plain = new(seed=2, wrap=False)
        for number in range(3):
            step(plain, number)
        save(*plain, 5, of_plain, doing="saving a plain model, without a process group")
        plain_truth = states(plain)
        files.keep(plain_truth, truth_file)
        round_("loading a plain checkpoint into a plain model", of_plain, False, plain_truth, 5, together=False)
        files.from_gpu = True
        save(*plain, 6, dated, doing="saving a plain model, without a process group")
        files.from_gpu = False
        round_("loading a file that was saved from cuda:7", dated, False, plain_truth, 6, together=False)
        files.broken = True
        step(plain, 4)
        try:
            save(*plain, 7, of_plain, doing="saving when the disk is full")
        except OSError:
            pass
        files.broken = False
        inside.tell(survived=readable(of_plain))
        round_("loading the last good checkpoint after the disk was full", of_plain, False, plain_truth, 5, together=False) if readable(of_plain) else None
    with inside.world(2):
        if readable(of_plain):
            round_("loading a plain checkpoint into DDP", of_plain, True, torch.load(truth_file), 5, together=True)
    inside.tell(rounds=round_.results)


if __name__ == "__main__":
    main(sys.argv[2])
