"""Lesson 05, exercise 2: a communication hook of the student's, under the real DDP."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from .. import rank_side
from .cases import BUCKET_MB, HOOK_RANKS, HOOK_STEPS, SHAPES


class _Given(nn.Module):
    """A model whose gradient is the number that we want it to be: that of `(p * gradient).sum()`."""

    def __init__(self) -> None:
        super().__init__()
        self.params = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in SHAPES])

    def forward(self, gradients: list[Tensor]) -> Tensor:
        return torch.stack([(p * g).sum() for p, g in zip(self.params, gradients, strict=True)]).sum()


def train(load: Callable[[], ModuleType]) -> None:
    """Trains with the hook on two ranks and on three, always with the same gradients, and tells what came out."""
    blocking = _blocking_calls()
    answer = load()
    function = rank_side.function(answer, "bf16_hook", "state", "bucket", changes=("state", "bucket"))
    found = []
    for size in HOOK_RANKS:
        with rank_side.world(size) as member:
            found.append(_train(function, size, blocking) if member else None)
    rank_side.tell(found=found)


def _train(function: Callable[..., Any], size: int, blocking: list[str]) -> dict[str, Any]:
    model = _Given()
    ddp = DDP(model, bucket_cap_mb=BUCKET_MB)
    sizes: list[int] = []
    kinds: set[str] = set()

    def hook(state: Any, bucket: dist.GradBucket) -> Any:
        sizes.append(bucket.buffer().nbytes)
        future = function(state, bucket, doing=f"sending a bucket on {size} ranks")
        rank_side.must_return(isinstance(future, torch._C.Future), "bf16_hook", future, "a Future")
        return future.then(checked)

    def checked(future: Any) -> Tensor:
        value = future.value()
        value = value[0] if isinstance(value, list) and value else value
        kinds.add(str(value.dtype) if isinstance(value, Tensor) else type(value).__name__)
        return value.float() if isinstance(value, Tensor) else torch.zeros(1)

    hook.__annotations__.clear()  # DDP compares them, and here they're text
    state: dict[Any, Any] = {}
    ddp.register_comm_hook(state, hook)
    gradients = _gradients(size)
    total = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    first: list[Tensor] = []
    del blocking[:]
    with rank_side.Collectives() as counted:
        for step in range(HOOK_STEPS):
            ddp.zero_grad()
            ddp(gradients).backward()
            for i, p in enumerate(model.params):
                assert p.grad is not None
                total[i] += p.grad.double()
                if step == 0:
                    first.append(p.grad.clone())
    sent = [nbytes for name, nbytes in counted.calls if name.startswith(("allreduce", "reduce_scatter", "allgather"))]
    return {
        "mine": [g.flatten().tolist() for g in gradients],
        "first": [g.flatten().tolist() for g in first],
        "mean": [(t / HOOK_STEPS).flatten().tolist() for t in total],
        "sent": sum(sent),
        "filled": sum(sizes),
        "calls": len(sent),
        "buckets": len(sizes),
        "kinds": sorted(kinds),
        "kept": bool(state),
        "blocking": sorted(set(blocking)),
    }


def _gradients(size: int) -> list[Tensor]:
    """This rank's. Each number comes from one rank, and is 0 on the others: then the sum is exact in bfloat16, too, and
    what remains is the rounding of what was sent. They reach from 1e-9 to 1e9, which float16 doesn't."""
    random = torch.Generator().manual_seed(rank_side.secret_seed())
    found = []
    for shape in SHAPES:
        scale = 10.0 ** torch.randint(-9, 10, shape, generator=random)
        owner = torch.arange(scale.numel()).reshape(shape) % size
        values = (1 + torch.rand(shape, generator=random)) * scale * torch.where(owner % 2 == 0, 1.0, -1.0)
        found.append(torch.where(owner == rank_side.RANK, values, torch.zeros(())))
    return found


def _blocking_calls() -> list[str]:
    """Notes collectives that the hook waits for, which would stop backward. Call it before the cell is loaded."""
    found: list[str] = []
    original = dist.all_reduce

    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if not async_op:
            found.append("all_reduce")
        return original(tensor, op, group, async_op)

    dist.all_reduce = all_reduce
    for waits in (dist.Work, torch._C.Future):  # and not torch's own C++, which waits for what a hook returned
        _note(waits, found)
    return found


def _note(waits: Any, found: list[str]) -> None:
    real = waits.wait

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        found.append("wait")
        return real(self, *args, **kwargs)

    waits.wait = wait
