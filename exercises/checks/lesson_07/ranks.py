"""Lesson 07 on the ranks: remote calls that count how many are under way, threads that race for a server, and a counter
in shared memory."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor

from .. import rank_side
from ..rank_side import RANK, RANKS
from .cases import CALLS, LR, SHAPE, THREADS, UPDATES, WIDTH, staleness_cases

PATIENCE_S = 2.0  # how long a call waits for the others that should be under way with it
STUCK_S = 4.0  # without any work: a lock that nobody gives back


def _join() -> list[str]:
    """The names of the other workers; all ranks join."""
    rank_side.meet()  # a slow import is no fault of the answer
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=RANKS)
    return [f"worker{i}" for i in range(1, RANKS)]


# --- 07.1: overlap remote calls ---------------------------------------------------------------------------------------


def visit(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on a worker: waits until all calls that belong together have begun, and returns how many it saw. The first
    jobs take longest."""
    if job.get("raises"):
        raise ValueError("job 1 has no answer")
    here, begun, every = rank_side.folder(), f"begun.{job['case']}", f"all.{job['case']}"
    (here / f"{begun}.{job['job']}").touch()
    until = time.monotonic() + PATIENCE_S
    while (
        (seen := len(list(here.glob(f"{begun}.*")))) < job["of"]
        and not (here / every).exists()
        and time.monotonic() < until
    ):
        time.sleep(0.005)
    if seen == job["of"]:
        (here / every).touch()  # for calls that look after the first one has left
    elif (here / every).exists():
        seen = job["of"]
    (here / f"{begun}.{job['job']}").rename(here / f"done.{job['case']}.{job['job']}")
    time.sleep(0.04 * max(0, job["of"] - job["job"]))
    return {"job": job["job"], "on": RANK, "seen": seen}


def where(job: str) -> int:
    """Runs on a worker: which one."""
    return RANK


def overlap(answer: ModuleType) -> None:
    """Rank 0 has the answer call the others."""
    function = rank_side.function(answer, "ask_all", "workers", "function", "jobs")
    everybody = _join()
    if RANK == 0:
        found = []
        for case, n in enumerate(CALLS):
            workers = everybody if case < len(CALLS) - 1 else everybody[:0:-1]  # the last case: two, from the end
            jobs = [{"case": case, "job": i, "of": n} for i in range(n)]
            found.append(_answers(function(workers, visit, jobs, doing=f"asking for {n} jobs"), n))
            if any(answer["seen"] < n for answer in found[-1]):
                break  # each call would wait for the others, in all later cases too
        equal = list(function(everybody, where, ["the same"] * 4, doing="asking for four equal jobs"))
        raised = ""
        try:
            function(
                everybody,
                visit,
                [{"case": "bad", "job": i, "of": 1, "raises": i == 1} for i in range(3)],
                doing="asking for a job that raises",
            )
        except Exception as error:
            raised = str(error)
        rank_side.tell(found=found, equal=equal, raised=raised)
    rpc.shutdown()


def _answers(value: Any, n: int) -> list[dict[str, Any]]:
    if not isinstance(value, (list, tuple)):
        rank_side.problem(
            f"`ask_all` returned a {type(value).__name__} for {n} jobs; it must return a list of answers.", "type"
        )
    for i, item in enumerate(value):
        if not (isinstance(item, dict) and "seen" in item):
            hint = (
                "a reference or a future, but no answer yet"
                if hasattr(item, "wait") or hasattr(item, "to_here")
                else "not what the function answered"
            )
            rank_side.problem(
                f"Entry {i} of the list that `ask_all` returned is a {type(item).__name__}: {hint}.", "not awaited"
            )
    return list(value)


# --- 07.2: a server's update ------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.as_subclass(Tensor)
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v) for v in value)
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__")


