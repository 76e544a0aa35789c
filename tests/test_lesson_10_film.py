"""Exercise 10.5: which films of a step of FSDP its check takes; and that the real `fully_shard` makes such a film."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT, checks

from course_utils import launch

SOLUTION = ROOT / "solutions" / "10_sharded_training_solutions.ipynb"
Difference = checks("judging").Difference
film_judge = checks("lesson_10.film_judge")

# The program of the text, with a camera. Blocks have different sizes, so that a collective tells whose it is. What the
# camera can't see begin is a free: it notes that before the next frame, when a block isn't whole any more.
PROGRAM = """
import sys
from itertools import pairwise
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from course_utils.rank import report

frames, whole = [], set()

def take(kind, which):
    now = {i for i, block in enumerate(blocks) if not isinstance(block.up.weight, DTensor)}
    frames.extend(("free", i) for i in sorted(whole - now))
    whole.clear()
    whole.update(now)
    frames.append((kind, which))

class Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, i):
        ctx.i = i
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        take("backward", ctx.i)
        return gradient, None

class Block(nn.Module):
    def __init__(self, i):
        super().__init__()
        self.i, self.up, self.down = i, nn.Linear(4, 4 * (i + 1)), nn.Linear(4 * (i + 1), 4)

    def forward(self, x):
        take("forward", self.i)
        return Mark.apply(self.down(torch.relu(self.up(x))), self.i)

class Camera(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace in ("c10d", "_c10d_functional"):
            kind = "reduce-scatter" if "reduce_scatter" in function.name() else "gather"
            assert kind == "reduce-scatter" or "gather" in function.name(), function.name()
            take(kind, sum(t.nbytes for t in args if isinstance(t, torch.Tensor)))
        return function(*args, **(kwargs or {}))

dist.init_process_group()
reshard = sys.argv[2] == "True"
model = nn.Sequential(*(Block(i) for i in range(int(sys.argv[1]))))
blocks = list(model)
mesh = init_device_mesh("cpu", (2,))
if sys.argv[3] == "as it comes":
    for block in blocks:
        fully_shard(block, mesh=mesh)
else:
    for i, block in enumerate(blocks):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard and i < len(blocks) - 1)
fully_shard(model, mesh=mesh)
if sys.argv[3] != "later":
    for block, following in pairwise(blocks):
        block.set_modules_to_forward_prefetch([following])
optimizer = torch.optim.AdamW(model.parameters())
optimizer.register_step_pre_hook(lambda *_: take("update", 0))
x = torch.ones(3, 4, requires_grad=True)
for step in range(2):                                     # the first one also sets things up
    frames.clear()
    with Camera():
        model(x).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
sizes = {kind: sorted({size for k, size in frames if k == kind}) for kind in ("gather", "reduce-scatter")}
names = [(kind, sizes[kind].index(which) if kind in sizes else which) for kind, which in frames]
report(frames=[kind if kind == "update" else f"{kind} {i}" for kind, i in names])
dist.destroy_process_group()
"""


def symptom(frames: list[str], blocks: int, reshard: bool) -> str:
    """What's decided of a film: a symptom, or "" for a right one."""
    try:
        film_judge.decide(frames, blocks, reshard)
    except Difference as found:
        return str(found.symptom)
    return ""


def solution() -> str:
    """The cell that answers the exercise, without its magic."""
    (found,) = (c.source for c in nbformat.read(SOLUTION, 4).cells if c.source.startswith("%%exercise 10.5"))
    return str(found.partition("\n")[2])


def right(blocks: int, reshard: bool) -> list[str]:
    """The solution's film."""
    names: dict[str, object] = {}
    exec(solution(), names)
    film: list[str] = names["film"](blocks, reshard)  # type: ignore[operator]
    return film


def every_right_film(blocks: int, reshard: bool) -> Iterator[list[str]]:
    """All orders that keep the rules: what's free is where a reduce-scatter comes, and without a gather a free."""
    film = right(blocks, reshard)
    starts = [i for i, frame in enumerate(film) if frame.startswith("backward")]
    gaps = []
    for start, end in zip(starts, [*starts[1:], len(film) - 1], strict=True):
        others = [frame for frame in film[start + 1 : end] if not frame.startswith("reduce")]
        scatter = f"reduce-scatter {film[start].split()[1]}"
        gaps.append([[film[start], *others[:at], scatter, *others[at:]] for at in range(len(others) + 1)])
    for chosen in itertools.product(*gaps):
        yield [*film[: starts[0]], *itertools.chain(*chosen), "update"]


def real(folder: Path, blocks: int, reshard: bool, way: str = "ahead") -> list[str]:
    """The film of a real step of rank 0, of two."""
    (folder / "film.py").write_text(PROGRAM)
    run = launch(folder / "film.py", 2, [str(blocks), str(reshard), way], device="cpu", threads=1, quiet=True)
    seen: list[list[str]] = [rank.values("frames")[0] for rank in run.ranks]
    assert seen[0] == seen[1]
    return seen[0]


