"""Who sees which image: the rule by which DistributedSampler deals a data set to ranks, epoch by epoch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from ..figures.canvas import RUST, VERMILION, listing
from .controls import Control
from .drawing import Drawing, View
from .explorer import Explorer, Found, Values

# How DistributedSampler deals images, without torch.


def permutation(n: int, seed: int) -> list[int]:
    """What `torch.randperm(n)` gives with a CPU generator of that seed, without importing torch: Fisher and Yates with
    numbers of the Mersenne Twister. aten/src/ATen/native/TensorFactories.cpp, `randperm_cpu`."""
    state = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    order = list(range(n))
    for i in range(n - 1):
        j = i + generator.getrandbits(32) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order


def dealt(images: int, ranks: int, epoch: int, *, shuffle: bool, drop_last: bool) -> list[list[int]]:
    """The images of each rank, in its order: torch.utils.data.DistributedSampler after `set_epoch(epoch)`."""
    order = permutation(images, epoch) if shuffle else list(range(images))
    each = images // ranks if drop_last else math.ceil(images / ranks)
    whole = (order * math.ceil(ranks * each / images))[: ranks * each]  # cut off, or begun again
    return [whole[rank::ranks] for rank in range(ranks)]


CONTROLS = (
    Control("images", "images", 10, "how many the data set has", 1, 40),
    Control("ranks", "ranks", 4, "how many processes share them", 1, 8),
    Control("epochs", "epochs", 2, "how many to draw", 1, 4),
    Control("shuffle", "shuffle", True, "DistributedSampler(shuffle=True): in random order"),
    Control(
        "set_epoch",
        "set_epoch",
        True,
        "whether the program calls sampler.set_epoch(epoch) before each epoch; without shuffling it does nothing",
        only_with="shuffle",
    ),
    Control("drop_last", "drop_last", False, "leave out what can't be dealt evenly, instead of repeating some"),
)
LEAVES_OUT = (
    "batches: the DataLoader cuts each rank's list into them, and with its own drop_last leaves out a last one that is"
    " not full. The seed is the sampler's default, 0."
)
# Dark to light, as in `figures.who_has_what`: told apart by any kind of colour vision.
_SHADES = ("#00224E", "#2A3F6D", "#575D6D", "#7D7C78", "#A59C74", "#D2C060", "#FEE838")
LIMIT = 6  # in one sentence


def epochs(values: Values) -> list[list[list[int]]]:
    """The images of each rank in each epoch. Without `set_epoch` the sampler believes that it's always epoch 0."""
    return [
        dealt(values["images"], values["ranks"], epoch if values["set_epoch"] else 0,
              shuffle=values["shuffle"], drop_last=values["drop_last"])
        for epoch in range(values["epochs"])
    ]  # fmt: skip


