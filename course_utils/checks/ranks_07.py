"""Lesson 07 on the ranks: remote calls that count how many are under way, threads that race for a server, and a counter in shared memory."""

from __future__ import annotations

import fcntl
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor

from course_utils.checks import inside
from course_utils.checks.cases_07 import ADDITIONS, CALLS, LR, STALENESS, THREADS, UPDATES, WIDTH
from course_utils.checks.inside import RANK, RANKS

PATIENCE_S = 1.0  # how long a call waits for the others that should be under way with it
STUCK_S = 6.0  # a lock that nobody gives back


def _join() -> list[str]:
    """The names of the other workers; all ranks join."""
    inside.meet()  # a slow import is no fault of the answer
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=RANKS)
    return [f"worker{i}" for i in range(1, RANKS)]


# --- 07.1: overlap remote calls -------------------------------------------------------------------------------------------


def visit(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on a worker: waits until as many calls as belong together have begun, and tells how many it saw. The first jobs take longest."""
    if job.get("raises"):
        raise ValueError("job 1 has no answer")
    here, begun, every = inside.folder(), f"begun.{job['case']}", f"all.{job['case']}"
    (here / f"{begun}.{job['job']}").touch()
    until = time.monotonic() + PATIENCE_S
    while (seen := len(list(here.glob(f"{begun}.*")))) < job["of"] and not (here / every).exists() and time.monotonic() < until:
        time.sleep(0.005)
    if seen == job["of"]:
        (here / every).touch()  # for those that look when the first has gone again
    elif (here / every).exists():
        seen = job["of"]
    (here / f"{begun}.{job['job']}").rename(here / f"done.{job['case']}.{job['job']}")
    time.sleep(0.04 * max(0, job["of"] - job["job"]))
    return {"job": job["job"], "on": RANK, "seen": seen}


def overlap(answer: ModuleType) -> None:
    """Rank 0 has the answer call the others."""
    function = inside.function(answer, "ask_all", "workers", "function", "jobs")
    workers = _join()
    if RANK == 0:
        found = []
        for case, n in enumerate(CALLS):
            jobs = [{"case": case, "job": i, "of": n} for i in range(n)]
            found.append(_answers(function(workers, visit, jobs, doing=f"asking for {n} jobs"), n))
        raised = ""
        try:
            function(workers, visit, [{"case": "bad", "job": i, "of": 1, "raises": i == 1} for i in range(3)], doing="asking for a job that raises")
        except Exception as error:
            raised = str(error)
        inside.tell(found=found, raised=raised)
    rpc.shutdown()


def _answers(value: Any, n: int) -> list[dict[str, Any]]:
    if not isinstance(value, (list, tuple)):
        inside.problem(f"`ask_all` returned a {type(value).__name__} for {n} jobs; it must return a list of answers.", "type")
    for i, item in enumerate(value):
        if not (isinstance(item, dict) and "seen" in item):
            hint = "a reference or a future, and no answer yet" if hasattr(item, "wait") or hasattr(item, "to_here") else "not what the function answered"
            inside.problem(f"Entry {i} of the list that `ask_all` returned is a {type(item).__name__}: {hint}.", "not awaited")
    return list(value)


# --- 07.2: a server's update ------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.as_subclass(Tensor)
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v) for v in value)
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__")


class Slow(Tensor):
    """A tensor whose operations take a while, and change it in two halves, as those of a large one do: what races here is sure to be seen."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        changes = name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        target = args[0] if args and isinstance(args[0], Slow) else None
        args, kwargs = _plain(args), _plain(kwargs or {})
        if changes and target is not None and args[0].shape == (WIDTH,) and name not in ("requires_grad_", "share_memory_"):
            half = WIDTH // 2
            for rows in (slice(0, half), slice(half, None)):
                other = [a[rows] if isinstance(a, Tensor) and a.shape == (WIDTH,) else a for a in args[1:]]
                func(args[0][rows], *other, **kwargs)
                time.sleep(0.001)
            return target
        result = func(*args, **kwargs)
        if name not in ("__get__", "__set__", "numel", "size", "dim", "__len__", "__format__", "__repr__", "tolist", "data_ptr"):
            time.sleep(0.001)
        return result.as_subclass(Slow) if isinstance(result, Tensor) else result


def server(answer: ModuleType) -> None:
    """Calls the answer's server from several threads at once, as calls from trainers come."""
    made = inside.function(answer, "ParameterServer", "weights", "lr")
    gradient = torch.ones(WIDTH)
    one = made(torch.zeros(WIDTH), LR, doing="making a server")
    for method in ("read", "update"):
        if not callable(getattr(one, method, None)):
            inside.problem(f"The class `ParameterServer` has no method `{method}`. Keep its name as it was given.", "missing")
    start = _read(one, "reading from it")
    stale = one.update(gradient, 0)
    version, weights = _read(one, "reading again")
    alone = {"start": start[0], "stale": stale, "version": version, "weights": weights.tolist(), "copy": bool((start[1] == 0).all())}
    _refused(one, gradient)
    served = made(torch.zeros(WIDTH).as_subclass(Slow), LR)
    log: dict[str, list[Any]] = {"before": [], "reads": [], "ended": []}

    def trainer() -> None:
        sys.settrace(_lingering(answer))
        for _ in range(UPDATES):
            _update(served, gradient, log)
        log["ended"].append(True)

    def reader() -> None:
        sys.settrace(_lingering(answer))
        until = time.monotonic() + STUCK_S / 2
        while len(log["ended"]) < THREADS and time.monotonic() < until:
            log["reads"].append(served.read())

    together(*[trainer] * THREADS, *[reader] * 2)
    version, weights = served.read()
    reads = [(v, sorted(set(_plain(w).div(-LR).round().int().tolist()))) for v, w in log["reads"]]
    inside.tell(alone=alone, version=version, applied=_plain(weights).div(-LR).tolist(), before=log["before"], reads=reads)


def _lingering(answer: ModuleType) -> Callable[..., Any]:
    """A trace function: between two lines of the answer this thread pauses, so that others come in between where no lock keeps them out."""

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_globals is not vars(answer):
            return None
        if event == "line":
            time.sleep(random.uniform(0, 0.004))  # at random, or threads that wait for each other always meet at the same line
        return trace

    return trace


def _read(made: Any, doing: str) -> tuple[int, Tensor]:
    value = made.read()
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int) and isinstance(value[1], Tensor)):
        inside.problem(f"`read` returned {type(value).__name__} while {doing}; it must return a tuple of the version and the weights.", "type")
    return value


