"""How long an operator takes on a modelled GPU: a roofline of arithmetic and memory, as CUDA's kernels would take it.

Below us torch calls the CPU's operators, so that what CUDA does differently is said here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils.flop_counter import flop_registry

from . import recurrent
from .clusters import Device

aten = torch.ops.aten
_NAMES = {
    torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.float8_e4m3fn: "float8", torch.float8_e5m2: "float8",
}  # fmt: skip
_CONVOLUTIONS = (aten.convolution, aten.convolution_backward)
_RECURRENT = (aten._cudnn_rnn, aten._cudnn_rnn_backward)


def _product(a: torch.Tensor, b: torch.Tensor, *_: Any, out_val: Any = None, **__: Any) -> float:
    return float(flop_registry[aten.mm](a, b, out_val=out_val))


def _product_added(
    _: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *__: Any, out_val: Any = None, **___: Any
) -> float:
    count: Any = flop_registry[aten.bmm if a.dim() == 3 else aten.mm]
    return float(count(a, b, out_val=out_val))


# What torch's counter doesn't know.
_FLOPS: dict[Any, Any] = {
    **dict.fromkeys((aten.addmm_, aten._addmm_activation, aten.baddbmm_, aten.addbmm, aten.addbmm_), _product_added),
    aten._cudnn_rnn: recurrent.flops,
    aten._cudnn_rnn_backward: functools.partial(recurrent.flops, passes=2),
}
for _way in ("", "_backward"):  # the CPU's fused attention, which does for CUDA's, isn't counted in torch 2.10 and 2.11
    _of_cpu, _of_cuda = (getattr(aten, f"_scaled_dot_product_flash_attention{end}{_way}") for end in ("_for_cpu", ""))
    _FLOPS[_of_cpu] = flop_registry.get(_of_cpu) or flop_registry[_of_cuda]
if hasattr(aten, "_scaled_mm_v2"):  # of torch.nn.functional.scaled_mm
    _FLOPS[aten._scaled_mm_v2] = _product
# These overwrite all that they write to, and don't read what it held.
OVERWRITES = {
    aten.zero_, aten.fill_, aten.copy_, aten.normal_, aten.uniform_, aten.random_, aten.bernoulli_, aten.exponential_,
    aten._foreach_zero_, aten._foreach_copy_,
}  # fmt: skip
# These start no kernel, they only take memory; and these read nothing of their tensor but its shape.
_EMPTY = {
    aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty, aten.new_empty_strided,
}  # fmt: skip
LIKE = _EMPTY | {
    aten.zeros_like, aten.ones_like, aten.full_like, aten.rand_like, aten.randn_like, aten.randint_like, aten.new_zeros,
    aten.new_ones, aten.new_full,
}  # fmt: skip
# These read as many rows of their first argument as they return, and not all of it.
_ROWS = {aten.embedding, aten.index, aten.index_select, aten.gather, aten._unsafe_index}
# Where their matrices start.
_PRODUCTS = {
    aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1, aten.addmm_: 1, aten.baddbmm_: 1, aten.addbmm: 1,
    aten.addbmm_: 1, aten._addmm_activation: 1,
}  # fmt: skip
# How the arguments are called that say which words of a sequence see which, and how long the sequences of a batch are
# that lie one after the other.
_CAUSAL = ("is_causal", "custom_mask_type")
_ENDS = ("cum_seq_q", "cum_seq_k", "cu_seq_q", "cu_seq_k", "cu_seqlens_q", "cu_seqlens_k")
# cuDNN's tensor cores take channels last. What comes in another order is brought into it and back by kernels of their
# own, of whose time so much shows, fitted to ResNets with and without channels_last (`bench_emulation.py changes`). The
# rest cuDNN avoids, by kernels that read the other order. TF32's rate for convolutions is fitted to programs without
# channels_last, so it has that time in it already.
_REORDERING_SHOWS = 0.66
part = 1.0  # of an operator's arithmetic that is done
# aten/src/ATen/native/cuda/MultiTensorApply.cuh: tensors of a launch, by how many lists there are, and elements of one
# of the 320 blocks of a launch.
_TENSORS_A_LAUNCH = (110, 64, 48, 36, 30)
_ELEMENTS_A_LAUNCH = 320 * 65536


def seconds(device: Device, func: Any, flops: float, nbytes: float, dtype: torch.dtype) -> float:
    """The time of one kernel: the larger of arithmetic over the rate for `dtype` and bytes over the memory's rate. What
    has no arithmetic units of its own type is computed in float32."""
    compute = flops / rate(device, func, dtype) if flops else 0.0
    return max(compute, nbytes / (device.memory_Bps * device.memory_reached))


def rate(device: Device, func: Any, dtype: torch.dtype) -> float:
    """FLOP/s that a product of this type reaches: with tensor cores where there are any, float32 by TF32 where torch's
    switches allow it."""
    kind = _arithmetic(device, func, dtype)
    reached = device.reached.get(kind, 1.0)
    packet = getattr(func, "_overloadpacket", func)
    if packet in _CONVOLUTIONS:  # cuDNN's get less where it has to reorder their tensors
        reached = device.reached.get(f"{kind}_conv", reached)
    elif _is_attention(packet):  # whose kernels also do a softmax between two products
        reached = device.reached.get(f"{kind}_attention", reached)
    return device.flops[kind] * reached


@functools.cache
def _is_attention(packet: Any) -> bool:
    return any(word in str(packet) for word in ("attention", "attn"))


def _arithmetic(device: Device, func: Any, dtype: torch.dtype) -> str:
    kind = _NAMES.get(dtype, "float32")
    if kind == "float32" and "tf32" in device.flops and tf32(func):
        kind = "tf32"
    return kind if kind in device.flops else "float32"


def unaligned(device: Device, func: Any, args: Sequence[Any], out: Any, dtype: torch.dtype) -> float:
    """How many times as long tensor cores take for a product whose rows don't start at multiples of 16 bytes: the less
    aligned they are, the slower they're fed (Matrix Multiplication Background, NVIDIA's user's guide, 2.2). Between 2
    bytes and 16 it's interpolated."""
    start = _PRODUCTS.get(func._overloadpacket)
    if start is None or _arithmetic(device, func, dtype) not in ("tf32", "float16", "bfloat16"):
        return 1.0
    steps = [
        step * t.element_size()
        for t in (args[start], args[start + 1], out)
        for n, step in zip(t.shape, t.stride(), strict=True)
        if n > 1 and step > 1
    ]
    aligned = math.gcd(16, *steps)  # a power of two
    return float(device.unaligned_reached ** (-math.log2(16 / max(aligned, 2)) / 3))


