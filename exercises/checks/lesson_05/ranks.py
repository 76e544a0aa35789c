"""Lesson 05 on the ranks: each task runs the student's code, and tells what it computed, sent and waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_utils.rank import report

from .. import rank_side
from .cases import BUCKET_BYTES, DDP_RANKS, DDP_STEPS, LR, SAMPLES, RingCase, bucket_cases

# --- 05.1: ring all-reduce --------------------------------------------------------------------------------------------


def ring(answer: ModuleType, given: list[RingCase]) -> None:
    """Gives each rank numbers that it draws by itself, counts messages, and tells what the tensors held before and
    after."""
    function = rank_side.function(answer, "ring_all_reduce", "tensor", changes=("tensor",))
    seen: list[dict[str, Any] | None] = [None] * len(given)
    for size in sorted({ranks for ranks, _, _ in given}):
        with rank_side.world(size) as member:
            for i, (ranks, shape, dtype) in enumerate(given):
                if member and ranks == size:
                    seen[i] = _ring_case(function, ranks, tuple(shape), getattr(torch, dtype))
    rank_side.tell(cases=seen)


def _ring_case(function: Callable[..., Any], ranks: int, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    mine = _numbers(shape, dtype)
    before = _told(mine)
    with rank_side.Collectives() as counted:
        doing = f"adding up a tensor of shape {shape} on {ranks} rank{'s' * (ranks > 1)}"
        function(mine, doing=doing)
    sent = [nbytes for name, nbytes in counted.calls if name == "send"]
    again = mine.clone()
    function(again, doing=f"{doing}, for the second time")
    return {
        "before": before,
        "after": _told(mine),
        "again": _told(again),
        "sent": len(sent),
        "largest": max(sent, default=0) // mine.element_size(),
        "others": sorted({name for name, _ in counted.calls} - {"send", "recv", "recv_any_source"}),
    }


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Numbers that a shorter type can't hold; whole ones in float32, so that their sum isn't rounded."""
    random = torch.Generator().manual_seed(rank_side.secret_seed())
    if dtype == torch.float64:
        return torch.randn(shape, generator=random, dtype=dtype) * 1000
    most = {torch.int64: 2**60, torch.int32: 2**28}.get(dtype, 1000)
    return torch.randint(-most, most, shape, generator=random).to(dtype)


def _told(tensor: Tensor) -> dict[str, Any]:
    return {
        "values": tensor.flatten().tolist(),
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }


# --- 05.2: a DDP of one's own -----------------------------------------------------------------------------------------


class Toy(nn.Module):
    """A small model with everything that trips a careless DDP: a buffer, a frozen layer, two half-frozen ones, and two
    that share their weight. x of shape (batch, 8) to logits (batch, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(8))
        self.first = nn.Linear(8, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.tied = nn.Linear(16, 16)
        self.again = nn.Linear(16, 16, bias=False)
        self.again.weight = self.tied.weight
        self.wide = nn.Linear(16, 24)
        self.wide.bias.requires_grad_(False)
        self.shift = nn.Linear(24, 24)
        self.shift.weight.requires_grad_(False)
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.frozen(self.first(x - self.mean).relu())
        h = self.again(self.tied(h).relu())
        return self.head(self.shift(self.wide(h).relu()))


class _Watched:
    """An all-reduce that has begun, and notes who waits for it."""

    def __init__(self, work: Any, watch: Watch):
        self._work, self._watch, self._step = work, watch, watch.step
        watch.open.add(id(self))

    def wait(self, *args: Any, **options: Any) -> Any:
        self._watch.note()
        self._watch.stale += self._step != self._watch.step
        self._watch.open.discard(id(self))
        return self._work.wait(*args, **options)

    def __getattr__(self, name: str) -> Any:
        self._watch.open.discard(id(self))  # there are other ways to wait: `get_future`, `is_completed`
        return getattr(self._work, name)


class Watch:
    """Notes in which phase of a step the student's code waits for an all-reduce. Make one before you load the cell,
    which may import `all_reduce` by name."""

    def __init__(self) -> None:
        self.phase = "before"
        self.waits_in_backward = 0
        self.step = self.stale = 0  # `stale` counts waits for all-reduces of another step
        self.open: set[int] = set()  # all-reduces that nobody has waited for
        original = dist.all_reduce

        def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
            if not async_op:
                self.note()
            work = original(tensor, op, group, async_op)
            return _Watched(work, self) if work is not None else None

        dist.all_reduce = all_reduce

    def note(self) -> None:
        self.waits_in_backward += self.phase == "backward"


def ddp(load: Callable[[], ModuleType]) -> None:
    """Trains with the student's wrapper, on two ranks that start from different weights, then on three."""
    watch = Watch()
    answer = load()
    torch.set_default_dtype(torch.float64)
    cls = rank_side.function(answer, "MyDDP", "module", "bucket_bytes")
    for name in ("forward", "finish"):
        if not callable(getattr(answer.MyDDP, name, None)):
            rank_side.problem(f"`MyDDP` has no method `{name}`. Keep the names as they were given.", "missing")
    found = []
    for size in DDP_RANKS:
        with rank_side.world(size) as member:
            found.append(_train_ddp(cls, watch) if member else None)
    rank_side.tell(found=found)


