"""Lesson 09.1 in child processes: a training program runs as `python train.py FOLDER SEED`, is killed at a moment
that's counted in steps, bytes or things done to the folder, and is started again. Also the twin that nobody kills."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import os
import random
import resource
import runpy
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset

from course_utils.launching.supervisor import patience
from course_utils.rank import report

from .. import rank_side
from .cases import EPOCH_STEPS, STEPS
from .disk import Disk

TRAINER = Path(__file__).with_name("trainer.py")
CPU_S = 15  # of a processor, for a program that takes a fraction of a second
MOST_STEPS = 4 * STEPS
MOST_STARTS = 30  # of one folder, with a kill each
BROKEN = {"broken": True}


class EndlessError(Exception):
    """A start of the answer doesn't come to its end. One is enough."""


def _digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for t in tensors:
        found.update(t.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:12]


class Watch:
    """In a child: says what the program does, and kills it when the time has come."""

    def __init__(self, say: Callable[..., None], kill_step: int):
        self.say, self.kill_step, self.steps, self.batches = say, kill_step, 0, 0
        self.before: list[Any] = [None, None, None]
        register_module_forward_pre_hook(self.forward)
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)

    def forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if sum(1 for _ in module.parameters()) >= 4 and inputs:  # the model, not one of its layers
            python = hashlib.sha256(repr(random.getstate()).encode()).hexdigest()[:12]
            self.batches += module.training and torch.is_grad_enabled()
            self.before = [python, _digest(torch.get_rng_state()), _digest(inputs[0])]

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        states = [v for p in weights for v in optimizer.state.get(p, {}).values() if isinstance(v, Tensor)]
        lr = float(optimizer.param_groups[0]["lr"])
        self.row = [_digest(*weights), _digest(*states), lr, *self.before]

    def after_step(self, *_: Any) -> None:
        self.steps += 1
        self.say(row=self.row, batches=self.batches)
        if self.steps > MOST_STEPS:
            self.say(endless=True)
        if self.steps == self.kill_step or self.steps > MOST_STEPS:
            os.kill(os.getpid(), signal.SIGKILL)


def start(
    program: str,
    folder: Path,
    seed: int,
    *,
    kill_step: int = 0,
    kill_new: Collection[str] | None = None,
    limit: int = -1,
    full: bool = False,
    broken: bool = False,
) -> dict[str, Any]:
    """Run the program in a child. It's killed after `kill_step` steps, or just before the first thing that it does to
    its folder and that isn't in `kill_new`. No file may grow past `limit` bytes: there the child is killed, or with
    `full` gets an OSError. With `broken` a file's `fsync` gets one. Returns what it said, how it ended, and the result
    that it left."""
    folder.mkdir(exist_ok=True)
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:

        def say(**what: Any) -> None:
            os.write(write, json.dumps(what).encode() + b"\n")

        os.close(read)
        disk = Disk(folder, say, kill_new, broken)
        watch = Watch(say, kill_step)
        _be(program, folder, seed, lambda **what: say(**what, batches=watch.batches), disk, limit, full)
    os.close(write)
    with open(read) as lines:
        said = [json.loads(line) for line in lines]
    _, status = os.waitpid(child, 0)
    run: dict[str, Any] = {"rows": [], "events": [], "ended": "killed" if os.WIFSIGNALED(status) else "left"}
    for what in said:
        for key, value in what.items():
            if key in ("row", "event"):
                run[f"{key}s"].append(value)
            else:
                run[key] = value
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        run["endless"] = True
    if run.get("endless"):
        rank_side.tell(endless=True)
        raise EndlessError
    kind = "step" if kill_step else "event" if kill_new is not None else "bytes" if limit >= 0 else ""
    return {
        **run,
        "kind": kind,
        "result": _result(folder),
        "files": {p.name: p.stat().st_size for p in folder.iterdir()},
    }


def _be(
    program: str, folder: Path, seed: int, say: Callable[..., None], disk: Disk, limit: int, full: bool
) -> NoReturn:
    """Become the program, as far as it can tell."""
    printed = sys.stdout = sys.stderr = io.StringIO()
    try:
        torch.seed(), random.seed()
        sys.argv = [program, str(folder), str(seed)]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN if full else signal.SIG_DFL)
        if limit >= 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        disk.on = True
        runpy.run_path(program, run_name="__main__")
        gc.collect()
        say(ended="returned", printed=printed.getvalue()[:1500])
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            say(ended="returned", printed=printed.getvalue()[:1500])
        else:
            say(ended="raised", error=_error(error, program))
    os._exit(0)