@pytest.mark.parametrize("reshard", [True, False])
def test_the_real_step_makes_such_a_film(reshard: bool, tmp_path: Path) -> None:
    """The program of the text, on two ranks: its frames keep the rules, and are those of the solution."""
    film = real(tmp_path, 4, reshard)
    assert symptom(film, 4, reshard) == ""
    assert film == right(4, reshard)
    counted = Counter(frame.split()[0] for frame in film)
    assert counted["gather"] == (7 if reshard else 4) and counted["reduce-scatter"] == 4


def test_without_its_last_line_the_program_asks_for_gathers_one_computation_later(tmp_path: Path) -> None:
    """As the text says, and only in forward."""
    film = real(tmp_path, 3, True, way="later")
    assert symptom(film, 3, True) == "not hidden"
    backward = film.index("forward 2")
    assert film[backward:] == right(3, True)[right(3, True).index("forward 2") :]
    assert film[:backward] == "gather 0,forward 0,free 0,gather 1,forward 1,free 1,gather 2".split(",")


def test_as_it_comes_the_last_block_is_freed_too_and_gathered_again_at_once(tmp_path: Path) -> None:
    """As the text says of `fully_shard` without `reshard_after_forward`."""
    film, kept = real(tmp_path, 3, True, way="as it comes"), right(3, True)
    assert symptom(film, 3, True) == "last freed"
    at = kept.index("forward 2") + 1
    assert film == [*kept[:at], "free 2", "gather 2", *kept[at:]]


def test_the_text_has_the_program_and_the_frames() -> None:
    cells = {cell.id: cell.source for cell in nbformat.read(SOLUTION, 4).cells}
    text = " ".join(cells["film"].split())
    here = PROGRAM.replace("mesh=mesh, ", "").replace(", mesh=mesh", "")
    shown = cells["film"].partition("```python")[2].partition("```")[0].strip().splitlines()
    assert len(shown) == 5 and all(line.partition("#")[0].strip() in here for line in shown)
    counted = Counter(right(3, True))
    for kind in ("gather", "forward", "free", "backward", "reduce-scatter"):
        numbers = [str(i) for i in range(3) for _ in range(counted[f"{kind} {i}"])]
        assert f"| `{kind}` | {', '.join(numbers)} |" in text
    assert f"these {len(right(3, True))} lay on the floor" in text
    assert ", ".join(right(3, True)) in text.replace("<br>", " ")


@pytest.mark.parametrize("reshard", [True, False])
def test_of_all_orders_of_one_block_two_are_right(reshard: bool) -> None:
    orders = itertools.permutations(["gather 0", "forward 0", "backward 0", "free 0", "reduce-scatter 0", "update"])
    assert sum(symptom(list(order), 1, reshard) == "" for order in orders) == 2


@pytest.mark.parametrize(("blocks", "reshard"), [(2, True), (2, False), (3, True), (3, False), (5, True)])
def test_every_order_that_keeps_the_rules_is_right_and_no_other(blocks: int, reshard: bool) -> None:
    """No other: a frame of a right film that's put somewhere else, left out, or doubled."""
    every = {tuple(film) for film in every_right_film(blocks, reshard)}
    assert len(every) == (4 * 3 ** (blocks - 2) if reshard else 2**blocks)
    assert all(symptom(list(film), blocks, reshard) == "" for film in every)
    for film in random.Random(0).sample(sorted(every), min(4, len(every))):
        for i, frame in enumerate(film):
            rest = [*film[:i], *film[i + 1 :]]
            assert symptom(rest, blocks, reshard), f"without {frame}"
            for j in range(len(film)):
                moved = (*rest[:j], frame, *rest[j:])
                assert (symptom(list(moved), blocks, reshard) == "") == (moved in every), (frame, j)
                assert symptom([*film[:j], frame, *film[j:]], blocks, reshard), (frame, j)


def test_anything_else_gets_a_symptom_and_no_error_of_ours() -> None:
    """Random frames, those of a longer film, numbers that are none."""
    draw, known = random.Random(1), right(4, True)
    for _ in range(2000):
        frames = draw.choices(known, k=draw.randint(0, 24)) if draw.random() < 0.5 else draw.sample(known, len(known))
        assert symptom(frames, draw.randint(1, 4), draw.random() < 0.5) or frames == known
    odd_ones = ("gather", "gather ", "gather 00", "gather -1", "gather \u0663", "gather 0\n", "Update", "9" * 9000)
    for odd in (*odd_ones, f"free {'9' * 9000}"):
        assert symptom([*known, odd], 4, True) == "frames"