def _update(served: Any, gradient: Tensor, log: dict[str, list[Any]]) -> None:
    read = served.read()
    log["reads"].append(read)
    read_version = read[0]
    stale = served.update(gradient.as_subclass(Slow), read_version)
    if not isinstance(stale, int) or isinstance(stale, bool):
        inside.problem(f"`update` returned {type(stale).__name__}; it must return the staleness, an int.", "type")
    log["before"].append(read_version + stale)  # the version that this update found


def _refused(made: Any, gradient: Tensor) -> None:
    """An update that raises must leave the lock free."""
    try:
        made.update(gradient[:2], 0)
    except Exception:
        pass
    else:
        inside.problem("`update` took a gradient of another shape than the weights' without complaint.", "shape")
    together(lambda: made.read(), stuck=("After an `update` that raised, the next `read` never came back: the lock was not given back.", "lock kept"))


def together(*tasks: Callable[[], Any], stuck: tuple[str, str] = ("Some calls never came back: a thread waits for a lock for ever.", "deadlock")) -> None:
    """Run tasks on threads of their own, all at once; raises the first exception, ends the rank when one does not end."""
    failed: list[BaseException] = []

    def run(task: Callable[[], Any]) -> None:
        try:
            task()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    until = time.monotonic() + STUCK_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if failed:
        raise failed[0]
    if any(thread.is_alive() for thread in threads):
        inside.problem(*stuck)


# --- 07.3: measure staleness ------------------------------------------------------------------------------------------------


class Served:
    """A server whose weights tell their version; between a read and the next update, `others` updates may come in between."""

    def __init__(self) -> None:
        self.version, self.reads = 7, 0  # it has served before
        self.used: list[tuple[int, int]] = []

    def read(self) -> tuple[int, Tensor]:
        self.reads += 1
        return self.version, torch.full((4,), float(self.version))

    def update(self, gradient: Tensor) -> int:
        self.used.append((int(gradient[0]), self.version))  # the version that it was computed from, and that it found
        self.version += 1
        return self.version

    def others(self, times: int) -> None:
        self.version += times

    def told(self) -> tuple[int, list[tuple[int, int]]]:
        return self.reads, self.used


