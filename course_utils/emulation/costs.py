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
from torch.utils.flop_counter import flop_registry

from ..clusters import Device
from . import recurrent

aten = torch.ops.aten
_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_CONVOLUTIONS = (aten.convolution, aten.convolution_backward)
_RECURRENT = (aten._cudnn_rnn, aten._cudnn_rnn_backward)
# What torch's counter doesn't know.
_FLOPS = {aten._cudnn_rnn: recurrent.flops, aten._cudnn_rnn_backward: functools.partial(recurrent.flops, passes=2)}
# These read as many rows of their first argument as they return, and not all of it.
_ROWS = {aten.embedding, aten.index, aten.index_select, aten.gather, aten._unsafe_index}
# CUDA's fused attention skips the half above the diagonal; where `is_causal` stands among the arguments.
_CAUSAL = {
    aten._scaled_dot_product_flash_attention_for_cpu: 4,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: 7,
}
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
    packet = getattr(func, "_overloadpacket", func)
    part = "conv" if packet in _CONVOLUTIONS else "rnn" if packet in _RECURRENT else "matmul"
    switches = torch.backends.cuda.matmul if part == "matmul" else torch.backends.cudnn
    try:
        return bool(switches.allow_tf32)
    except RuntimeError:
        return bool(torch._C._get_fp32_precision_getter("cuda", part) == "tf32")


def flops_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> float:
    """The operator's arithmetic, by torch's own counter; 0 for what it doesn't count."""
    packet = func._overloadpacket
    count: Any = _FLOPS.get(packet) or flop_registry.get(packet)
    if count is None:
        return 0.0
    try:
        found = float(count(*args, **kwargs, out_val=out))
    except Exception:  # a counter that doesn't know this overload
        return 0.0
    place = _CAUSAL.get(packet)
    if place is not None and (args[place] if len(args) > place else kwargs.get("is_causal")):
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


def traffic(func: Any, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> float:
    """Bytes that an operator reads and writes. Of an expanded tensor only what it has counts, of a table of which rows
    are taken only those."""
    if func._overloadpacket in _ROWS and written:
        return float(2 * sum(map(_nbytes, written)) + sum(map(_nbytes, read[1:])))
    return float(sum(map(_nbytes, read)) + sum(map(_nbytes, written)))


def _nbytes(tensor: torch.Tensor) -> int:
    whole = tensor.numel() * tensor.element_size()
    if whole and 0 in tensor.stride():
        return (
            math.prod(n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step) * tensor.element_size()
        )
    return whole


def launches(func: Any, args: Sequence[Any]) -> int:
    """How many kernels an operator starts one after the other: 1, or for an operator on lists of tensors what its
    chunks take, or what recurrent layers do."""
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
