"""Sparse tensors on a modelled GPU, such as the gradients of an embedding: what they take, by what they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from .clock import Queue
from .clusters import Device
from .plans import SMALL, tensors_in
from .state import Gpus, block, seen_sparse

aten = torch.ops.aten
# CUDA has to know how many indices are left before it can make what holds them.
SYNCHRONIZES = {aten._coalesce.default}
# These only put two tensors together.
_MAKES = {aten._sparse_coo_tensor_with_dims_and_tensors.default, aten._sparse_coo_tensor_with_dims.default}
# Sorts the indices by their bits, looks for the first of each, and adds up: aten/src/ATen/native/sparse/cuda.
_KERNELS = {aten._coalesce.default: 10}


def takes(func: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an operator works on sparse tensors, or makes one."""
    return func in _MAKES or any_of(tensors)


def any_of(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether one of them is sparse."""
    return bool(seen_sparse) and any(t.layout is torch.sparse_coo for t in tensors)


def nbytes(tensor: torch.Tensor) -> int:
    """What a tensor holds; of a sparse one its indices and values."""
    if tensor.layout is torch.sparse_coo:
        return nbytes(tensor._indices()) + nbytes(tensor._values())
    return tensor.numel() * tensor.element_size()


def run(
    gpus: Gpus, queue: Queue, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor],
    changed: list[torch.Tensor], known: bool,
) -> tuple[Any, bool]:  # fmt: skip
    """Compute an operator, since the indices are true, and price it. Returns what it gives, and whether that's known if
    the arguments are."""
    out, computed = _computed(func, args, kwargs, changed)
    known = known and computed
    new = [t for t in tensors_in(out) if not any(t is c for c in changed)]
    gpus.clock.enqueue(queue, seconds(gpus.device, func, [*tensors, *new]), "compute", func._schema.name)
    if func in SYNCHRONIZES:
        gpus.clock.wait_for(gpus.clock.mark(queue))
    for t in changed:
        if (b := block(t)) is not None:
            b.computed = b.computed and known
    return out, known


def _computed(func: Any, args: Any, kwargs: Any, changed: Sequence[torch.Tensor]) -> tuple[Any, bool]:
    """What an operator returns, and whether it was computed. A large dense tensor is neither filled nor touched: this
    machine may not have the memory."""
    if func is aten.add_.Tensor and changed[0].layout is torch.strided and changed[0].numel() > SMALL:
        return changed[0], False
    if func is aten._to_dense.default and args[0].numel() > SMALL:
        dense = torch.empty(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device="cpu")
        return dense, False
    return func(*args, **kwargs), True


def seconds(device: Device, func: Any, tensors: Sequence[torch.Tensor]) -> float:
    """The time of an operator, by what the sparse ones hold: of a dense one it touches as many rows."""
    held = [nbytes(t) for t in tensors if t.layout is torch.sparse_coo]
    if func in _MAKES:
        return 0.0
    rows = math.fsum(held) / max(1, len(held))
    whole = func is aten._to_dense.default or not held
    moved = sum(held) + sum(nbytes(t) if whole else min(2 * rows, nbytes(t)) for t in tensors if not _sparse(t))
    return max(device.launch_s * _KERNELS.get(func, 1), moved / (device.memory_Bps * device.memory_reached))


def all_reduce(group: Any, gpus: Gpus, tensors: list[torch.Tensor], opts: Any) -> Any:
    """How much sparse tensors hold differs from rank to rank, so gloo gathers all of it and adds up. NCCL can't. Raises
    RuntimeError as that does."""
    from .works import EmulatedWork  # which needs a torch with process groups

    if dist.get_backend(group) == "nccl":
        raise RuntimeError("NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead.")
    found = block(tensors[0])
    device, known = (found.device, found.computed) if found is not None else (None, True)
    if found is not None:
        gpus.use(gpus.queue(device), "all_reduce", [], [found])
    with _disable_current_modes():
        sizes = group.meeting.exchange("sparse all_reduce", float(nbytes(tensors[0])))
    most = int(max(row[0] for row in sizes))
    end, _ = group._meet("all_gather", [], most * group.size(), device, "")
    with _disable_current_modes():
        group.real.allreduce(tensors, *([] if opts is None else [opts])).wait()
    blocks = [gpus.tag(tensors[0], device, known)] if device is not None else []
    for b in blocks:
        b.arrives = end
    return EmulatedWork(gpus, tensors, end, blocks, device)


def _sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.sparse_coo
