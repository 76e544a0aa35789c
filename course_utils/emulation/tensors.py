"""Tensors that say they lie on a GPU: what Python sees of a CPU tensor with a tag, and the moves between devices."""

from __future__ import annotations

import copy as copying
import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from .copies import pinned_memory
from .operators import FRESH, Operators, active_fake_mode, let_dtensor_draw
from .plans import SMALL
from .remarks import say, without
from .state import Block, Gpus, block, block_of, host
from .streams import Stream

_M_MMAP_THRESHOLD = -3
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NOT_COMPUTED = "a value is read that was not computed, so it is 0"


class Factories(TorchFunctionMode):
    """Calls that name a device: the operators below get a CPU tensor to make, and where it is to lie."""

    def __init__(self, gpus: Gpus, operators: Operators):
        super().__init__()
        self.gpus, self.operators = gpus, operators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        device = kwargs.get("device")
        if device is None and self.operators.default is not None and func in _device_constructors():
            device = self.operators.default
            kwargs = {**kwargs, "device": device}
        if (device is None and not kwargs.get("pin_memory")) or self.operators.off:
            return func(*args, **kwargs)
        if name in ("to", "cuda", "cpu", "pin_memory", "is_pinned", "_parse_to") or active_fake_mode():
            return func(*args, **kwargs)
        if kwargs.get("pin_memory"):
            out = self.__torch_function__(func, types, args, {**kwargs, "pin_memory": False})
            return out.pin_memory() if block(out) is None else out
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if device.type not in ("cuda", "cpu"):
            return func(*args, **kwargs)
        if name in ("as_tensor", "asarray") and args and isinstance(args[0], torch.Tensor):
            return args[0].to(device, kwargs.get("dtype"))
        target: int | str = self.gpus.index(device) if device.type == "cuda" else "cpu"
        before, self.operators.target = self.operators.target, target
        try:
            out = func(*args, **{**kwargs, "device": torch.device("cpu")})
        finally:
            self.operators.target = before
        if target != "cpu" and type(out) in _PLAIN:  # a DTensor's storage is only a number of bytes
            self.gpus.tag(out, int(target))  # made by code below the operators, as torch.tensor does
        return out


def install(gpus: Gpus) -> Operators:
    """Patch `torch.Tensor`, and let both modes look at everything from here on. Returns the mode of the operators."""
    # A large block comes fresh from the system, full of zeros, and takes no memory until somebody writes to it.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, FRESH // 2)
    operators = Operators(gpus)
    _patch_moves(gpus, operators)
    _patch_answers(gpus)
    _patch_reads()
    _patch_storage(gpus)
    _patch_functions()
    _patch_default(gpus, operators)
    let_dtensor_draw()
    enter(gpus, operators)
    return operators


def enter(gpus: Gpus, operators: Operators) -> None:
    """Let both modes look at what this thread does."""
    operators.__enter__()
    Factories(gpus, operators).__enter__()


def _patch_default(gpus: Gpus, operators: Operators) -> None:
    """`torch.set_default_device("cuda")` makes a call name that device."""
    real_set, real_get = torch.set_default_device, torch.get_default_device

    def set_default_device(device: Any) -> None:
        wanted = torch.device("cuda", device) if isinstance(device, int) else device and torch.device(device)
        ours = wanted is not None and wanted.type == "cuda"
        operators.default = torch.device("cuda", gpus.index(wanted)) if ours else None
        real_set(None if ours else device)

    torch.set_default_device = set_default_device
    torch.get_default_device = lambda: operators.default or real_get()


