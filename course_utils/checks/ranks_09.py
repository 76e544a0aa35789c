"""Lesson 09 on the ranks: one adapter a task runs the student's functions and tells what it saw."""

from __future__ import annotations

import copy
import numbers
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from course_utils.checks import inside
from course_utils.checks.cases_09 import AGAIN_CASES, BATCH, CHOOSE_CASES, EPOCHS, EVERY_CASES, INTERRUPTED, KILLED_AT, RANKS, SAMPLES
from course_utils.checks.inside import RANK

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60} (a {type(value).__name__})"


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        inside.problem(f"{what} returned {_shown(value)}; it must return a whole number, an int.", "type")
    return int(value)


# --- 09.1 -----------------------------------------------------------------------------------------------------------------


class Disk:
    """Notes what this process does to the files of a folder, in order: opened, synced, renamed, removed."""

    def __init__(self, path: Path):
        self.path, self.events, self.on = str(path), list[dict[str, Any]](), False
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                setattr(os, name, self.noting(getattr(os, name)))
        sys.addaudithook(self.audit)

    def noting(self, sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def called(target: Any) -> None:
            fd = target if isinstance(target, int) else target.fileno()
            if self.on:
                self.events.append({"what": "sync", "path": os.path.realpath(f"/proc/self/fd/{fd}"), "size": os.fstat(fd).st_size})
            sync(target)

        return called

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            mode, flags = args[1], args[2]
            if set(mode) & set("wax+") if isinstance(mode, str) else (flags or 0) & WRITE_FLAGS:
                self.events.append({"what": "open", "path": os.path.realpath(os.fsdecode(args[0]))})
        elif event == "os.rename":
            self.events.append({"what": "rename", "path": os.path.realpath(os.fsdecode(args[0])), "to": os.path.realpath(os.fsdecode(args[1]))})
        elif event == "os.remove":
            self.events.append({"what": "remove", "path": os.path.realpath(os.fsdecode(args[0]))})


def _state(version: int) -> dict[str, Any]:
    return {"version": version, "weights": [torch.full((1 << 14,), float(version)) for _ in range(4)]}


def _version(path: Path) -> int | None:
    """Of the checkpoint that lies there, when it is whole."""
    try:
        found = torch.load(path)
        return int(found["version"]) if all(bool((w == found["version"]).all()) for w in found["weights"]) else None
    except Exception:
        return None


def _limited(function: Callable[..., Any], path: Path, limit: int, kill: bool) -> str:
    """Run the save in a child whose files may not grow past `limit`: there it is killed, or gets an OSError. How the child ended."""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kill else signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            function(_state(2), path)
            os._exit(0)
        except BaseException:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) else {0: "returned", 3: "raised"}.get(os.WEXITSTATUS(status), "ended")


def save(answer_path: str) -> None:
    folder = (inside.folder() / "checkpoints").resolve()
    folder.mkdir(exist_ok=True)
    path = folder / "run.pt"
    disk = Disk(path)
    answer = inside.load(answer_path)
    function = inside.function(answer, "save", "state", "path")
    found = answer.__dict__["save"]
    torch.save(_state(0), path)
    size = path.stat().st_size
    inside.tell(size=size)
    disk.on = True
    function(_state(1), path, doing="saving over an older checkpoint")
    disk.on = False
    at = [i for i, e in enumerate(disk.events) if e["what"] == "rename" and e["to"] == disk.path]
    inside.tell(saved=_version(path), beside=sorted(p.name for p in folder.iterdir() if p != path), at_path=disk.path, folder=str(folder))
    inside.tell(events=disk.events, renamed=at, final=path.stat().st_size if path.exists() else 0)
    kills = []
    for share in KILLED_AT:
        torch.save(_state(0), path)
        ended = _limited(found, path, int(share * size), kill=True)
        kills.append({"share": share, "ended": ended, "left": _version(path)})
    inside.tell(kills=kills)
    if _version(path) is None:
        torch.save(_state(0), path)
    function(_state(5), path, doing="saving again after a kill")
    inside.tell(again=_version(path))
    for p in folder.iterdir():
        p.unlink()
    torch.save(_state(0), path)
    full = []
    for share in (0.2, 0.7):
        ended = _limited(found, path, int(share * size), kill=False)
        full.append({"ended": ended, "left": _version(path), "beside": sorted(p.name for p in folder.iterdir() if p != path)})
        torch.save(_state(0), path)
    inside.tell(full=full)
    path.unlink()
    function(_state(6), path, doing="saving where nothing lies yet")
    inside.tell(first=_version(path))


