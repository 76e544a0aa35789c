"""Lesson 07 on one rank: what a server answers to a row of calls, and what an answer finds in a log."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from course_utils.rank import report

from .. import rank_side
from .cases import SHAPE

NAMES = {"r": "read", "u": "update", "l": "leave"}

# --- 07.2: bounded staleness ------------------------------------------------------------------------------------------


def bounded(answer: ModuleType, given: list[dict[str, Any]]) -> None:
    """Makes the calls of each case, one after another, and tells after each which reads have been answered."""
    made = rank_side.function(answer, "BoundedServer", "weights", "lr", "trainers", "ahead")
    wait = Future.wait

    def waits(future: Future[Any]) -> Any:
        if not future.done():
            rank_side.problem(
                "The server waits for a future in one of its own methods. Nobody else could call it meanwhile.", "waits"
            )
        return wait(future)

    Future.wait = waits
    rank_side.tell(cases=[_Script(made, case).run() for case in given])


class _Script:
    """One case: the calls to one server, and what has come of them."""

    def __init__(self, made: Any, case: dict[str, Any]):
        self.calls, self.gradients = case["calls"].split(), [_tensor(row) for row in case["gradients"]]
        weights = _tensor(case["start"])
        doing = f"making a server for {case['trainers']} trainers, ahead={case['ahead']}"
        self.server = made(weights, case["lr"], case["trainers"], case["ahead"], doing=doing)
        for method in NAMES.values():
            if not callable(getattr(self.server, method, None)):
                rank_side.problem(f"The class `BoundedServer` has no method `{method}`. Keep its name.", "missing")
        weights.fill_(torch.nan)  # it's the caller's, and the server should have its own
        self.elsewhere = self._waits_elsewhere(made)
        self.open: dict[int, Future[Any]] = {}
        self.held: dict[int, tuple[Tensor, list[float]]] = {}  # what trainers were given, and what it was

    def _waits_elsewhere(self, made: Any) -> Future[Any] | None:
        """A read that another server doesn't answer, and never will, since nobody calls that one again."""
        other = made(torch.zeros(SHAPE, dtype=torch.float64), 1.0, 2, 0, doing="making another server")
        if not _answered(other.read(0)):
            return None
        other.update(0, torch.ones(SHAPE, dtype=torch.float64))
        future = other.read(0)
        return None if _answered(future) else future

    def run(self) -> list[dict[str, Any]]:
        told = []
        for number, call in enumerate(self.calls, 1):
            kind, trainer = call[0], int(call[1:])
            if kind == "u" and trainer in self.open:
                break  # it can't have computed a gradient yet: what differs was told before
            report(
                call=f"trainer {trainer} called `{NAMES[kind]}` ({' '.join(self.calls[max(0, number - 8) : number])})"
            )
            age = self._call(kind, trainer)
            report(call="")
            changed = [t for t, (tensor, was) in self.held.items() if tensor.flatten().tolist() != was]
            told.append({"answers": self._answers(), "age": age, "changed": changed})
        if len(told) == len(self.calls) and _answered(self.elsewhere):
            rank_side.problem("A server answers a read that was made to another one.", "another server")
        return told

    def _call(self, kind: str, trainer: int) -> int | None:
        if kind == "l":
            self.server.leave(trainer)
            return None
        if kind == "r":
            future = self.server.read(trainer)
            if not isinstance(future, Future):
                rank_side.problem(
                    f"`read` returned {rank_side.shown(future)}; it must return a torch.futures.Future.", "no future"
                )
            self.open[trainer] = future
            return None
        tensor, _ = self.held.pop(trainer)
        tensor.fill_(torch.nan)  # a trainer may do with its copy what it likes
        gradient = self.gradients.pop(0)
        before = gradient.clone()
        age = rank_side.whole(self.server.update(trainer, gradient), "`update`")
        if not torch.equal(before, gradient):
            rank_side.problem(
                "`update` changed the gradient that it was given. It belongs to the caller.", "argument changed"
            )
        return age

    def _answers(self) -> list[tuple[int, int, list[float]]]:
        """The reads that have been answered since the last call: trainer, version, weights."""
        found = []
        for trainer in [t for t, future in self.open.items() if future.done()]:
            value = self.open.pop(trainer).wait()
            if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Tensor)):
                rank_side.problem(
                    f"A read is answered with {rank_side.shown(value)}; it must be a tuple of the version and the"
                    " weights.",
                    "type",
                )
            version, weights = rank_side.whole(value[0], "`read`, for the version,"), value[1]
            if weights.shape != SHAPE or weights.dtype != torch.float64:
                rank_side.problem(
                    f"A read is answered with weights of shape {tuple(weights.shape)} and {weights.dtype}; it was"
                    f" made with {SHAPE} and torch.float64.",
                    "type",
                )
            self.held[trainer] = weights, weights.flatten().tolist()
            found.append((trainer, version, self.held[trainer][1]))
        return found


def _answered(future: Any) -> bool:
    return isinstance(future, Future) and future.done()


def _tensor(row: list[float]) -> Tensor:
    return torch.tensor(row, dtype=torch.float64).view(SHAPE)


# --- 07.3: overwritten updates ----------------------------------------------------------------------------------------


def overwritten(answer: ModuleType, given: list[list[list[int]]]) -> None:
    """Tells what the answer finds in each log, as pairs."""
    function = rank_side.function(answer, "lost", "log")
    found = []
    for lines in given:
        value = function([tuple(line) for line in lines], doing=f"reading a log of {len(lines)} lines")
        rank_side.must_return(
            isinstance(value, dict), "lost", value, "a dict, from the version of each lost update to a trainer"
        )
        found.append(
            [
                (rank_side.whole(k, "`lost`, for a version,"), rank_side.whole(v, "`lost`, for a trainer,"))
                for k, v in value.items()
            ]
        )
    rank_side.tell(found=found)
