"""Lesson 04 without an answer: what one process computes, in a launch of its own, so that no answer can look at it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from .. import rank_side
from ..rank_side import RANK
from .cases import FILE, LR
from .checkpoint import NEXT, Trained, bare, new, slower, step, told
from .ranks import Toy, flat, held_out, points


def trainer(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """Trains on the samples of both ranks, `given["batches"]`, from the weights `given["start"]`; tells the weights
    after each step, and the accuracy after every `given["evaluate_every"]` steps."""
    torch.set_default_dtype(torch.float64)
    dataset, (x, y) = points(), held_out().tensors
    twin = Toy()
    twin.load_state_dict(
        {name: torch.tensor(given["start"][name]).reshape(value.shape) for name, value in twin.state_dict().items()}
    )
    optimizer = torch.optim.SGD(twin.parameters(), lr=LR)
    weights, accuracies = [], []
    for number, batch in enumerate(given["batches"], 1):
        if not batch:
            break
        optimizer.zero_grad()
        cross_entropy(twin(dataset.x[batch]), dataset.y[batch]).backward()
        optimizer.step()
        weights.append(flat(twin).tolist())
        if number % given["evaluate_every"] == 0:
            accuracies.append(float((twin(x).argmax(1) == y).double().mean()))
    log_frequency = dataset.y.bincount().div(len(dataset)).log().tolist()
    rank_side.tell(weights=weights, accuracies=accuracies, log_frequency=log_frequency)


def saved(load: Callable[[], ModuleType], given: str) -> None:
    """What the file of 04.5 holds: the names, or None if it can't be read, and the weights in a plain model."""
    torch.set_default_dtype(torch.float64)
    try:
        state = torch.load(Path(given) / FILE, map_location="cpu")
        names, twin = list(state), Toy()
    except Exception:
        return rank_side.tell(names=None, weights=None)
    fits = names == list(twin.state_dict())
    if fits:
        twin.load_state_dict(state)
    rank_side.tell(names=names, weights=flat(twin).tolist() if fits else None)


# --- 04.4 -------------------------------------------------------------------------------------------------------------


def checkpoint(load: Callable[[], ModuleType], given: list[str]) -> None:
    """The trainings of 04.4 without a checkpoint. Tells the states that are saved there, and the model after one more
    step of a plain model from each; of a DDP model from those in `given`."""
    with rank_side.world(2):
        wrapped = _trained(seed=1, wrap=True)
        states = {"first": _states(wrapped)}
        step(wrapped, 3)
        states["newer"] = _states(wrapped)
    plain = _trained(seed=2, wrap=False)
    states["plain"] = _states(plain)
    step(plain, 4)
    states["after"] = _states(plain)
    shared = rank_side.folder() / "states.pt"
    if RANK == 0:  # the ranks' buffers differ, and those of rank 0 are saved
        torch.save(states, shared)
    rank_side.meet()
    states = torch.load(shared)
    found = {name: {"plain": _next(state, wrap=False)} for name, state in states.items()}
    with rank_side.world(2):
        for name in given:
            found[name]["wrapped"] = _next(states[name], wrap=True)
    rank_side.tell(twins={name: both | {"saved": _told(states[name])} for name, both in found.items()})


def _trained(seed: int, wrap: bool) -> Trained:
    trained = new(seed, wrap)
    for number in range(3):
        step(trained, number)
    slower(trained)
    return trained


def _states(trained: Trained) -> dict[str, Any]:
    model, optimizer = trained
    return copy.deepcopy({"model": bare(model).state_dict(), "optimizer": optimizer.state_dict()})


def _resumed(state: dict[str, Any], wrap: bool) -> Trained:
    model, optimizer = new(seed=6, wrap=wrap)
    bare(model).load_state_dict(state["model"])
    optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    return model, optimizer


def _told(state: dict[str, Any]) -> dict[str, Any]:
    return told(_resumed(state, wrap=False))


def _next(state: dict[str, Any], wrap: bool) -> dict[str, Any]:
    """The model after one more step."""
    resumed = _resumed(state, wrap)
    step(resumed, NEXT)
    return told(resumed)["model"]
