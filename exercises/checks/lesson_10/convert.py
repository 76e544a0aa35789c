"""Lesson 10, exercise 4: a program that was converted from DDP to FSDP, on ranks that have no process group yet, as
torchrun would start them; and its twin in one process."""

from __future__ import annotations

import gc
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import cross_entropy, gelu

from .. import rank_side
from ..files import Files
from ..rank_side import RANKS
from .cases import CONVERT_LR, MAX_NORM, SCALES, ConvertCase

FEATURES, CLASSES, SAMPLES = 24, 4, 6
FILE = "model.pt"
computed_in: set[str] = set()  # types of a block's weights while it computes
kept: list[int] = []  # how many blocks lay whole on this rank at the end of each forward


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _lies_whole(p: Tensor) -> bool:
    return _local(p).shape == p.shape and _local(p).untyped_storage().nbytes() >= p.nbytes


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        computed_in.add(str(self.up.weight.dtype).removeprefix("torch."))
        result: Tensor = x + self.down(gelu(self.up(self.norm(x))))
        return result


class Model(nn.Module):
    def __init__(self, blocks: int, width: int):
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        kept.append(sum(_lies_whole(block.up.weight) for block in self.blocks))
        result: Tensor = self.head(x)
        return result


def new_model(seed: int, case: ConvertCase) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(*case[1:])