def _patch_moves(gpus: Gpus, operators: Operators) -> None:
    tensor: Any = torch.Tensor
    real_to, real_type_as = tensor.to, tensor.type_as

    def moved(
        self: torch.Tensor, where: torch.device | None, dtype: Any, non_blocking: bool, copy: bool, memory_format: Any
    ) -> Any:
        here = block(self)
        index = gpus.index(where) if where is not None and where.type == "cuda" else None
        stays = (
            where is None or where.type not in ("cpu", "cuda") or (here.device if here is not None else None) == index
        )
        if stays:
            there = {"device": where} if where is not None and where.type not in ("cpu", "cuda") else {}
            return real_to(
                self,
                **there,
                dtype=dtype or self.dtype,
                non_blocking=non_blocking,
                copy=copy,
                memory_format=memory_format,
            )

        def move(t: torch.Tensor) -> Any:
            before, operators.target = operators.target, index if index is not None else "cpu"
            try:
                return torch.ops.aten._to_copy(t, dtype=dtype, non_blocking=non_blocking, memory_format=memory_format)
            finally:
                operators.target = before

        if self.requires_grad and torch.is_grad_enabled() and type(self) in _PLAIN:
            return _Move.apply(self, move)
        return move(self)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        copy = kwargs.pop("copy", False)
        other = kwargs.pop("other", args[0] if args and isinstance(args[0], torch.Tensor) else None)
        if other is not None:
            return moved(
                self, other.device, other.dtype, kwargs.get("non_blocking", False), copy, torch.preserve_format
            )
        if args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        where, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        return moved(self, where, dtype, non_blocking, copy, memory_format or torch.preserve_format)

    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> Any:
        return moved(self, torch.device("cuda", gpus.index(device)), None, non_blocking, False, memory_format)

    def cpu(self: torch.Tensor, memory_format: Any = torch.preserve_format) -> Any:
        return moved(self, torch.device("cpu"), None, False, False, memory_format)

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if block(self) is not None:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        out = self if pinned_memory(self) else self.clone()
        out.untyped_storage()._course_pinned = True
        return out

    def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if type(self) not in _PLAIN or type(other) not in _PLAIN:
            return real_type_as(self, other)
        return self.to(other.device, other.dtype)

    tensor.to, tensor.cuda, tensor.cpu, tensor.pin_memory, tensor.type_as = to, cuda, cpu, pin_memory, type_as


