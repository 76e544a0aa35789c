"""What the deeper sections of lesson 03 show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_utils import Run, figures, launch, more_checks, predict
from course_utils.for_lessons import Figure, bet, figure_first, say

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"


@figure_first
def show_memory(gpus: int = 4, guess: Any = ...) -> Figure:
    """What GPU 0 holds and what the others hold, at the end of forward and at the end of backward, counted."""
    run = launch(PROGRAMS / "03_memory.py", 1, args=["--gpus", gpus], device="cpu", quiet=True)
    weights, state, loss = (float(run.value(name)) for name in ("parameters", "optimizer", "loss"))
    activations = float(max(run.values("activations")))
    other = {"forward": {"parameters": weights, "activations": activations}}
    other["backward"] = {"parameters": weights, "gradients": float(max(run.values("gradients")))}
    first = {when: held | {"optimizer": state} for when, held in other.items()}
    first["forward"]["gathered outputs and loss"] = loss
    told = {
        when: predict.data_parallel_memory(gpus, weights, gpus * activations, float(run.value("outputs")), at=when)
        for when in ("forward", "backward")
    }
    stacks = {
        f"{who}, end of {when}": held[when] for when in other for who, held in (("GPU 0", first), ("others", other))
    }
    predicted = {
        f"{who}, end of {when}": part
        for when in told
        for who, part in zip(("GPU 0", "others"), told[when], strict=True)
    }
    most = {
        name: max(sum(held.values()) for held in (side["forward"], side["backward"]))
        for name, side in (("first", first), ("other", other))
    }
    times = most["first"] / most["other"]
    say(f"At its fuller moment GPU 0 holds {times:.1f} times what each other holds. {bet(guess, times, **_ON_MEMORY)}")
    more_checks(
        {
            "GPU 0 holds at least half as much again as another": times > 1.5,
            "every replica's gradients are there at the end of backward": len(set(run.values("gradients"))) == 1,
            "the formula says so within 1%": all(
                abs(sum(predicted[name].values()) / sum(stacks[name].values()) - 1) < 0.01 for name in stacks
            ),
        }
    )
    return figures.memory(predicted, stacks, title=f"GPU 0 needs {times:.1f} times the memory of another")


_ON_MEMORY: dict[str, Any] = {
    "close": "you could plan its memory.",
    "over": "The weights are alike.",
    "under": "Adam's state is twice the weights, and all outputs meet there.",
    "kind": "a number, such as 1.5",
}


def show_six_losses(data_parallel: Callable[[nn.Module, Tensor], Tensor], places: int) -> None:
    """The gradient of six losses, in times of the right one, for even and for uneven chunks."""
    rows: dict[str, dict[bool, tuple[float, float]]] = {}
    for size in (3 * places, 3 * places - 1):
        torch.manual_seed(0)
        model = nn.Linear(20, 5).double()
        x, y = torch.randn(size, 20, dtype=torch.float64), torch.randint(5, (size,))
        inside = _WithLoss(model)
        whole = torch.cat([x, y[:, None].double()], 1)
        mean, total = (_gradient(model, cross_entropy(model(x), y, reduction=how)) for how in ("mean", "sum"))
        losses = {
            "DP, mean of all outputs": cross_entropy(data_parallel(model, x), y),
            "DP, mean of the replicas' means": data_parallel(inside, whole).mean(),
            "DP, sum of the replicas' means": data_parallel(inside, whole).sum(),
            "DP, sum over all outputs": cross_entropy(data_parallel(model, x), y, reduction="sum"),
        }
        for name, loss in losses.items():
            right = total if "over all" in name else mean
            rows.setdefault(name, {})[size == 3 * places] = _compared(_gradient(model, loss), right)
    for record in launch(PROGRAMS / "03_six_losses.py", 4, device="cpu", quiet=True).ranks[0].records:
        name = f"DDP, {record['how']} on each rank"
        rows.setdefault(name, {})[record["samples"] == 12] = record["factor"], record["off"]
    print(f"{'':32}{'even chunks':16}uneven chunks")
    for name, found in rows.items():
        print(f"{name:32}{_in_words(*found[True]):16}{_in_words(*found[False])}")
    outside, means, sums, total_ = list(rows)[:4]
    ddp_mean, ddp_sum = list(rows)[4:]
    more_checks(
        {
            "the mean over all outputs is right for uneven chunks, too": _right(rows[outside][False]),
            "a mean of means is right for even chunks only, in both": all(
                _right(rows[m][True]) and not _right(rows[m][False]) for m in (means, ddp_mean)
            ),
            "the sum of means is n times as long": abs(rows[sums][True][0] - places) < 1e-9,
            "a sum over the batch stays one with DataParallel": _right(rows[total_][False]),
            "and becomes its nth part with DDP": abs(rows[ddp_sum][True][0] - 1 / 4) < 1e-9,
        }
    )


def show_replica() -> None:
    """What torch's own `replicate` keeps and what it leaves behind, checked on tensors without data."""
    run = launch(PROGRAMS / "03_replica.py", 1, device="cpu", quiet=True)
    more_checks(
        {
            "torch's replica of a tied matrix is one matrix": run.value("tied"),
            "its weights aren't leaves": not run.value("leaf"),
            "it lists no parameters": run.value("listed") == 0,
            "a number that it changes is lost": run.value("calls") == 0,
            "a list that it changes is shared": run.value("seen") == 1,
        }
    )


