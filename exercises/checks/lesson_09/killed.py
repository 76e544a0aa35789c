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
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset

from course_utils.engines import patience
from course_utils.rank import report

from .. import rank_side
from .cases import EPOCH_STEPS, STEPS
from .disk import Disk

TRAINER = Path(__file__).with_name("trainer.py")
CPU_S = 30  # of a processor, for a program that takes a fraction of a second
MOST_STEPS = 4 * STEPS
MOST_STARTS = 30  # of one folder, with a kill each


def _digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for t in tensors:
        found.update(t.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:12]


class Watch:
    """In a child: says what the program does, and kills it when the time has come."""

    def __init__(self, say: Callable[..., None], kill_step: int):
        self.say, self.kill_step, self.steps = say, kill_step, 0
        self.before: list[Any] = [None, None, None]
        register_module_forward_pre_hook(self.forward)
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)

    def forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if sum(1 for _ in module.parameters()) >= 4 and inputs:  # the model, not one of its layers
            python = hashlib.sha256(repr(random.getstate()).encode()).hexdigest()[:12]
            self.before = [python, _digest(torch.get_rng_state()), _digest(inputs[0])]

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        states = [v for p in weights for v in optimizer.state.get(p, {}).values() if isinstance(v, Tensor)]
        lr = float(optimizer.param_groups[0]["lr"])
        self.row = [_digest(*weights), _digest(*states), lr, *self.before]

    def after_step(self, *_: Any) -> None:
        self.steps += 1
        self.say(row=self.row)
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
    kill_event: int = -1,
    limit: int = -1,
    full: bool = False,
    broken: bool = False,
) -> dict[str, Any]:
    """Run the program in a child. It's killed after `kill_step` steps, or just before the thing number `kill_event`
    that it does to its folder. No file may grow past `limit` bytes: there the child is killed, or with `full` gets an
    OSError. With `broken` a file's `fsync` gets one. Returns what it said, how it ended, and the result it left."""
    folder.mkdir(exist_ok=True)
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:

        def say(**what: Any) -> None:
            os.write(write, json.dumps(what).encode() + b"\n")

        os.close(read)
        disk = Disk(folder, say, kill_event, broken)
        Watch(say, kill_step)
        _be(program, folder, seed, say, disk, limit, full)
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
    kind = "step" if kill_step else "event" if kill_event >= 0 else "bytes" if limit >= 0 else ""
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
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2).step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    torch.load(file)
    list(DataLoader(TensorDataset(torch.zeros(2, 2)), shuffle=True))


def twin(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """The program as it was handed out, never killed, for each seed."""
    _warm()
    rank_side.tell(runs=[start(str(TRAINER), rank_side.folder() / f"twin{s}", s) for s in given["seeds"]])


def kills(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """Run the answer, whole and killed in many ways, and tell all that was seen. It's never loaded in this process."""
    program, (seed, other) = given["program"], given["seeds"]
    base = (rank_side.folder() / "kills").resolve()
    base.mkdir()
    os.chdir(base)
    _warm()
    patience.begin()
    whole = base / "whole"
    first = start(program, whole, seed)
    if first.get("printed"):
        report(printed=first["printed"])
    rank_side.tell(first=first)
    if first["ended"] != "returned" or not first["result"] or first.get("endless"):
        return
    sizes = [e["size"] for e in first["events"] if e["what"] == "rename"]
    size = sizes[0] if sizes else max(p.stat().st_size for p in whole.iterdir())
    again = start(program, whole, seed)
    rank_side.tell(again=again, other=start(program, Path("other"), other))  # relative to the working folder

    def chain(name: str, *plans: dict[str, Any]) -> list[dict[str, Any]]:
        runs = [start(program, base / name, seed, **plan) for plan in plans]
        return [*runs, start(program, base / name, seed)]

    rank_side.tell(moments=[chain(f"step{n}", {"kill_step": n}) for n in given["moments"]])
    rank_side.tell(restarts=chain("restarts", *({"kill_step": n} for n in given["restarts"])))
    shares = [{"limit": int(share * size)} for share in given["shares"]]
    rank_side.tell(bytes=chain("bytes", *shares, {"kill_step": EPOCH_STEPS + 3}, *shares))
    rank_side.tell(
        events=_by_events(program, base / "events", seed, first["events"]),
        late=_at_the_end(chain, first["events"]),
        full=_full(program, base, seed, size),
        result=_in_the_result(chain, base, size=(whole / "result.pt").stat().st_size),
    )


def _each(events: list[dict[str, Any]]) -> int:
    """How many things the program does to its folder for each file that gets its name."""
    return -(-len(events) // max(1, sum(e["what"] == "rename" for e in events)))


def _by_events(program: str, folder: Path, seed: int, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One start after the other in one folder, each killed a little later than the one before, until one gets to its
    end."""
    cycle = _each(events) + 2  # more than one file takes, also if a start tidies up first
    runs: list[dict[str, Any]] = []
    for number in range(MOST_STARTS):
        runs.append(start(program, folder, seed, kill_event=number % cycle))
        if runs[-1]["ended"] != "killed":
            return runs
    return [*runs, start(program, folder, seed)]


def _at_the_end(chain: Callable[..., Any], events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Killed just before each of the last things that it does to its folder: those which make the result."""
    last = range(max(0, len(events) - _each(events)), len(events))
    return [chain(f"late{n}", {"kill_event": n}) for n in last]


def _in_the_result(chain: Callable[..., Any], base: Path, size: int) -> list[dict[str, Any]]:
    """Killed in the middle of the result, all else being done; and the start after it."""
    shutil.copytree(base / "whole", base / "result")
    (base / "result" / "result.pt").unlink()
    found: list[dict[str, Any]] = chain("result", {"limit": size // 2})
    return found


def _full(program: str, base: Path, seed: int, size: int) -> list[dict[str, Any]]:
    """From a checkpoint on, with a disk that gets full, and with one that can't write what it's asked to sync. Each
    time what it did, which files were there before, and the start after it."""
    seen = []
    for number, plan in enumerate([{"limit": size // 5}, {"limit": size * 7 // 10}, {"broken": True}]):
        folder = base / f"full{number}"
        begun = start(program, folder, seed, kill_step=EPOCH_STEPS + 3)
        failed = start(program, folder, seed, full=True, **plan)  # type: ignore[arg-type]
        more = start(program, folder, seed)
        seen.append({"begun": begun, "failed": failed, "more": more, "broken": "broken" in plan})
        shutil.rmtree(folder)
    return seen
