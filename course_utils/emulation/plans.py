"""What an operator will give, and how long it takes, by the shapes of what it gets: worked out once for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from . import costs, recurrent
from .clusters import Device
from .not_emulated import SYMMETRIC, NotEmulated

SMALL = 1 << 15  # elements: up to here an operator is computed
Spec = tuple[torch.Size, tuple[int, ...], torch.dtype]


aten = torch.ops.aten
# What only CUDA has, and gives: for a batch norm over all ranks, of each channel in float32, or of each element.
_ONLY_CUDA: dict[Any, Callable[..., Any]] = {
    aten.batch_norm_stats: lambda x, *_: [_channels(x), _channels(x)],
    aten.batch_norm_gather_stats_with_counts: lambda x, *_: [_channels(x), _channels(x)],
    aten.batch_norm_elemt: lambda x, *_: torch.empty_like(x),
    aten.batch_norm_backward_reduce: lambda dy, x, *_: [_channels(x) for _ in range(4)],
    aten.batch_norm_backward_elemt: lambda dy, *_: torch.empty_like(dy),
    aten._cudnn_rnn: recurrent.forward,
    aten._cudnn_rnn_backward: recurrent.backward,
}


# Where their input and its weights are, whose kernels read all in one type, and how torch calls those types.
_ONE_TYPE = {aten.native_layer_norm: (0, 2, 3), aten.native_group_norm: (0, 1, 2)}
_TYPES = {torch.bfloat16: "BFloat16", torch.float16: "Half", torch.float32: "Float", torch.float64: "Double"}


def _channels(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape[1], device=x.device)


def _refuse_two_types(func: Any, args: Any) -> None:
    """Norms of 16 bits with weights of 32: the CPU has kernels for that, and CUDA has none."""
    given = [args[i] for i in _ONE_TYPE.get(func._overloadpacket, ())]
    types = [t.dtype for t in given if t is not None]
    for dtype in types[1:]:
        if dtype != types[0]:
            wanted, found = (_TYPES.get(kind, str(kind)) for kind in (types[0], dtype))
            raise RuntimeError(f"expected scalar type {wanted} but found {found}")


def _spec(out: Any) -> Any:
    if isinstance(out, (list, tuple)):
        return [_spec(o) for o in out]
    return (out.shape, tuple(out.stride()), out.dtype) if isinstance(out, torch.Tensor) else out


class Plan(NamedTuple):
    """What an operator gives and takes, by the shapes it got. An output is a tensor's shape, strides and type, a
    list of these, or the value itself; `aliases` are the arguments that come back as outputs."""

    seconds: float
    outputs: tuple[Any, ...]
    aliases: tuple[tuple[int, str] | None, ...]
    container: type | None
    small: bool  # computed in any case
    whole: bool  # of integers and bools: computed if what it's made from was
    name: str
    nbytes: int  # of new outputs
    flops: float = 0.0  # of a product, attention or convolution
    padded_s: float = math.inf  # `seconds` where Inductor first makes a product's matrices larger


class Plans:
    """The plans that were made so far."""

    def __init__(self, device: Device):
        self.device = device
        self.known: dict[Any, Plan] = {}

    def plan(self, func: Any, args: Any, kwargs: Any, leaves: list[Any], tensors: list[torch.Tensor]) -> Plan:
        """The plan of a call; `leaves` are those of its arguments, of which `tensors` are tensors."""
        counted = costs.counted(func)
        key = (
            func, counted and costs.tf32(func), counted and costs.ends(func, args, kwargs), costs.part, *_key(leaves),
        )  # fmt: skip
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._new(func, args, kwargs, tensors)
        return found

    def _new(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Plan:
        def meta(t: torch.Tensor) -> torch.Tensor:
            return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")

        name = func._schema.name
        if func.namespace == "symm_mem":
            raise NotEmulated(str(SYMMETRIC))
        _refuse_two_types(func, args)
        margs, mkwargs = tree_map_only(torch.Tensor, meta, (args, kwargs))
        if "device" in mkwargs or not tensors:
            mkwargs["device"] = torch.device("meta")
        try:
            with torch.no_grad():
                out = _ONLY_CUDA.get(func._overloadpacket, func)(*margs, **mkwargs)
        except Exception:  # no shape without values, or a mistake: torch's own function will say which
            return Plan(0.0, (), (), None, True, True, name, 0)
        if func._overloadpacket is aten.convolution and (order := costs.channels_last(*margs[:2])) is not None:
            out = out.contiguous(memory_format=order)  # as CUDA's, which torch's shapes alone don't know
        outs = list(out) if isinstance(out, (tuple, list)) else [out]
        flat = [t for o in outs for t in (o if isinstance(o, (tuple, list)) else [o])]
        results = [o for o in flat if isinstance(o, torch.Tensor)]
        if any(t.layout is not torch.strided for t in results):  # a gradient of few rows: only they are computed
            moved = costs.seconds(self.device, func, 0.0, costs.traffic(func, tensors, ()), torch.float32)
            return Plan(max(moved, self.device.launch_s), (), (), None, True, True, name, 0)
        changed = [t for i in written(func, args, kwargs) for t in tensors_in(i)]
        aliases = tuple(_alias(func, r) for r in func._schema.returns)
        new = [] if any(aliases) else results
        fresh = sum(t.untyped_storage().nbytes() for t in new)
        known = (args, kwargs) if costs.ends(func, args, kwargs) else (margs, mkwargs)  # with the lengths of sequences
        flops = costs.flops_of(func, *known, out)
        nbytes = costs.traffic(func, tensors, [*new, *changed])
        dtype = next((t.dtype for t in tensors + results if t.dtype.is_floating_point), torch.float32)
        slower = costs.unaligned(self.device, func, margs, out, dtype)
        launches = costs.launches(func, args)
        seconds = max(
            costs.seconds(self.device, func, flops * slower, nbytes, dtype) if launches else 0.0,
            self.device.launch_s * launches,
        )
        moved = costs.reordered(self.device, func, margs, outs, dtype)
        seconds += moved / (self.device.memory_Bps * self.device.memory_reached)
        padded_s = math.inf
        if slower > 1:
            padded_s = costs.seconds(self.device, func, flops, nbytes, dtype)
            padded_s += costs.seconds(self.device, func, 0.0, costs.padding(func, margs), dtype)
        specs = tuple(map(_spec, outs))
        used = [] if func._overloadpacket in costs.LIKE else tensors
        small = all(t.numel() <= SMALL for t in [*used, *results])
        whole = not any(t.dtype.is_floating_point or t.dtype.is_complex for t in [*results, *changed])
        nested = len(flat) != len(outs)
        container = type(out) if isinstance(out, (tuple, list)) else None
        return Plan(
            seconds,
            specs,
            aliases,
            container,
            small or nested or not results and not changed,
            whole,
            name,
            fresh,
            flops,
            padded_s,
        )


def _key(leaves: list[Any]) -> Iterator[Any]:
    """What an operator's outputs and time depend on. Floats change with each step, and no shape depends on them."""
    for x in leaves:
        if isinstance(x, torch.Tensor):
            yield x.shape
            yield x.stride()
            yield x.dtype
        elif not isinstance(x, float):
            yield x if type(x) in _AS_THEY_ARE else str(x)


