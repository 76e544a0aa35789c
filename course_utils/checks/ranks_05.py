"""Lesson 05 on the ranks: one adapter a task runs the student's code, and tells what it computed, sent and waited for."""

from __future__ import annotations

import copy
import sys
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

from course_utils.checks import inside
from course_utils.checks.cases_05 import BUCKET_BYTES, BUCKET_CASES, DDP_STEPS, LR, RING_CASES, WINDOWS
from course_utils.checks.inside import RANK
from course_utils.rank import report

# --- 05.1: ring all-reduce ------------------------------------------------------------------------------------------------


def ring(answer: ModuleType) -> None:
    """Gives every rank numbers of its own, counts messages, and compares with the sum that everybody can compute."""
    function = inside.function(answer, "ring_all_reduce", "tensor")
    seen: list[dict[str, Any] | None] = [None] * len(RING_CASES)
    for size in sorted({case[0] for case in RING_CASES}):
        with inside.world(size) as member:
            for i, (ranks, shape, dtype) in enumerate(RING_CASES):
                if member and ranks == size:
                    seen[i] = _ring_case(function, i, ranks, shape, getattr(torch, dtype))
    inside.tell(cases=seen)


def _ring_case(function: Callable[..., Any], number: int, ranks: int, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    def numbers(rank: int) -> Tensor:
        return torch.randint(-1000, 1000, shape, generator=torch.Generator().manual_seed(100 * number + rank)).to(dtype)

    mine = numbers(RANK)
    total = torch.stack([numbers(rank) for rank in range(ranks)]).sum(0)
    with inside.Collectives() as counted:
        function(mine, doing=f"adding up a tensor of shape {tuple(shape)} on {ranks} rank{'s' * (ranks > 1)}")
    sent = [nbytes for name, nbytes in counted.calls if name == "send"]
    others = sorted({name for name, _ in counted.calls} - {"send", "recv", "recv_any_source"})
    right = (mine - total).abs() < 1e-9 if mine.shape == total.shape else torch.zeros(1, dtype=torch.bool)
    return {
        "right": int(right.sum()),
        "of": total.numel(),
        "unchanged": torch.equal(mine, numbers(RANK)),
        "shape": list(mine.shape),
        "sent": len(sent),
        "largest": max(sent, default=0) // mine.element_size(),
        "others": others,
    }


# --- 05.2: a DDP of one's own -----------------------------------------------------------------------------------------------


class Toy(nn.Module):
    """Small, with what trips a careless DDP: a buffer, a frozen layer, and two layers that share their weight. x of shape (batch, 8) to logits (batch, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(8))
        self.first = nn.Linear(8, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.tied = nn.Linear(16, 16)
        self.again = nn.Linear(16, 16, bias=False)
        self.again.weight = self.tied.weight
        self.wide = nn.Linear(16, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.frozen(self.first(x - self.mean).relu())
        h = self.again(self.tied(h).relu())
        return self.head(self.wide(h).relu())


class _Watched:
    """A collective under way, that notes when it is waited for."""

    def __init__(self, work: Any, note: Callable[[], None]):
        self._work, self._note = work, note

    def wait(self, *args: Any, **options: Any) -> Any:
        self._note()
        return self._work.wait(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class Watch:
    """What the student's code sends in each phase of a step, and where it waits. In place before the cell is loaded, which may import `all_reduce` by name."""

    def __init__(self) -> None:
        self.phase = "before"
        self.waits_in_backward = 0
        original = dist.all_reduce

        def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
            if not async_op:
                self.note()
            work = original(tensor, op, group, async_op)
            return _Watched(work, self.note) if work is not None else None

        dist.all_reduce = all_reduce

    def note(self) -> None:
        self.waits_in_backward += self.phase == "backward"


def ddp(answer: ModuleType, watch: Watch) -> None:
    """Trains with the student's wrapper, on two ranks that start differently; the twin has both ranks' samples in one process."""
    torch.set_default_dtype(torch.float64)
    cls = inside.function(answer, "MyDDP", "module", "bucket_bytes")
    for name in ("forward", "finish"):
        if not callable(getattr(answer.MyDDP, name, None)):
            inside.problem(f"`MyDDP` has no method `{name}`. Keep the names as they were given.", "missing")
    with inside.world(2):
        module = Toy()
        events = _first_gradient(module)
        with inside.Collectives() as counted:
            wrapped = cls(module, BUCKET_BYTES, doing="wrapping the model")
            start = {name: value.clone() for name, value in module.state_dict().items()}
            optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=LR)
            weights, reduces, early = [], [], []
            for step in range(DDP_STEPS):
                before = _reduces(counted)
                x, y = _samples(step, RANK)
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
                optimizer.step()
                weights.append(flat(module))
                reduces.append(_reduces(counted) - before)
                early.append(events["sent"])
    _exchange("ddp", {"start": start, "weights": weights, "reduces": reduces, "early": early, "waits": watch.waits_in_backward}, _compare_ddp)


