"""Tensors that say they lie on a GPU: what Python sees of a CPU tensor with a tag, and the moves between devices."""

from __future__ import annotations

import copy as copying
import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import _device_constructors

from . import attention, recurrent
from .copies import pinned_memory
from .not_emulated import ADDRESSES, PROCESSES, Limit, NotEmulated
from .operators import FRESH, Operators, active_fake_mode, let_dtensor_draw
from .plans import tensors_in
from .remarks import NOT_COMPUTED, say, without
from .state import Gpus, MemoryBlock, block, block_of, host
from .streams import Stream

_M_MMAP_THRESHOLD = -3
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_INNER = ("_local_tensor", "elem", "_values")  # where a DTensor, a collective's result, a nested tensor have theirs
# What C++ puts together of operators, below us, and makes tensors for: on the device that it sees, the CPU.
_MAKE_MORE = {
    "ctc_loss", "istft", "linalg_matrix_rank", "nanquantile", "new", "new_tensor", "one_hot", "pad_sequence",
    "quantile", "vander",
}  # fmt: skip


class _NoAddress(NotEmulated, AttributeError):
    """So that `hasattr` says no."""


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
        if self.operators.off:
            return func(*args, **kwargs)
        if device is None and not kwargs.get("pin_memory"):
            found = gpu_of(args, kwargs) if name in _MAKE_MORE else None
            return func(*args, **kwargs) if found is None else self._towards(found, func, args, kwargs)
        if name in ("to", "cuda", "cpu", "pin_memory", "is_pinned", "_parse_to") or active_fake_mode():
            return func(*args, **kwargs)
        if kwargs.get("pin_memory"):
            out = self.__torch_function__(func, types, args, {**kwargs, "pin_memory": False})
            return out.pin_memory() if block(out) is None else out
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        # An operator that a tensor's own class calls again got its "cpu" from C++, which sees no other device.
        if device.type not in ("cuda", "cpu") or (device.type == "cpu" and isinstance(func, torch._ops.OpOverload)):
            return func(*args, **kwargs)
        if name in ("as_tensor", "asarray") and args and isinstance(args[0], torch.Tensor):
            return args[0].to(device, kwargs.get("dtype"))
        target: int | str = self.gpus.index(device) if device.type == "cuda" else "cpu"
        return self._towards(target, func, args, {**kwargs, "device": torch.device("cpu")})

    def _towards(self, target: int | str, func: Any, args: Any, kwargs: Any) -> Any:
        """What a call makes, or returns, lies on a GPU, or on the "cpu"."""
        before, self.operators.target = self.operators.target, target
        try:
            out = func(*args, **kwargs)
        finally:
            self.operators.target = before
        if target != "cpu" and type(out) in _PLAIN:  # a DTensor's storage is only a number of bytes
            self.gpus.tag(out, int(target))  # made by code below the operators, as torch.tensor does
        return out


def gpu_of(*given: Any) -> int | None:
    """The number of the GPU on which all of these tensors lie; None if they don't lie on one."""
    lie = {b.device if (b := block(t)) is not None else None for t in tensors_in(given)}
    return lie.pop() if len(lie) == 1 else None


def install(gpus: Gpus) -> Operators:
    """Patch `torch.Tensor`, and let both modes look at everything from here on. Returns the mode of the operators."""
    # A large block comes fresh from the system, full of zeros, and takes no memory until somebody writes to it.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, FRESH // 2)
    operators = Operators(gpus)
    operators.factories = lambda: Factories(gpus, operators)
    _patch_moves(gpus, operators)
    _patch_answers(gpus)
    _patch_reads()
    _patch_storage(gpus)
    _patch_exports()
    _patch_functions(operators)
    attention.install(gpus, operators)
    recurrent.install()
    _patch_default(gpus, operators)
    _follow_backward(gpus, operators)
    let_dtensor_draw()
    enter(gpus, operators)
    return operators


def enter(gpus: Gpus, operators: Operators) -> None:
    """Let both modes look at what this thread does."""
    operators.__enter__()
    Factories(gpus, operators).__enter__()