# --- 09.2 -----------------------------------------------------------------------------------------------------------------


def _new(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {"model": model, "optimizer": optimizer, "schedule": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 18)}


def _step(parts: dict[str, Any], indices: list[int], x: Tensor, group: Any) -> None:
    """A step of data parallel training. Its own group, so that no collective of the student's is mistaken for it."""
    noise = torch.tensor([[random.random(), float(np.random.rand())] * 3 for _ in indices], dtype=torch.float32)
    parts["optimizer"].zero_grad()
    parts["model"](x[indices] + noise).square().mean().backward()
    for p in parts["model"].parameters():
        dist.all_reduce(p.grad, group=group)
    parts["optimizer"].step()
    parts["schedule"].step()


def _states(parts: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({name: part.state_dict() for name, part in parts.items()}) | {
        "random numbers of torch": torch.get_rng_state(),
        "random numbers of Python": random.getstate(),
        "random numbers of NumPy": [v.tolist() if isinstance(v, np.ndarray) else v for v in np.random.get_state()],
    }


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _batches(value: Any) -> list[list[int]]:
    try:
        return [[int(i) for i in batch] for batch in value]
    except TypeError:
        inside.problem(f"`rest_of_epoch` returned {_shown(value)}; it must return a list of lists of indices.", "type")


def resume(answer: ModuleType) -> None:
    save_run = inside.function(answer, "save_run", "parts", "epoch", "batches")
    load_run = inside.function(answer, "load_run", "parts", "saved")
    rest = inside.function(answer, "rest_of_epoch", "sampler", "epoch", "batches", "batch_size")
    file = inside.folder() / "saved.pt"
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(3))

    def sampler() -> DistributedSampler[Any]:
        return DistributedSampler(range(SAMPLES), num_replicas=RANKS, rank=RANK, shuffle=True, seed=5)

    first_use = _new(0)  # an optimizer's first step imports much: before the ranks wait for each other
    first_use["model"](x).sum().backward()
    first_use["optimizer"].step()
    with inside.world(RANKS):
        group = dist.new_group(list(range(RANKS)), timeout=timedelta(seconds=inside.MEET_S))
        # What is wanted of the sampler is worked out without the student's function.
        order = sampler()
        wanted = []
        for epoch in range(EPOCHS):
            order.set_epoch(epoch)
            indices = list(order)
            wanted.append([indices[i : i + BATCH] for i in range(0, len(indices), BATCH)])
        parts = _new(10)
        torch.manual_seed(20 + RANK), random.seed(30 + RANK), np.random.seed(40 + RANK)
        for epoch in range(EPOCHS):
            for number, indices in enumerate(wanted[epoch]):
                if (epoch, number) == INTERRUPTED:
                    before = _states(parts)
                    value = save_run(parts, epoch, number, doing="saving the run")
                    changed = [name for name, state in _states(parts).items() if not _same(state, before[name])]
                    if RANK == 0:
                        if not isinstance(value, dict):
                            inside.problem(f"`save_run` returned {_shown(value)}; it must return a dict.", "type")
                        torch.save(value, file.with_suffix(".partial"))
                        os.replace(file.with_suffix(".partial"), file)
                _step(parts, indices, x, group)
        end = _states(parts)
        inside.meet()
        try:
            saved = torch.load(file)
        except Exception as error:
            saved = None
            inside.tell(refused=" ".join(str(error).split())[:200])
        if saved is not None:
            parts = _new(50 + RANK)
            inside.seed_differently()
            np.random.seed(60 + RANK)
            position = load_run(parts, saved, doing="loading the run")
            if not isinstance(position, (tuple, list)) or len(position) != 2 or not all(isinstance(n, numbers.Integral) for n in position):
                inside.problem(f"`load_run` returned {_shown(position)}; it must return two whole numbers, (epoch, batches).", "type")
            after_load = [name for name, state in _states(parts).items() if not _same(state, before[name])]
            restored = _states(parts)
            position = [int(n) for n in position]
            done, first = [], True
            for epoch in range(INTERRUPTED[0], EPOCHS):
                value = rest(sampler(), epoch, INTERRUPTED[1] if first else 0, BATCH, doing=f"asking for the rest of epoch {epoch}")
                done.append(_batches(value))
                first = False
            touched = not all(_same(_states(parts)[name], restored[name]) for name in restored if name.startswith("random"))
            if done == [wanted[INTERRUPTED[0]][INTERRUPTED[1] :], *wanted[INTERRUPTED[0] + 1 :]] and not after_load:
                (inside.folder() / f"good{RANK}").touch()
            inside.meet()
            if len(list(inside.folder().glob("good?"))) == RANKS:
                for batches in done:
                    for indices in batches:
                        _step(parts, indices, x, group)
            differs = [name for name, state in _states(parts).items() if not _same(state, end[name])]
            ranks_own = saved is not None and RANK == 1 and _as_on_rank_0(restored)
            inside.tell(position=position, after_load=after_load, done=done, differs=differs, touched=touched, as_rank_0=ranks_own)
        inside.tell(changed=changed, wanted=[wanted[INTERRUPTED[0]][INTERRUPTED[1] :], *wanted[INTERRUPTED[0] + 1 :]])