class Slow(Tensor):
    """A tensor whose operations take a while, and change it in two halves, as happens with a large one. So a race is
    sure to show."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        changes = name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        target = args[0] if args and isinstance(args[0], Slow) else None
        args, kwargs = _plain(args), _plain(kwargs or {})
        if (
            changes
            and target is not None
            and args[0].shape == (WIDTH,)
            and name not in ("requires_grad_", "share_memory_")
        ):
            half = WIDTH // 2
            for rows in (slice(0, half), slice(half, None)):
                other = [a[rows] if isinstance(a, Tensor) and a.shape == (WIDTH,) else a for a in args[1:]]
                func(args[0][rows], *other, **kwargs)
                time.sleep(0.001)
            return target
        result = func(*args, **kwargs)
        if name not in (
            "__get__",
            "__set__",
            "numel",
            "size",
            "dim",
            "__len__",
            "__format__",
            "__repr__",
            "tolist",
            "data_ptr",
        ):
            time.sleep(0.001)
        return result.as_subclass(Slow) if isinstance(result, Tensor) else result


def server(answer: ModuleType) -> None:
    """Calls the answer's server from several threads at once, as calls from trainers come."""
    made = rank_side.function(answer, "ParameterServer", "weights", "lr")
    gradient, given = torch.ones(SHAPE), torch.zeros(SHAPE)
    one = made(given, LR, doing="making a server")
    for method in ("read", "update"):
        if not callable(getattr(one, method, None)):
            rank_side.problem(
                f"The class `ParameterServer` has no method `{method}`. Keep the name you were given.", "missing"
            )
    start = _read(one, "reading from it")
    stale = one.update(gradient, 0)
    version, weights = _read(one, "reading again")
    alone = {
        "start": start[0],
        "stale": stale,
        "version": version,
        "weights": weights.flatten().tolist(),
        "copy": bool((start[1] == 0).all()),
        "gradient": not bool((gradient == 1).all()),
    }
    given_changed = "An update changed the tensor that the server was made with" if bool((given != 0).any()) else ""
    _refused(one, gradient)
    late: list[Any] = []
    together(lambda: late.append(one.update(gradient, 0)))
    alone["late"] = late[0]
    before = one.read()[1].clone()
    given.fill_(9.0)
    one.read()[1].fill_(9.0)
    after = one.read()[1]
    alone["given"] = given_changed or (
        "" if torch.equal(before, after) else "Writing into what was given or read changed the server's weights"
    )
    gradient = torch.ones(WIDTH)
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
    far = served.update(gradient.as_subclass(Slow), 0)  # a gradient as old as can be
    reads = [(v, sorted(set(_plain(w).div(-LR).round().int().tolist()))) for v, w in log["reads"]]
    rank_side.tell(
        alone=alone | {"far": far},
        version=version,
        applied=_plain(weights).div(-LR).tolist(),
        before=log["before"],
        reads=reads,
    )


PAUSES_S = (0.0, 0.001, 0.002, 0.004, 0.03)


def _lingering(answer: ModuleType) -> Callable[..., Any]:
    """A trace function: this thread pauses between two lines of the answer, so that others get in between unless a lock
    keeps them out."""

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_globals is not vars(answer):
            return None
        if event == "line":
            # At random: otherwise threads that wait for each other would always meet at the same line. And now and then
            # so long that a whole update fits in.
            time.sleep(random.choice(PAUSES_S))
        return trace

    return trace


def _read(made: Any, doing: str) -> tuple[int, Tensor]:
    value = made.read()
    if not (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int) and isinstance(value[1], Tensor)
    ):
        rank_side.problem(
            f"`read` returned {rank_side.shown(value)} while {doing}; it must return a tuple of the version and the"
            " weights.",
            "type",
        )
    return value


def _update(served: Any, gradient: Tensor, log: dict[str, list[Any]]) -> None:
    read = served.read()
    log["reads"].append(read)
    read_version = read[0]
    stale = served.update(gradient.as_subclass(Slow), read_version)
    if not isinstance(stale, int) or isinstance(stale, bool):
        rank_side.problem(f"`update` returned {rank_side.shown(stale)}; it must return the staleness, an int.", "type")
    log["before"].append(read_version + stale)  # the version that this update found


