"""Lesson 09, exercise 5: what a step holds of activations, counted while each of the four programs runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from .. import rank_side
from .cases import EACH, ONE, PLAIN, PROGRAMS, SECOND, CurveModel

KIB = 1024


class Held(TorchDispatchMode):
    """Counts the bytes of all that's computed while `counting` is set, and is still there: `now`."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.counting = 0, False
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.counting:
            given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
            for t in tree_leaves(out):
                if isinstance(t, Tensor):
                    self._add(t.untyped_storage(), given)  # a view has the storage of its base
        return out

    def _add(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key not in self.known and key not in given:
            self.known.add(key)
            self.now += nbytes
            weakref.finalize(storage, self._remove, key, nbytes).atexit = False

    def _remove(self, key: int, nbytes: int) -> None:
        self.known.discard(key)
        self.now -= nbytes


class _Begin(torch.autograd.Function):
    """Does nothing in forward. In backward it's the first of its block: it asks for what it has saved, so a block in a
    checkpoint is computed again, and then it calls `note`."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, note: Callable[[], None]) -> Tensor:
        ctx.save_for_backward(h)
        ctx.note = note
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        saved = ctx.saved_tensors
        ctx.note()
        del saved
        return grad, None


class _Block(nn.Module):
    """Linear layers, each with a tanh, which keeps its output for backward; `note` is called when backward begins."""

    def __init__(self, width: int, inside: list[int], note: Callable[[], None]) -> None:
        super().__init__()
        sizes = [width, *inside, width]
        self.layers = nn.Sequential(*(layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())))
        self.note = note

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = _Begin.apply(self.layers(h), self.note)
        return out


def parts(program: str, n: int) -> list[tuple[bool, list[int]]]:
    """What a program calls one after another: whether it's a checkpoint, and the blocks in it, from 0."""
    if program == ONE:
        return [(True, list(range(n)))]
    again: dict[str, Sequence[int]] = {PLAIN: (), EACH: range(n), SECOND: range(1, n, 2)}
    return [(i in again[program], [i]) for i in range(n)]


def curve(model: CurveModel, program: str) -> list[float]:
    """KiB held after each block's forward; then for each block from the last on, as its backward begins and ends."""
    rows, width, insides = model
    held, noted, n = Held(), list[float](), len(insides)

    def note(*_: Any) -> None:
        noted.append(held.now / KIB)

    blocks = [_Block(width, inside, note) for inside in insides]

    def run(numbers: list[int], h: Tensor) -> Tensor:
        first = len(noted) < n  # otherwise it's computed again, in backward
        held.counting = True
        try:
            for i in numbers:
                if first and h.requires_grad:  # its gradient comes when this block's backward is over
                    h.register_hook(note)
                h = blocks[i](h)
                if first:
                    note()
        finally:  # a checkpoint stops the second forward with an exception as soon as it has everything
            held.counting = False
        return h

    h = torch.ones(rows, width)
    with held:
        for again, numbers in parts(program, n):
            if again:
                h = checkpoint(run, numbers, h, use_reentrant=False, preserve_rng_state=False)
            else:
                h = run(numbers, h)
        loss = h.sum()
        del h
        loss.backward()
        note()
    return noted


def run(load: Callable[[], Any], given: list[CurveModel]) -> None:
    """Runs all four programs on every model. The answer isn't loaded here."""
    rank_side.tell(curves=[{program: curve(model, program) for program in PROGRAMS} for model in given])
