"""What a program chooses among values that weren't computed: the best expert, the next token. Everything after it needs
an index that's valid and the same on each run, so the choice falls evenly on all there is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .remarks import program_line

aten = torch.ops.aten
_chosen: dict[str, str] = {}  # operator -> the line of the program that called it first


def _argument(args: Any, kwargs: Any, place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _evenly(indices: torch.Tensor, dim: int, n: int) -> None:
    """Fill with numbers below `n`, which differ along `dim` and go on from row to row."""
    k = indices.shape[dim]
    rows = indices.movedim(dim, -1)
    row = torch.arange(rows.numel() // max(1, k), device="cpu").view(*rows.shape[:-1], 1)
    rows.copy_((row * k + torch.arange(k, device="cpu")) % max(1, n))


def _along(place: int) -> Callable[..., torch.Tensor]:
    """An operator that chooses along the dimension that its argument number `place` names: the last unless it does."""

    def choose(outs: list[torch.Tensor], args: Any, kwargs: Any) -> torch.Tensor:
        given, indices = args[0], outs[-1]
        dim = _argument(args, kwargs, place, "dim", -1)
        if dim is None or not indices.dim():
            indices.zero_()
        elif indices.dim() < given.dim():
            _evenly(indices.unsqueeze(dim), dim, given.shape[dim])
        else:
            _evenly(indices, dim, given.shape[dim])
        return indices

    return choose


def _by_chance(outs: list[torch.Tensor], args: Any, kwargs: Any) -> torch.Tensor:
    """What isn't known is equally likely. It's drawn by the program's own generator, so a recomputed forward, and all
    ranks of one seed, draw the same."""
    indices, n, generator = outs[0], args[0].shape[-1], kwargs.get("generator")
    if indices.shape[-1] == 1 or _argument(args, kwargs, 2, "replacement", False):
        indices.random_(0, n, generator=generator)
    elif indices.shape[-1] > n:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    else:
        keys = torch.rand(args[0].shape, generator=generator, device="cpu")
        indices.copy_(keys.topk(indices.shape[-1]).indices)
    return indices


# Each fills the indices among what an operator returns, and returns them.
_RULES: dict[Any, Callable[..., torch.Tensor]] = {
    aten.multinomial.default: _by_chance,
    aten.topk.default: _along(2),
    aten.sort.default: _along(1),
    aten.sort.stable: _along(1),
    aten.argmax.default: _along(1),
    aten.argmin.default: _along(1),
    aten.max.dim: _along(1),
    aten.min.dim: _along(1),
}  # fmt: skip


def among(func: Any) -> bool:
    """Whether an operator chooses among the values that it gets."""
    return func in _RULES


def is_meant(func: Any) -> bool:
    """Whether a program calls it to choose. `max` and `min` are mostly called for the value."""
    return func not in (aten.max.dim, aten.min.dim)


def choose(func: Any, args: Any, kwargs: Any, out: Any) -> torch.Tensor:
    """Fill the indices in `out`, what the operator returns, and remember to say so. Returns the indices."""
    name = func._overloadpacket.__name__
    if is_meant(func) and name not in _chosen:
        _chosen[name] = program_line()
    return _RULES[func](list(out) if isinstance(out, (tuple, list)) else [out], args, kwargs)


def say_at_the_end() -> None:
    """Tell once which operators chose among what wasn't computed."""
    if _chosen:
        where = ", ".join(f"{name} ({line})" for name, line in _chosen.items())
        sys.stderr.write(
            f"emulated: values that were not computed were chosen from, by {where}. Each choice is a valid one, evenly"
            " spread and the same on each run, and means nothing\n"
        )
        sys.stderr.flush()


__all__ = ["among", "choose", "is_meant", "say_at_the_end"]