def _refused(made: Any, gradient: Tensor) -> None:
    """An update that raises must change nothing and leave the lock free."""
    before = made.read()
    for other in (gradient[:1], gradient.flatten(), gradient.flatten()[:2], gradient.T, gradient[0, 0]):
        shapes = f"a gradient of shape {tuple(other.shape)} for weights of shape {tuple(gradient.shape)}"
        try:
            made.update(other, 0)
        except ValueError:
            pass
        except Exception as error:
            name = type(error).__name__
            rank_side.problem(f"For {shapes}, `update` raised {name}; it must raise ValueError.", "shape")
        else:
            rank_side.problem(f"`update` took {shapes} without complaint.", "shape")
        seen: list[Any] = []
        together(
            partial(_append_read, made, seen),
            stuck=(
                "After an `update` that raised, the next `read` never came back: the lock was not given back.",
                "lock kept",
            ),
        )
        if seen[0][0] != before[0] or not torch.equal(seen[0][1], before[1]):
            rank_side.problem(
                f"An `update` that raised left version {seen[0][0]} (it was {before[0]}), or other weights.", "shape"
            )


def _append_read(made: Any, seen: list[Any]) -> None:
    seen.append(made.read())


def together(
    *tasks: Callable[[], Any],
    stuck: tuple[str, str] = ("Some calls never came back: a thread waits for a lock for ever.", "deadlock"),
) -> None:
    """Run tasks on threads of their own, all at once. Raises the first exception, and ends the rank if a task never
    ends."""
    failed: list[BaseException] = []

    def run(task: Callable[[], Any]) -> None:
        try:
            task()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    worked, until = time.process_time(), time.monotonic() + STUCK_S
    while (left := [thread for thread in threads if thread.is_alive()]) and time.monotonic() < until:
        left[0].join(0.1)
        if time.process_time() > worked + 0.05:  # somebody goes on, however slowly
            worked, until = time.process_time(), time.monotonic() + STUCK_S
    if failed:
        raise failed[0]
    if any(thread.is_alive() for thread in threads):
        rank_side.problem(*stuck)


# --- 07.3: measure staleness ------------------------------------------------------------------------------------------


class Served:
    """A server whose weights show their version. Between a read and the next update, `others` may count more
    updates."""

    def __init__(self) -> None:
        self.version, self.reads = 7, 0  # it has served before
        self.used: list[tuple[int, int]] = []

    def read(self) -> tuple[int, Tensor]:
        self.reads += 1
        return self.version, torch.full((4,), float(self.version))

    def update(self, gradient: Tensor) -> int:
        self.used.append((int(gradient[0]), self.version))  # the version it was computed from, and the one it found
        self.version += 1
        return self.version

    def others(self, times: int) -> None:
        self.version += times

    def told(self) -> tuple[int, list[tuple[int, int]]]:
        return self.reads, self.used


def staleness(answer: ModuleType) -> None:
    """Rank 0 has the server, and rank 1 trains. While the check computes a gradient, it lets others update as often as
    the case says."""
    function = rank_side.function(answer, "train", "server", "gradient_of", "steps")
    _join()
    if RANK == 1:
        found = []
        for case in staleness_cases(rank_side.launch_seed()):
            served = rpc.remote("worker0", Served)
            left = iter(case)

            def gradient_of(weights: Tensor, served: Any = served, left: Any = left) -> Tensor:
                served.rpc_sync().others(next(left, 0))
                return weights.clone()

            value = function(served, gradient_of, len(case), doing=f"training {len(case)} steps")
            if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
                rank_side.problem(
                    f"`train` returned {_kind(value)}; it must return a list of int, one for each step.", "type"
                )
            reads, used = served.rpc_sync().told()
            found.append({"said": value, "reads": reads, "used": used})
        rank_side.tell(seed=rank_side.launch_seed(), found=found)
    rpc.shutdown()


def _kind(value: Any) -> str:
    return (
        f"a list of {type(value[0]).__name__}"
        if isinstance(value, list) and value
        else "nothing"
        if value is None
        else f"a {type(value).__name__}"
    )