def padding(func: Any, args: Sequence[Any]) -> float:
    """Bytes that are moved to copy a product's matrices into larger ones, whose rows are aligned: Inductor's pad_mm,
    which tries whether that pays."""
    start = _PRODUCTS[func._overloadpacket]
    a, b = args[start], args[start + 1]
    unit = 16 // a.element_size()
    return float(sum(2 * _nbytes(t) for t in (a, b) if any(n % unit for n in t.shape[-2:])))


def reordered(device: Device, func: Any, args: Sequence[Any], outs: Sequence[Any], dtype: torch.dtype) -> float:
    """Bytes that are moved to bring a convolution's tensors into the order of tensor cores, and its results back."""
    packet = func._overloadpacket
    if packet not in _CONVOLUTIONS or _arithmetic(device, func, dtype) not in ("float16", "bfloat16"):
        return 0.0
    backward = packet is aten.convolution_backward
    x, weight, groups = (args[1], args[2], args[9]) if backward else (args[0], args[1], args[8])
    if x.ndim < 4 or groups == x.shape[1] > 1:  # torch has kernels of its own where each channel is alone
        return 0.0
    if (order := channels_last(x, weight)) is not None:  # torch itself reorders what isn't yet
        moved = [t for t in ((args[0], x) if backward else (x,)) if not t.is_contiguous(memory_format=order)]
        return float(2 * sum(map(_nbytes, moved)))
    moved = [] if backward else [x, weight, outs[0]]
    if backward and args[10][0]:
        moved += [args[0], weight, outs[0]]
    if backward and args[10][1]:
        moved += [args[0], x, outs[1]]
    return float(_REORDERING_SHOWS * 2 * sum(map(_nbytes, moved)))