def _first_gradient(module: Toy) -> dict[str, Any]:
    """Notes how many all-reduces had begun when the gradient of the first layer, the last to come, was ready. Before the student's own hook runs."""
    events: dict[str, Any] = {"sent": None, "count": lambda: 0}

    def noted(_: Tensor) -> None:
        if events["sent"] is None:
            events["sent"] = events["count"]()

    module.first.weight.register_post_accumulate_grad_hook(noted)
    return events


def _reduces(counted: inside.Collectives) -> int:
    return sum(name.startswith(("allreduce", "reduce_scatter")) for name, _ in counted.calls)


def _samples(step: int, rank: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(6, 8, generator=random), torch.randint(0, 3, (6,), generator=random)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.shape == b.shape else float("inf")


def _exchange(name: str, mine: dict[str, Any], compare: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
    """Both ranks leave what they saw in a file, and rank 0 compares: a collective here could be swallowed by one that the student left half done."""
    own = inside.folder() / f"{name}{RANK}.pt"
    torch.save(mine, own.with_suffix(".part"))
    own.with_suffix(".part").rename(own)
    if RANK == 0:
        other = own.with_name(f"{name}1.pt")
        inside.wait_for(own, other)
        inside.tell(**compare([torch.load(path) for path in (own, other)]))


def _compare_ddp(traces: list[dict[str, Any]]) -> dict[str, Any]:
    starts = [t["start"] for t in traces]
    twin = Toy()
    twin.load_state_dict(starts[0])
    optimizer = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=LR)
    summed = copy.deepcopy(twin)  # a twin that makes a known mistake: the sum over ranks instead of the mean
    other = torch.optim.SGD([p for p in summed.parameters() if p.requires_grad], lr=2 * LR)
    twin_gap, sum_gap = [], []
    for step in range(DDP_STEPS):
        x, y = (torch.cat(parts) for parts in zip(*(_samples(step, rank) for rank in (0, 1)), strict=True))
        for model, opt in ((twin, optimizer), (summed, other)):
            opt.zero_grad()
            cross_entropy(model(x), y).backward()
            opt.step()
        twin_gap.append([gap(flat(twin), t["weights"][step]) for t in traces])
        sum_gap.append(max(gap(flat(summed), t["weights"][step]) for t in traces))
    return {
        "start_gap": {k: gap(starts[0][k], starts[1][k]) for k in starts[0] if gap(starts[0][k], starts[1][k]) > 0},
        "rank_gap": [gap(a, b) for a, b in zip(*(t["weights"] for t in traces), strict=True)],
        "twin_gap": twin_gap,
        "sum_gap": sum_gap,
        "reduces": [t["reduces"] for t in traces],
        "early": [t["early"] for t in traces],
        "waits": [t["waits"] for t in traces],
        "nbytes": [p.nbytes for p in twin.parameters() if p.requires_grad],
    }


# --- 05.3: choose a bucket size -----------------------------------------------------------------------------------------------


def bucket(answer: ModuleType) -> None:
    function = inside.function(answer, "best_bucket_bytes", "layers", "all_reduce_s")
    chosen = {}
    for name, (layers, all_reduce_s) in BUCKET_CASES.items():
        value = function(list(layers), all_reduce_s, doing=f"choosing for {name}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            inside.problem(f"`best_bucket_bytes` returned a {type(value).__name__}; it must return a number of bytes.", "type")
        chosen[name] = float(value)
    inside.tell(chosen=chosen)


# --- 05.4: accumulation ---------------------------------------------------------------------------------------------------------


@contextmanager
def _optimizer_steps(model: nn.Module) -> Iterator[list[Tensor]]:
    """The weights after each optimizer step."""
    weights: list[Tensor] = []
    handle = register_optimizer_step_post_hook(lambda *_: weights.append(flat(model)))
    try:
        yield weights
    finally:
        handle.remove()


def accumulate(answer: ModuleType) -> None:
    """Trains with windows of micro-batches on two ranks; rank 0 replays them in one process."""
    torch.set_default_dtype(torch.float64)
    function = inside.function(answer, "train", "ddp", "batches", "optimizer", "window")
    seen = []
    with inside.world(2):
        for micro, window in WINDOWS:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            wrapped = DDP(model)
            optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR)
            batches = [_samples(k, RANK) for k in range(micro)]
            with inside.Collectives() as counted, _optimizer_steps(model) as weights:
                function(wrapped, batches, optimizer, window, doing=f"training {micro} micro-batches in windows of {window}")
            seen.append({"weights": weights, "reduces": _reduces(counted)})
    _exchange("windows", {"cases": seen}, _compare_windows)


def _replay(micro: int, window: int, how: str = "") -> list[Tensor]:
    """The weights of one process after each step; `how` makes a known mistake."""
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(twin.parameters(), lr=LR)
    found = []
    for begin in range(0, micro, window):
        part = range(begin, min(begin + window, micro))
        x, y = (torch.cat(parts) for parts in zip(*(_samples(k, rank) for k in part for rank in (0, 1)), strict=True))
        if how != "old gradients":
            optimizer.zero_grad()
        factor = {"sum": len(part), "last window": len(part) / window}.get(how, 1.0)
        (cross_entropy(twin(x), y) * factor).backward()
        optimizer.step()
        found.append(flat(twin))
    return found


def _compare_windows(traces: list[dict[str, Any]]) -> dict[str, Any]:
    cases = []
    for i, (micro, window) in enumerate(WINDOWS):
        ranks = [t["cases"][i] for t in traces]
        steps = [len(r["weights"]) for r in ranks]
        wanted = _replay(micro, window)
        mistakes = {}
        for how in ("sum", "last window", "old gradients"):
            replayed = _replay(micro, window, how)
            if min(steps) == len(wanted):
                mistakes[how] = max(gap(a, b) for r in ranks for a, b in zip(replayed, r["weights"], strict=False))
        cases.append(
            {
                "steps": steps,
                "reduces": [r["reduces"] for r in ranks],
                "rank_gap": [gap(a, b) for a, b in zip(*(r["weights"] for r in ranks), strict=False)],
                "twin_gap": [max(gap(w, r["weights"][k]) for r in ranks) for k, w in enumerate(wanted[: min(steps)])],
                "mistakes": mistakes,
            }
        )
    return {"cases": cases}


if __name__ == "__main__":
    task = sys.argv[1]
    watch = Watch() if task == "ddp" else None
    module = inside.load(sys.argv[2])
    if watch is not None:
        ddp(module, watch)
    else:
        {"ring": ring, "bucket": bucket, "accumulate": accumulate}[task](module)