def staleness(answer: ModuleType) -> None:
    """Rank 0 has the server, rank 1 trains; the gradients of the check let others update meanwhile, as often as the case says."""
    function = inside.function(answer, "train", "server", "gradient_of", "steps")
    _join()
    if RANK == 1:
        found = []
        for case in STALENESS:
            served = rpc.remote("worker0", Served)
            left = iter(case)

            def gradient_of(weights: Tensor, served: Any = served, left: Any = left) -> Tensor:
                served.rpc_sync().others(next(left, 0))
                return weights.clone()

            value = function(served, gradient_of, len(case), doing=f"training {len(case)} steps")
            if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
                inside.problem(f"`train` returned {_kind(value)}; it must return a list of int, one for each step.", "type")
            reads, used = served.rpc_sync().told()
            found.append({"said": value, "reads": reads, "used": used})
        inside.tell(found=found)
    rpc.shutdown()


def _kind(value: Any) -> str:
    return f"a list of {type(value[0]).__name__}" if isinstance(value, list) and value else "nothing" if value is None else f"a {type(value).__name__}"


# --- 07.4: a racing counter -------------------------------------------------------------------------------------------------


def _counter(name: str) -> Tensor:
    """A number in memory that all ranks share."""
    path = inside.folder() / name
    if RANK == 0:
        path.write_bytes(bytes(8))
    inside.meet()
    return torch.from_file(str(path), shared=True, size=1, dtype=torch.int64)


def racing(answer: ModuleType) -> None:
    function = inside.function(answer, "racing_add", "counter", "times")
    alone = torch.zeros(1, dtype=torch.int64)
    function(alone, ADDITIONS, doing="adding alone")
    counter = _counter("counter")
    function(counter, ADDITIONS, doing=f"adding with {RANKS - 1} other processes")
    inside.meet()
    inside.tell(alone=int(alone), together=int(counter))


class Watched(Tensor):
    """A counter that is slow between reading and writing, so that what is not guarded is sure to be lost."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        args, kwargs = _plain(args), _plain(kwargs or {})
        if name in ("__iadd__", "add_", "__isub__", "sub_"):
            result = (torch.add if "add" in name else torch.sub)(*args, **kwargs)
            time.sleep(0.0005)
            return args[0].copy_(result).as_subclass(cls)
        result = func(*args, **kwargs)
        if name in ("item", "__getitem__", "clone", "__int__", "__add__", "add", "tolist", "detach", "__radd__"):
            time.sleep(0.0005)
        return result.as_subclass(cls) if name in ("detach", "view", "__get__") and isinstance(result, Tensor) else result


class Lock:
    """A lock that processes share through a file; counts how often this one took it."""

    def __init__(self, path: Path):
        self.file, self.taken, self.held = open(path, "a"), 0, False

    def acquire(self, *_: Any, **__: Any) -> bool:
        if self.held:
            inside.problem("A process takes the lock while it has it: it never gave it back, and would wait for itself.", "deadlock")
        until = time.monotonic() + STUCK_S
        while True:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > until:
                    inside.problem(f"A process waited {STUCK_S:.0f} s for the lock: another one took it, and never gave it back.", "deadlock")
                time.sleep(0.0002)
            else:
                self.taken += 1
                self.held = True
                return True

    def release(self) -> None:
        self.held = False
        fcntl.flock(self.file, fcntl.LOCK_UN)
        time.sleep(0.0005)  # lets one that waits have it

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def mended(answer: ModuleType) -> None:
    function = inside.function(answer, "safe_add", "counter", "lock", "times")
    counter, lock = _counter("counter"), Lock(inside.folder() / "lock")
    inside.meet()
    function(counter.as_subclass(Watched), lock, ADDITIONS, doing=f"adding with {RANKS - 1} other processes")
    lock.release()
    inside.meet()
    inside.tell(together=int(counter), taken=lock.taken)


if __name__ == "__main__":
    tasks = {"overlap": overlap, "server": server, "staleness": staleness, "racing": racing, "mended": mended}
    tasks[sys.argv[1]](inside.load(sys.argv[2]))