def channels_last(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format | None:
    """The order of channels last that CUDA's convolution takes and gives, if one of its arguments has it."""
    orders = (suggest_memory_format(x), suggest_memory_format(weight))
    return next((order for order in orders if order != torch.contiguous_format), None)


def tf32(func: Any) -> bool:
    """Whether torch's switches allow TF32 for an operator, by the old names (`allow_tf32`) or the new
    (`fp32_precision`), which torch refuses to read once the other was set."""
    packet = getattr(func, "_overloadpacket", func)
    part = "conv" if packet in _CONVOLUTIONS else "rnn" if packet in _RECURRENT else "matmul"
    switches = torch.backends.cuda.matmul if part == "matmul" else torch.backends.cudnn
    try:
        return bool(switches.allow_tf32)
    except RuntimeError:
        return bool(torch._C._get_fp32_precision_getter("cuda", part) == "tf32")


def flops_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> float:
    """The operator's arithmetic, by torch's own counter; 0 for what it doesn't count. CUDA's fused attention skips the
    half above the diagonal."""
    packet = func._overloadpacket
    count: Any = _FLOPS.get(packet) or flop_registry.get(packet)
    if count is None:
        return 0.0
    try:
        found = float(count(*args, **kwargs, out_val=out))
    except Exception:  # a counter that doesn't know this overload
        return 0.0
    if any(_named(func, args, kwargs, name) for name in _CAUSAL):
        found /= 2
    return found * part if math.isfinite(found) else 0.0


@contextmanager
def over(share: float) -> Iterator[None]:
    """Operators inside do this part of their arithmetic: those of a sparse attention, which leaves out blocks."""
    global part
    before, part = part, share
    try:
        yield
    finally:
        part = before


def ends(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Where the sequences of a batch end that lie one after the other, for attention that is told; () for all else, or
    where that wasn't computed."""
    given = [_named(func, args, kwargs, name) for name in _end_names(func)]
    found = tuple(tuple(torch._C.TensorBase.tolist(t)) for t in given if t is not None)
    return found if all(list(each) == sorted(each) and each[-1:] > (0,) for each in found) else ()


@functools.cache
def _end_names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments if argument.name in _ENDS)


def _named(func: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str) -> Any:
    """An argument by its name in the operator's schema; None if it has none."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[i] if i < len(args) else kwargs.get(name, argument.default_value)
    return None


def traffic(func: Any, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> float:
    """Bytes that an operator reads and writes; `read` has all tensors that it's given. Of an expanded tensor only what
    it has counts, of a table of which rows are taken only those."""
    if func._overloadpacket in LIKE:
        read = ()
    if func._overloadpacket in OVERWRITES or any(argument.is_out for argument in func._schema.arguments):
        read = _without(read, written)
    if func._overloadpacket in _ROWS and written:
        return float(2 * sum(map(_nbytes, written)) + sum(map(_nbytes, read[1:])))
    return float(sum(map(_nbytes, read)) + sum(map(_nbytes, written)))


def _without(read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`read`, where what's written is left out once: it may be read as well, as in `torch.add(a, b, out=a)`."""
    left = list(read)
    for t in written:
        if (at := next((i for i, other in enumerate(left) if other is t), None)) is not None:
            del left[at]
    return left


def _nbytes(tensor: torch.Tensor) -> int:
    whole = tensor.numel() * tensor.element_size()
    if whole and 0 in tensor.stride():
        return (
            math.prod(n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step) * tensor.element_size()
        )
    return whole


def launches(func: Any, args: Sequence[Any]) -> int:
    """How many kernels an operator starts one after the other: 1, or for an operator on lists of tensors what its
    chunks take, or what recurrent layers do. 0 for what only takes memory."""
    if func._overloadpacket in _EMPTY:
        return 0
    if func._overloadpacket in _RECURRENT:
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        return recurrent.kernels(args[0], named["num_layers"], named["batch_first"], named["batch_sizes"])
    lists = [x for x in args if isinstance(x, (list, tuple)) and x and isinstance(x[0], torch.Tensor)]
    if not lists or "foreach" not in func._schema.name and "fused" not in func._schema.name:
        return 1
    a_launch = _TENSORS_A_LAUNCH[min(len(lists), 5) - 1]
    elements = sum(t.numel() for t in lists[0])
    return max(-(-len(lists[0]) // a_launch), -(-elements // _ELEMENTS_A_LAUNCH), 1)


def counted(func: Any) -> bool:
    """Whether an operator's arithmetic is counted, so that its rate matters."""
    return func._overloadpacket in flop_registry or func._overloadpacket in _FLOPS