def show_norm(
    norm: nn.Module, on_first_chunk: nn.Module, on_all: nn.Module, batch: Tensor, output: Tensor, places: int
) -> None:
    """Whose running mean the model keeps; `on_first_chunk` and `on_all` are copies of it from before the step."""
    whole = on_all(batch)
    on_first_chunk(batch.chunk(places)[0])
    mine, first, all_ = (float(module.running_mean[0]) for module in (norm, on_first_chunk, on_all))
    say(f"Running mean of the first feature: {mine:.2f}. Of the first chunk it's {first:.2f}, of the batch {all_:.2f}.")
    more_checks(
        {
            "the running mean is that of the first chunk": abs(mine - first) < 1e-6,
            "and not that of the batch": abs(mine - all_) > 0.01,
            "each chunk is normalised by itself": (output - whole).abs().max().item() > 0.01,
        }
    )


def show_prefix(run: Run) -> None:
    """What became of a wrapper's state in a plain model."""
    say(f"With strict=False, {run.value('missing')} names were missing, and not a weight changed.")
    more_checks(
        {
            "a plain model refuses the wrapper's state": run.value("refused"),
            "with strict=False it takes it, and no weight changes": not run.value("changed"),
            "and all names are missing": run.value("missing") == 2,
            "without the prefix it loads": run.value("loaded"),
        }
    )


def show_partly(run: Run) -> None:
    """How much crossed between CPU and GPU, next to the table that stayed."""
    crossed, table = run.value("crossed_bytes"), run.value("table_bytes")
    say(f"{crossed / 2**10:.0f} KiB cross to a GPU and back. The table that stays has {table / 2**20:.0f} MiB.")
    more_checks({"a model in two parts has the gradients of the whole": run.value("gap") < 1e-5})


class _WithLoss(nn.Module):
    """Its last column of input is the label; each replica returns the mean loss of its chunk."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Tensor) -> Tensor:
        return cross_entropy(self.model(batch[:, :-1]), batch[:, -1].long())


def _gradient(model: nn.Module, loss: Tensor) -> Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _compared(got: Tensor, right: Tensor) -> tuple[float, float]:
    """How long it is in the direction of the right one, and what points elsewhere."""
    factor = (got @ right / (right @ right)).item()
    return factor, ((got - factor * right).norm() / right.norm()).item()


def _right(found: tuple[float, float]) -> bool:
    return abs(found[0] - 1) < 1e-9 and found[1] < 1e-9


def _in_words(factor: float, off: float) -> str:
    return f"x {factor:.2f}{', bent' if off > 1e-9 else ''}"