def new_batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Those of the rank whose seed this is."""
    drawn = torch.Generator().manual_seed(seed)
    return [
        (scale * torch.randn(SAMPLES, FEATURES, generator=drawn), torch.randint(CLASSES, (SAMPLES,), generator=drawn))
        for scale in SCALES
    ]


# --- on the ranks -----------------------------------------------------------------------------------------------------


class _Made:
    """Makes models when the program asks for one, from the random state that it finds."""

    def __init__(self, case: ConvertCase):
        self.case = case
        self.seeds: list[int] = []  # of those that have weights
        self._weights: dict[int, tuple[StorageWeakRef, int]] = {}  # their memory, and how much that is

    def __call__(self) -> Model:
        seed = int(torch.randint(2**40, (), device="cpu"))
        model = new_model(seed, self.case)
        if not model.head.weight.is_meta:
            self.seeds.append(seed)
            memory = [p.untyped_storage() for p in model.parameters()]
            self._weights |= {one.data_ptr(): (StorageWeakRef(one), one.nbytes()) for one in memory}
        return model

    def still_there(self) -> dict[int, int]:
        """Memory of the weights as they were made that somebody still holds, such as a wrapper: address -> bytes."""
        return {address: nbytes for address, (one, nbytes) in self._weights.items() if not one.expired()}


def _memory(tensors: Iterable[Tensor]) -> dict[int, int]:
    """What lies on this rank of some tensors: address -> bytes. Memory that two of them share is there once."""
    storages = [_local(tensor).untyped_storage() for tensor in tensors if not tensor.is_meta]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _held(optimizer: torch.optim.Optimizer, made: _Made) -> dict[str, Any]:
    """What this rank holds when an optimizer has made a step, in bytes, and which weights of its model lie here whole.
    Models that somebody keeps count as well."""
    gc.collect()
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    averages = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
    named = {id(p): name for model in _models() for name, p in model.named_parameters()}
    weights = _memory([*trained, *(p for model in _models() for p in model.parameters())])
    return {
        "moves": any(p.grad is not None for p in trained),
        "weights": sum((made.still_there() | weights).values()),
        "averages": sum(_memory(averages).values()),
        "whole": [named[id(p)] for p in trained if id(p) in named and _lies_whole(p)],
    }


def _models() -> list[Model]:
    """Also copies, and those of a class that `fully_shard` has made from theirs."""
    return [one for one in gc.get_objects() if issubclass(type(one), Model)]


def _sizes(case: ConvertCase) -> dict[str, int]:
    """Bytes of the weights, of a rank's share of them at the most, and of the largest unit when it's gathered."""
    ranks, blocks, _ = case
    with torch.device("meta"):
        model = Model(*case[1:])

    def share(parameters: Iterable[Tensor]) -> int:
        return sum(p.element_size() * -(-len(p) // ranks) * math.prod(p.shape[1:]) for p in parameters)

    share_of_all, of_a_block = share(model.parameters()), share(model.blocks[0].parameters())
    return {
        "all": sum(p.nbytes for p in model.parameters()),
        "share": share_of_all,
        "unit": ranks * max(of_a_block, share_of_all - blocks * of_a_block),
    }


def script(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """Trains, and tells what this rank made, held, sent in each step, wrote and returned."""
    torch.set_default_dtype(torch.float64)  # what remains between two right answers is then rounding
    case: ConvertCase = (*given["case"],)
    rank_side.watch_groups()
    path = Path(given["folder"]) / FILE
    files, made, seed = Files(path.parent), _Made(case), rank_side.secret_seed()
    steps: list[int] = []  # how many collectives there were up to the end of each step
    held: dict[str, Any] = {}

    def note(optimizer: torch.optim.Optimizer) -> None:
        steps.append(len(counted.calls))
        if len(steps) == 2:
            held.update(_held(optimizer, made))

    may_change = ("the random state", "the environment")
    function = rank_side.function(load(), "main", "make_model", "batches", "path", changes=may_change)
    batches = new_batches(seed)
    rank_side.meet()
    with rank_side.Collectives() as counted, rank_side.after_each_step(note):
        losses = function(made, batches, path, doing=f"training on {RANKS} ranks")
    rank_side.must_return(isinstance(losses, (list, tuple)), "main", losses, "a list with a loss for each batch")
    rank_side.tell(
        seed=seed,
        start=made.seeds[:1],
        held=held,
        calls=[counted.calls[a:b] for a, b in pairwise([0, *steps])],
        types=sorted(computed_in),
        kept=max(kept, default=0),
        sizes=_sizes(case),
        losses=[rank_side.number(loss, "`main`, in its list of losses,") for loss in losses],
        writes=files.writes,
        left=not dist.is_initialized(),
    )


# --- the twin ---------------------------------------------------------------------------------------------------------


def _clip(parameters: list[nn.Parameter], ranks: int) -> None:
    nn.utils.clip_grad_norm_(parameters, MAX_NORM)


def _clip_shards(parameters: list[nn.Parameter], ranks: int) -> None:
    """Each rank by the norm of its own shards."""
    for rank in range(ranks):
        cut = [p.grad.chunk(ranks) for p in parameters if p.grad is not None]
        own = [pieces[rank] for pieces in cut if rank < len(pieces)]
        norm = torch.stack([piece.norm() for piece in own]).norm()
        for piece in own:
            piece.mul_((MAX_NORM / (norm + 1e-6)).clamp(max=1.0))


# What is done with the gradients of a step: as it should be, and as known mistakes do it.
CLIPS: dict[str, Callable[[list[nn.Parameter], int], None]] = {
    "": _clip,
    "own norm": _clip_shards,
    "not clipped": lambda parameters, ranks: None,
}


def twin(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """What one process trains with the batches of all ranks, and how far the weights in the file are from that, as it
    should be and as known mistakes make it. It never loads the answer."""
    torch.set_default_dtype(torch.float64)
    case: ConvertCase = (*given["case"],)
    saved = _saved(Path(given["folder"]) / FILE)
    plain = new_model(given["start"], case)
    fits = saved["shapes"] == {name: list(t.shape) for name, t in plain.state_dict().items()}
    names = list(plain.state_dict())
    if not fits:
        return rank_side.tell(found=saved["found"], shapes=saved["shapes"], names=names, off=None)
    state = saved["state"]
    off = {"the start": _gap(plain, state)}
    losses: list[float] = []
    for how in CLIPS:
        model, losses_of_it = _replay(given["start"], given["seeds"], case, how)
        losses = losses or losses_of_it
        off[how] = _gap(model, state)
    rank_side.tell(found=saved["found"], shapes=saved["shapes"], names=names, off=off, losses=losses)


def _replay(start: int, seeds: list[int], case: ConvertCase, how: str) -> tuple[Model, list[float]]:
    model, losses = new_model(start, case), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONVERT_LR)
    of_ranks = [new_batches(seed) for seed in seeds]
    for step in range(len(SCALES)):
        x, y = (torch.cat(parts) for parts in zip(*(batches[step] for batches in of_ranks), strict=True))
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        CLIPS[how](list(model.parameters()), len(seeds))
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def _gap(model: Model, state: Mapping[str, Tensor]) -> float:
    """The largest difference between a model's weights and some others; infinite where one isn't a number."""
    gaps = [(t - state[name]).abs().max().nan_to_num(nan=math.inf).item() for name, t in model.state_dict().items()]
    return max(gaps)


def _saved(path: Path) -> dict[str, Any]:
    """What a file has: `found` says it in a word, `shapes` has the shape of each tensor by its name."""
    nothing: dict[str, Any] = {"shapes": None, "state": None}
    if not path.is_file():
        return nothing | {"found": "a folder" if path.is_dir() else "nothing"}
    try:
        with zipfile.ZipFile(path) as parts:
            pickled = b"".join(parts.read(name) for name in parts.namelist() if name.endswith("data.pkl"))
        if b"DTensor" in pickled:
            return nothing | {"found": "DTensors"}
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        return nothing | {"found": "something else"}
    if not isinstance(state, dict):
        return nothing | {"found": "something else"}
    shapes = {str(name): list(t.shape) if isinstance(t, Tensor) else None for name, t in state.items()}
    return {"found": "a dict", "shapes": shapes, "state": state}
