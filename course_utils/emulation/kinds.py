"""What memory is used for: weights, gradients, the optimizer's state, activations, and what FSDP gathers.

A tensor is an activation until torch says something else: that it's a parameter, or a parameter's gradient.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .imports import after_import
from .plans import flat
from .state import Gpus, MemoryBlock, block

_parameters: dict[int, weakref.ref[torch.Tensor]] = {}  # by id, since tensors compare element by element


def blocks_of(tensor: Any) -> Iterator[MemoryBlock]:
    """The tag of a tensor; of a DTensor, that of its part here."""
    local = getattr(tensor, "_local_tensor", tensor)
    if isinstance(local, torch.Tensor) and (found := block(local)) is not None:
        yield found


def install(gpus: Gpus) -> None:
    """Watch where parameters, gradients and states come from."""

    @contextmanager
    def kind(name: str) -> Iterator[None]:
        before, gpus.kind = gpus.kind, name
        try:
            yield
        finally:
            gpus.kind = before

    def during(owner: Any, method: str, name: str) -> None:
        """What a method allocates is of one kind."""
        real = getattr(owner, method)

        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            with kind(name):
                return real(*args, **kwargs)

        setattr(owner, method, call)

    gpus.before_oom.append(find_gradients)
    _watch_parameters()
    during(torch.nn.Module, "_apply", "weights")
    real_backward = torch.autograd.backward

    @functools.wraps(real_backward)
    def backward(*args: Any, **kwargs: Any) -> None:
        try:
            real_backward(*args, **kwargs)
        finally:
            find_gradients()

    torch.autograd.backward = backward

    def before_step(*_: Any) -> None:
        find_gradients()
        gpus.kind = "optimizer"

    def after_step(optimizer: Any, *_: Any) -> None:
        _states(optimizer)
        gpus.kind = "activations"

    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)
    _watch_fsdp(during)


def _watch_parameters() -> None:
    real, real_swap = torch.nn.Parameter.__new__, torch.utils.swap_tensors

    def watch(parameter: Any) -> None:
        key = id(parameter)
        _parameters[key] = weakref.ref(parameter, lambda _: _parameters.pop(key, None))

    def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:  # it refuses what has weak references
        watched = [t for t in (one, other) if _parameters.pop(id(t), None)]
        try:
            real_swap(one, other)
        finally:
            for t in watched:
                watch(t)

    torch.utils.swap_tensors = swap_tensors

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        found = real(cls, data, requires_grad)
        watch(found)
        for b in blocks_of(found):
            if b.kind != "gathered":
                b.becomes("weights")
        return found

    torch.nn.Parameter.__new__ = new


def find_gradients() -> None:
    """The gradients of all parameters, known by now."""
    for reference in list(_parameters.values()):
        parameter = reference()
        if parameter is not None and parameter.grad is not None:
            for b in blocks_of(parameter.grad):
                if b.kind == "activations":
                    b.becomes("gradients")


def _states(optimizer: Any) -> None:
    for state in optimizer.state.values():
        for x in flat(state):
            for b in blocks_of(x):
                if b.kind == "activations":
                    b.becomes("optimizer")


def _watch_fsdp(during: Callable[[Any, str, str], None]) -> None:
    """FSDP's own buffers, once it's imported: its parts hold them under their names."""

    def watch() -> None:
        from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

        for name in ("init_all_gather_outputs", "alloc_all_gather_outputs", "init_unsharded_param"):
            during(_fsdp_param.FSDPParam, name, "gathered")
        during(_fsdp_param_group, "foreach_all_gather", "gathered")
        during(_fsdp_param_group, "foreach_all_gather_copy_out", "gathered")
        during(_fsdp_param_group, "foreach_reduce", "gradients")

    after_import("torch.distributed.fsdp", watch)