def _train_ddp(cls: Callable[..., Any], watch: Watch) -> dict[str, Any]:
    seed = rank_side.secret_seed()
    module = toy(seed)
    events = _first_gradient(module)
    watch.phase, watch.waits_in_backward, watch.stale = "before", 0, 0
    with rank_side.Collectives() as counted:
        wrapped = cls(module, BUCKET_BYTES, doing="wrapping the model")
        start = state(module)
        optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=LR)
        weights, reduces, nbytes, early, unawaited = [], [], [], [], 0
        for step in range(DDP_STEPS):
            before, calls = _reduces(counted), len(counted.calls)
            watch.step += 1
            watch.open.clear()
            x, y = samples(seed, step)
            optimizer.zero_grad()
            loss = cross_entropy(wrapped(x), y)
            watch.phase, events["sent"] = "backward", None
            events["count"] = lambda before=before: _reduces(counted) - before
            report(call="backward ran with your hooks")
            loss.backward()
            watch.phase = "finish"
            report(call="`finish` ran")
            wrapped.finish()
            report(call="")
            unawaited += len(watch.open)
            optimizer.step()
            weights.append(flat(module))
            reduces.append(_reduces(counted) - before)
            nbytes.append([size for name, size in counted.calls[calls:] if name.startswith("allreduce")])
            early.append(events["sent"])
    return {
        "seed": seed,
        "start": start,
        "weights": weights,
        "reduces": reduces,
        "nbytes": nbytes,
        "early": early,
        "waits": watch.waits_in_backward,
        "stale": watch.stale,
        "unawaited": unawaited,
    }


def _first_gradient(module: Toy) -> dict[str, Any]:
    """Notes how many all-reduces had begun when the gradient of the first layer, the last to arrive, was ready. This
    hook runs before the student's."""
    events: dict[str, Any] = {"sent": None, "count": lambda: 0}

    def noted(_: Tensor) -> None:
        if events["sent"] is None:
            events["sent"] = events["count"]()

    module.first.weight.register_post_accumulate_grad_hook(noted)
    return events


def _reduces(counted: rank_side.Collectives) -> int:
    return sum(name.startswith(("allreduce", "reduce_scatter")) for name, _ in counted.calls)


def toy(seed: int) -> Toy:
    torch.manual_seed(seed)
    return Toy()


def samples(seed: int, number: int) -> tuple[Tensor, Tensor]:
    """A micro-batch of the rank whose seed this is."""
    random = torch.Generator().manual_seed(seed + number)
    return torch.randn(SAMPLES, 8, generator=random), torch.randint(0, 3, (SAMPLES,), generator=random)


def state(model: nn.Module) -> dict[str, Any]:
    return {name: value.tolist() for name, value in model.state_dict().items()}


def flat(model: nn.Module) -> list[float]:
    values: list[float] = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return values


# --- 05.3: choose a bucket size ---------------------------------------------------------------------------------------


def bucket(answer: ModuleType) -> None:
    function = rank_side.function(answer, "best_bucket_bytes", "layers", "all_reduce_s")
    chosen = {}
    for name, (layers, all_reduce_s) in bucket_cases(rank_side.launch_seed()).items():
        value = function(list(layers), all_reduce_s, doing=f"choosing for {name}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            rank_side.problem(
                f"`best_bucket_bytes` returned a {type(value).__name__}; it must return a number of bytes.", "type"
            )
        chosen[name] = float(value)
    rank_side.tell(seed=rank_side.launch_seed(), chosen=chosen)


# --- 05.4: accumulation -----------------------------------------------------------------------------------------------


@contextmanager
def _optimizer_steps(model: nn.Module) -> Iterator[list[list[float]]]:
    """The weights after each optimizer step."""
    weights: list[list[float]] = []
    handle = register_optimizer_step_post_hook(lambda *_: weights.append(flat(model)))
    try:
        yield weights
    finally:
        handle.remove()


def accumulate(answer: ModuleType, given: list[tuple[int, int]]) -> None:
    """Trains with windows of micro-batches on two ranks, and then again with the same objects."""
    torch.set_default_dtype(torch.float64)
    function = rank_side.function(answer, "train", "ddp", "batches", "optimizer", "window")
    seed = rank_side.secret_seed()
    seen: list[list[dict[str, Any]]] = []
    with rank_side.world(2):
        for micro, window in given:
            model = tanh_model()
            wrapped = DDP(model)
            optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR)
            rows: list[int] = []
            model.register_forward_pre_hook(lambda _, inputs, rows=rows: rows.append(len(inputs[0])))
            seen.append([])
            for again in range(2):
                batches = [samples(seed, 100 * again + k) for k in range(micro)]
                doing = f"training {micro} micro-batches in windows of {window}" + ", a second time" * again
                with rank_side.Collectives() as counted, _optimizer_steps(model) as weights:
                    function(wrapped, batches, optimizer, window, doing=doing)
                seen[-1].append({"weights": weights, "reduces": _reduces(counted), "rows": max(rows, default=0)})
                rows.clear()
    rank_side.tell(seed=seed, cases=seen)


def tanh_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