def _as_on_rank_0(restored: dict[str, Any]) -> bool:
    """Whether this rank's random numbers are those that rank 0 had at the interruption."""
    torch_state = torch.get_rng_state()
    torch.manual_seed(20)
    same = bool(torch.get_rng_state()[:8].equal(restored["random numbers of torch"][:8]))  # the seed stands at the front of the state
    torch.set_rng_state(torch_state)
    return same


# --- 09.3, 09.4: no ranks needed --------------------------------------------------------------------------------------------


def choose(answer: ModuleType) -> None:
    function = inside.function(answer, "choose", "kept_bytes", "input_bytes", "forward_s", "limit_bytes")
    chosen: list[list[int] | None] = []
    for kept, inputs, seconds, limit in CHOOSE_CASES:
        value = function(list(kept), list(inputs), list(seconds), limit, doing=f"choosing among {len(kept)} blocks")
        if isinstance(value, (set, frozenset)):
            value = sorted(value)
        if value is not None and (not isinstance(value, (list, tuple)) or not all(isinstance(i, numbers.Integral) and not isinstance(i, bool) for i in value)):
            inside.problem(f"`choose` returned {_shown(value)}; it must return a list of indices, or None.", "type")
        chosen.append(None if value is None else [int(i) for i in value])
    inside.tell(chosen=chosen)


def often(answer: ModuleType) -> None:
    again = inside.function(answer, "done_again", "step", "every")
    every = inside.function(answer, "save_every", "step_s", "save_s", "failure_s")
    repeated = [_whole(again(*case, doing=f"asking what a kill at step {case[0]} costs"), "`done_again`") for case in AGAIN_CASES]
    numbers_ = [_whole(every(*case, doing="asking how often to save"), "`save_every`") for case in EVERY_CASES]
    inside.tell(repeated=repeated, numbers=numbers_)


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save(sys.argv[2])
    else:
        {"resume": resume, "choose": choose, "often": often}[sys.argv[1]](inside.load(sys.argv[2]))
