"""How long an operator takes on a modelled GPU: a roofline of arithmetic and memory, as CUDA's kernels would take it.

Below us torch calls the CPU's operators, so that what CUDA does differently is said here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ..clusters import Device

aten = torch.ops.aten
_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_CONVOLUTIONS = (aten.convolution, aten.convolution_backward)
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
# CUDA's fused attention skips the half above the diagonal; where `is_causal` stands among the arguments.
_CAUSAL = {
    aten._scaled_dot_product_flash_attention_for_cpu: 4,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: 7,
}
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
    kind = _NAMES.get(dtype, "float32")
    if kind == "float32" and "tf32" in device.flops and tf32(func):
        kind = "tf32"
    if kind not in device.flops:
        kind = "float32"
    reached = device.reached.get(kind, 1.0)
    if (
        getattr(func, "_overloadpacket", func) in _CONVOLUTIONS
    ):  # cuDNN's get less where it has to reorder their tensors
        reached = device.reached.get(f"{kind}_conv", reached)
    return device.flops[kind] * reached


def tf32(func: Any) -> bool:
    """Whether torch's switches allow TF32 for an operator, by the old names (`allow_tf32`) or the new
    (`fp32_precision`), which torch refuses to read once the other was set."""
    switches, part = (
        (torch.backends.cudnn, "conv")
        if getattr(func, "_overloadpacket", func) in _CONVOLUTIONS
        else (torch.backends.cuda.matmul, "matmul")
    )
    try:
        return bool(switches.allow_tf32)
    except RuntimeError:
        return bool(torch._C._get_fp32_precision_getter("cuda", part) == "tf32")


def flops_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> float:
    """The operator's arithmetic, by torch's own counter; 0 for what it doesn't count."""
    packet = func._overloadpacket
    count = flop_registry.get(packet)
    if count is None:
        return 0.0
    try:
        found = float(count(*args, **kwargs, out_val=out))
    except Exception:  # a counter that doesn't know this overload
        return 0.0
    place = _CAUSAL.get(packet)
    if place is not None and (args[place] if len(args) > place else kwargs.get("is_causal")):
        found /= 2
    return found if math.isfinite(found) else 0.0


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


def launches(func: Any, lists: Sequence[Sequence[torch.Tensor]]) -> int:
    """How many kernels an operator starts: 1, or for an operator on lists of tensors what its chunks take. 0 for what
    only takes memory."""
    if func._overloadpacket in _EMPTY:
        return 0
    if not lists or "foreach" not in func._schema.name and "fused" not in func._schema.name:
        return 1
    a_launch = _TENSORS_A_LAUNCH[min(len(lists), 5) - 1]
    elements = sum(t.numel() for t in lists[0])
    return max(-(-len(lists[0]) // a_launch), -(-elements // _ELEMENTS_A_LAUNCH), 1)