def _follow_backward(gpus: Gpus, operators: Operators) -> None:
    """`Tensor.backward` is called by the mode that looks for factories, which torch takes off meanwhile. What backward
    runs in Python, such as a checkpoint's second forward, has factories too."""
    autograd: Any = torch.autograd
    real = autograd._engine_run_backward

    @functools.wraps(real)
    def run(*args: Any, **kwargs: Any) -> Any:
        with gpus.clock.backward():
            if any(isinstance(mode, Factories) for mode in _get_current_function_mode_stack()):
                return real(*args, **kwargs)
            with Factories(gpus, operators):
                return real(*args, **kwargs)

    autograd._engine_run_backward = run


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

        if self.layout is torch.sparse_coo:
            indices = moved(self._indices(), where, None, non_blocking, copy, memory_format)
            values = moved(self._values(), where, dtype, non_blocking, copy, memory_format)
            out = torch.ops.aten._sparse_coo_tensor_unsafe(indices, values, self.shape)
            return out._coalesced_(self.is_coalesced())

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

    def tagged(self: torch.Tensor) -> MemoryBlock | None:
        if type(self) in _PLAIN:
            return block(self)
        inner = next((x for name in _INNER if isinstance(x := getattr(self, name, None), torch.Tensor)), None)
        return tagged(inner) if inner is not None else block(self)

    def device(self: torch.Tensor) -> torch.device:
        found = tagged(self)
        return torch.device("cuda", found.device) if found is not None else real_device.__get__(self)

    def make_wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
        """C++ would ask a driver for the streams of what lies on a GPU."""
        if (device := kwargs.get("device")) is not None and torch.device(device).type == "cuda":
            kwargs["device"] = "cpu"
        on_gpus = (isinstance(x, torch.device) and x.type == "cuda" for x in args)
        return real_wrapper(cls, *("cpu" if is_one else x for x, is_one in zip(args, on_gpus, strict=True)), **kwargs)

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
            say("value", NOT_COMPUTED)
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
    real_new, real_resize, real_clone = storage.__new__, storage.resize_, storage.clone

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return real_new(cls, *args, **kwargs)
        return tagged(real_new(cls, *args, **{**kwargs, "device": "cpu"}), gpus.index(device))

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        found = block_of(self)
        out = real_resize(self, size)
        if found is not None:
            found.resize(size)
        return out

    def tagged(self: torch.UntypedStorage, device: int) -> torch.UntypedStorage:
        if block_of(self) is None:
            self._course_block = MemoryBlock(gpus, device, self.nbytes(), gpus.kind)
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

    storage.__new__ = staticmethod(new)
    storage.resize_, storage.clone, storage.cuda = resize_, clone, cuda
    torch.serialization.register_package(
        5,
        lambda saved: f"cuda:{b.device}" if (b := block_of(getattr(saved, "_untyped_storage", saved))) else None,
        restored,
    )


def _patch_exports() -> None:
    """What gives a tensor's memory to another library or to another process."""
    tensor: Any = torch.Tensor
    storage: Any = torch.UntypedStorage
    real_interface, real_share, real_shared = tensor.__cuda_array_interface__, storage.share_memory_, storage.is_shared

    def interface(self: torch.Tensor) -> Any:
        if block(self) is not None:
            raise _NoAddress(str(ADDRESSES))
        return real_interface.__get__(self)

    def unless_there(real: Callable[..., Any], limit: Limit) -> Callable[..., Any]:
        @functools.wraps(real)
        def give(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (block(self) if isinstance(self, torch.Tensor) else block_of(self)) is not None:
                raise NotEmulated(str(limit))
            return real(self, *args, **kwargs)

        return give

    tensor.__cuda_array_interface__ = property(interface)
    tensor.__dlpack__ = unless_there(tensor.__dlpack__, ADDRESSES)
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = unless_there(torch.utils.dlpack.to_dlpack, ADDRESSES)
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):  # what a queue calls
        setattr(storage, name, unless_there(getattr(storage, name), PROCESSES))
    storage.share_memory_ = lambda self: self if block_of(self) is not None else real_share(self)
    storage.is_shared = lambda self: block_of(self) is not None or real_shared(self)


def _patch_functions(operators: Operators) -> None:
    """Functions that CUDA has a kernel for, or that go past our mode."""
    functional: Any = torch.nn.functional
    real_dropout, real_ctc = functional.dropout, functional.ctc_loss

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if inplace or not training or not 0 < p < 1 or block(input) is None:
            return real_dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]  # keeps a mask of one byte an element

    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """CUDA takes lengths that lie on the CPU."""
        lengths = (
            x.to(log_probs.device) if isinstance(x, torch.Tensor) else x for x in (input_lengths, target_lengths)
        )
        return real_ctc(log_probs, targets, *lengths, *args, **kwargs)

    functional.dropout, functional.ctc_loss = dropout, ctc_loss
    inside, split = Factories(operators.gpus, operators), torch.functional._unravel_index

    def unravel_index(*args: Any) -> torch.Tensor:
        """In Python, where torch has left our mode, and torch.tensor would ask the driver."""
        with inside:
            return split(*args)

    torch.functional._unravel_index = unravel_index
    # It draws again as long as a number is too large, and of those that weren't drawn none is.
    init: Any = torch.nn.init
    init._no_grad_trunc_normal_ = without("value", init._no_grad_trunc_normal_)