def render(values: Values, found: Found, answered: bool = True) -> View:
    """A grid for each epoch: a row for each rank, a cell for each image. Seen again in an epoch, it gets a frame."""
    order, images = epochs(values), values["images"]
    across = max(1, math.ceil(images / values["ranks"]))
    left, top, gap = 76.0, 48.0, 34.0
    row = 24.0 if values["ranks"] * values["epochs"] <= 16 else 17.0
    cell = min(44.0, (400.0) / across)
    drawing = Drawing(top + values["epochs"] * (values["ranks"] * row + gap) + 48)
    again = [_again(ranks) for ranks in order]
    missing = [sorted(set(range(images)) - {i for seen in ranks for i in seen}) for ranks in order]
    finding = _finding(values, order, again, missing)
    drawing.text(12, 24, finding, 15, bold=True)
    for epoch, ranks in enumerate(order):
        y = top + epoch * (values["ranks"] * row + gap)
        twice = [ranks[rank][at] for rank, at in sorted(again[epoch])]
        drawing.text(left, y + 12, f"epoch {epoch}, steps from left to right", 12)
        if twice:
            words = f"▢ {_copies(len(twice))}, of {_named(sorted(set(twice)))}"
        else:
            words = f"skipped: {_named(missing[epoch])}" if missing[epoch] else ""
        drawing.text(left + 220, y + 12, words, 12, color=RUST)
        for rank, seen in enumerate(ranks):
            drawing.text(left - 8, y + 18 + rank * row + row * 0.68, f"rank {rank}", 12, "end")
            for at, image in enumerate(seen):
                x, up = left + at * cell, y + 18 + rank * row
                share = image / max(1, images - 1)
                drawing.bar(x, up, cell, row, _SHADES[round(share * (len(_SHADES) - 1))], tip=f"image {image}")
                if (rank, at) in again[epoch]:
                    drawing.bar(x + 2, up + 2, cell - 4, row - 4, "none", edge=VERMILION, edge_width=3)
                color = "#FFFFFF" if share < 0.5 else "#000000"
                if cell >= 15:
                    drawing.text(x + cell / 2, up + row * 0.7, str(image), min(12, cell * 0.7), "middle",
                                 bold=(rank, at) in again[epoch], color=color)  # fmt: skip
    goal = _goal(values, order)
    y = drawing.height - 34
    drawing.text(12, y, "a cell is an image; from dark to yellow: image 0 to the last; ▢ seen before in this epoch", 12)
    drawing.text(12, y + 22, "✓ Solved" if goal.startswith("✓") else "", 14, bold=True, color="#00664B")
    return View.of(drawing, f"{finding}. {goal}")


def _again(ranks: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    """(rank, position) of what was dealt before in this epoch, in the order of the steps."""
    met: set[int] = set()
    found = set()
    for at in range(len(ranks[0])):
        for rank, seen in enumerate(ranks):
            if seen[at] in met:
                found.add((rank, at))
            met.add(seen[at])
    return found


def _copies(count: int) -> str:
    return f"{count} extra cop{'ies' if count > 1 else 'y'}"


def _named(images: Sequence[int]) -> str:
    words = listing([str(i) for i in images[:LIMIT]])
    return f"image{'s' * (len(images) > 1)} {words}" + ", …" * (len(images) > LIMIT)


def _finding(values: Values, order: Any, again: Any, missing: Any) -> str:
    repeated, skipped = len(again[0]), len(missing[0])
    if repeated:
        first = f"Each epoch has {_copies(repeated)}"
    elif skipped:
        first = f"Each epoch skips {skipped} of {values['images']} images" if values["images"] > 1 else "Nobody sees it"
    else:
        first = "Every image goes to one rank"
    if values["epochs"] == 1:
        return first
    same = all(ranks == order[0] for ranks in order)
    return f"{first}, and every epoch {'repeats the order' if same else 'has a new order'}"


def _goal(values: Values, order: Sequence[Sequence[Sequence[int]]]) -> str:
    """The puzzle, and what's missing to its solution."""
    goal = "Puzzle: find a setting in which exactly one image is never seen, however many epochs you train"
    left = values["images"] % values["ranks"] if values["drop_last"] else 0
    if left and (values["images"] < values["ranks"]):
        return f"{goal}. With `drop_last` and fewer images than ranks, nobody sees anything."
    if left != 1:
        return f"{goal}{f'. Here {left} are skipped; you want exactly one' * (left > 1)}."
    if values["shuffle"] and values["set_epoch"]:
        return f"{goal}. Close: one is skipped, but in each epoch it's another one."
    (lost,) = set(range(values["images"])) - {i for seen in order[0] for i in seen}
    told = f"✓ Solved. Nobody ever sees image {lost}: no error, no warning, and one image less to learn from."
    if values["shuffle"]:
        return f"{told} It's how it happens in real programs: shuffled, and nobody calls `set_epoch`."
    return f"{told} Now find it with shuffle on."


def samples(**settings: Any) -> Explorer:
    """Who sees which image. `settings` are images, ranks, epochs, shuffle, set_epoch and drop_last."""
    return Explorer("samples", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT)