_AS_THEY_ARE = (int, str, bool, type(None), torch.dtype)


def flat(given: Any) -> list[Any]:
    """All leaves of an operator's arguments, and the names of those that have one."""
    found: list[Any] = []
    _flatten((given,), found)
    return found


def _flatten(given: Iterable[Any], found: list[Any]) -> None:
    for x in given:
        if isinstance(x, (list, tuple)):
            _flatten(x, found)
        elif isinstance(x, dict):
            for item in x.items():
                _flatten(item, found)
        else:
            found.append(x)


def tensors_in(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    return [x for x in flat(given) if isinstance(x, torch.Tensor)]


_places: dict[Any, tuple[tuple[int, str], ...]] = {}


def written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes to."""
    places = _places.get(func)
    if places is None:
        places = _places[func] = tuple(
            (i, argument.name)
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info and argument.alias_info.is_write
        )
    return [args[i] if i < len(args) else kwargs.get(name) for i, name in places]


def _alias(func: Any, returned: Any) -> tuple[int, str] | None:
    """The argument that an operator returns, as one that works in place does."""
    if not (returned.alias_info and returned.alias_info.is_write):
        return None
    for i, argument in enumerate(func._schema.arguments):
        info = argument.alias_info
        if info and info.is_write and info.before_set == returned.alias_info.before_set:
            return i, argument.name
    return None