class _Move(torch.autograd.Function):
    """A move to another device. Its gradient moves back, which C++ would leave out: it sees the CPU on both sides."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, move: Callable[[torch.Tensor], Any]) -> Any:
        ctx.device, ctx.dtype = tensor.device, tensor.dtype
        return move(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0].to(ctx.device, ctx.dtype), None


def _patch_answers(gpus: Gpus) -> None:
    """Where a tensor says it lies."""
    tensor: Any = torch.Tensor
    real_device, real_wrapper = tensor.device, tensor._make_wrapper_subclass

    def tagged(self: torch.Tensor) -> Block | None:
        if type(self) in _PLAIN:
            return block(self)
        inner = getattr(self, "_local_tensor", getattr(self, "elem", None))  # of a DTensor, of a collective's result
        return tagged(inner) if isinstance(inner, torch.Tensor) else block(self)

    def device(self: torch.Tensor) -> torch.device:
        found = tagged(self)
        return torch.device("cuda", found.device) if found is not None else real_device.__get__(self)

    def make_wrapper(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        """C++ would ask a driver for the streams of what lies on a GPU."""
        here = "cpu" if device is not None and torch.device(device).type == "cuda" else device
        return real_wrapper(cls, *args, device=here, **kwargs)

    def record_stream(self: torch.Tensor, stream: Stream) -> None:
        """Memory counts as free once its tensor is gone, as torch's allocator counts it, so there's nothing to do."""
        if not isinstance(stream, Stream):
            raise TypeError(f"record_stream takes a stream, got {type(stream).__name__}")

    tensor.device = property(device)
    tensor._make_wrapper_subclass = staticmethod(make_wrapper)
    tensor.is_cuda = property(lambda self: tagged(self) is not None)
    tensor.is_cpu = property(lambda self: tagged(self) is None and real_device.__get__(self).type == "cpu")
    tensor.get_device = lambda self: -1 if (b := tagged(self)) is None else b.device
    tensor.is_pinned = lambda self, device=None: pinned_memory(self)
    tensor.record_stream = record_stream


def _patch_reads() -> None:
    """What gives numbers to Python."""
    tensor: Any = torch.Tensor
    real_tolist, real_numpy = tensor.tolist, tensor.numpy

    def read(self: torch.Tensor) -> None:
        found = host(self) or block(self)
        if found is not None and not found.computed:
            say("value", _NOT_COMPUTED)
        if (copied := host(self)) is not None and copied.mark is not None:
            self.view(-1)[:1].clone()  # an operator, which sees whether the copy is there

    def tolist(self: torch.Tensor) -> Any:
        read(self)
        return real_tolist(self.cpu())

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        if block(self) is not None and not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host"
                " memory first."
            )
        read(self)
        return real_numpy(self.cpu() if force else self, force=force)

    tensor.tolist, tensor.numpy = tolist, numpy


def _patch_storage(gpus: Gpus) -> None:
    """A storage's size may change in place, as FSDP frees by it; it may be copied, saved and loaded."""
    storage: Any = torch.UntypedStorage
    real_resize, real_clone = storage.resize_, storage.clone

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        found = block_of(self)
        out = real_resize(self, size)
        if found is not None:
            found.resize(size)
        return out

    def tagged(self: torch.UntypedStorage, device: int) -> torch.UntypedStorage:
        if block_of(self) is None:
            self._course_block = Block(gpus, device, self.nbytes(), gpus.kind)
        return self

    def clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
        found = block_of(self)
        if found is None:
            return real_clone(self)
        if not found.computed and self.nbytes() >= FRESH:
            out = tagged(torch.UntypedStorage(self.nbytes()), found.device)
        else:
            out = tagged(real_clone(self), found.device)
        out._course_block.computed = found.computed
        out._course_block.becomes(found.kind)
        return out

    def cuda(self: torch.UntypedStorage, device: Any = None, non_blocking: bool = False) -> torch.UntypedStorage:
        return tagged(copying.copy(self) if block_of(self) is None else self, gpus.index(device))

    def restored(self: Any, location: str) -> Any:
        return tagged(self, gpus.index(location)) if location.startswith("cuda") else None

    storage.resize_, storage.clone, storage.cuda = resize_, clone, cuda
    torch.serialization.register_package(
        5,
        lambda saved: f"cuda:{b.device}" if (b := block_of(getattr(saved, "_untyped_storage", saved))) else None,
        restored,
    )


def _patch_functions() -> None:
    """Functions for which CUDA has a kernel of its own where the CPU puts several together."""
    functional: Any = torch.nn.functional
    real_attention, real_dropout = functional.scaled_dot_product_attention, functional.dropout

    def scaled_dot_product_attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        parts: list[Any] = [query, key, value]
        placed = [getattr(t, "placements", None) for t in parts]
        if attn_mask is None and placed[0] and placed[0] == placed[1] == placed[2]:
            # DTensor knows how to share out the GPU's kernel and not the CPU's. Batches and heads are independent.
            if not any(p.is_partial() or (p.is_shard() and p.dim not in (0, 1)) for p in placed[0]):
                q, k, v = (t.to_local() for t in parts)
                own = scaled_dot_product_attention(q, k, v, None, dropout_p, is_causal, scale, enable_gqa)
                return parts[0].from_local(own, parts[0].device_mesh, placed[0], run_check=False)
        if dropout_p and query.numel() > SMALL and block(query) is not None:
            dropout_p = 0.0  # the CPU's fused kernel has none, and would give way to one that keeps the whole matrix
        return real_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa,
        )  # fmt: skip

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if inplace or not training or not 0 < p < 1 or block(input) is None:
            return real_dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]  # keeps a mask of one byte an element

    functional.scaled_dot_product_attention, functional.dropout = scaled_dot_product_attention, dropout
    # It draws again as long as a number is too large, and of those that weren't drawn none is.
    init: Any = torch.nn.init
    init._no_grad_trunc_normal_ = without("value", init._no_grad_trunc_normal_)