def _error(error: BaseException, program: str) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "type": type(error).__name__,
        "message": " ".join(str(error).split())[:300],
        "lines": [f"line {f.lineno + 1} of the cell: `{f.line}`" for f in frames if f.filename == program and f.lineno],
        "loading": any(f.name == "load" and f.filename.endswith("serialization.py") for f in frames),
    }


def _result(folder: Path) -> dict[str, Any] | None:
    """Digests of the result that lies in the folder; None if there's none."""
    path = folder / "result.pt"
    if not path.exists():
        return None
    try:
        found = torch.load(path)
        weights = _digest(*found["weights"].values())
        return {"weights": weights, "losses": [float(n) for n in found["losses"]]}
    except Exception as error:
        return {"unreadable": f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"}


def _warm() -> None:
    """Have what the program uses imported before the forks. No backward: autograd can't be forked after it has started
    its threads, which it does on a machine with GPUs."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    torch.load(file)
    list(DataLoader(TensorDataset(torch.zeros(2, 2)), shuffle=True))
    gc.collect()
    gc.freeze()  # or each child's collection would touch, and so copy, all of torch


def kills(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """Run the answer, whole and killed in many ways, and tell all that was seen. It's never loaded in this process.

    Then the program as it was handed out, never killed. Before, no start of the answer could have seen what comes out.
    """
    program = given["program"]
    base = (rank_side.folder() / "kills").resolve()
    base.mkdir()
    os.chdir(base)
    _warm()
    patience.begin()
    with suppress(EndlessError):
        first = start(program, base / "whole", given["seeds"][0])
        if first.get("printed"):
            report(printed=first["printed"])
        rank_side.tell(first=first)
        if first["ended"] == "returned" and first["result"]:
            _kills(program, base, given, first)
    rank_side.tell(twins=[start(str(TRAINER), base / f"twin{seed}", seed) for seed in given["seeds"]])


def _kills(program: str, base: Path, given: dict[str, Any], first: dict[str, Any]) -> None:
    seed, other = given["seeds"]
    again = start(program, base / "whole", seed)
    rank_side.tell(again=again, other=start(program, Path("other"), other))  # relative to the working folder

    def chain(name: str, *plans: dict[str, Any], begun: str = "") -> list[dict[str, Any]]:
        """Starts in one folder, killed by these plans, and the one after them. It may begin as a copy of another."""
        if begun:
            shutil.copytree(base / begun, base / name)
        return [start(program, base / name, seed, **plan) for plan in (*plans, {})]

    begun = start(program, base / "begun", seed, kill_step=given["moment"])
    rank_side.tell(moment=[begun, *chain("moment", begun="begun")])
    rank_side.tell(restarts=chain("restarts", *({"kill_step": n} for n in given["restarts"])))
    sizes = [
        e["size"] for e in first["events"] if e["what"] in ("rename", "link")
    ]  # a checkpoint may be removed at the end
    size = max([*first["files"].values(), *sizes])
    torn = [[{"limit": int(share * size)} for share in shares] for shares in given["shares"]]
    rank_side.tell(bytes=chain("bytes", *torn[0], {"kill_step": EPOCH_STEPS + 3}, *torn[1]))
    shutil.copytree(base / "begun", base / "events")
    rank_side.tell(events=[begun, *_by_events(program, base / "events", seed)])
    (base / "whole" / "result.pt").unlink()
    half = {"limit": first["files"]["result.pt"] // 2}
    rank_side.tell(result=chain("result", half, begun="whole"))
    full = [chain(f"full {plan}", {"full": True, **plan}, begun="begun") for plan in ({"limit": size // 2}, BROKEN)]
    rank_side.tell(full=[[begun, *runs] for runs in full])


def _by_events(program: str, folder: Path, seed: int) -> list[dict[str, Any]]:
    """One start after the other in one folder, each killed just before something that none before it has done to the
    folder, until there's nothing new."""
    runs: list[dict[str, Any]] = []
    seen: set[str] = set()
    while len(runs) < MOST_STARTS:
        runs.append(start(program, folder, seed, kill_new=seen))
        if runs[-1]["ended"] != "killed":
            return runs
        seen.add(runs[-1].get("at", ""))
    return [*runs, start(program, folder, seed)]
