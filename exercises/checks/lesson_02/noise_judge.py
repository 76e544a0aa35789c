"""Lesson 02, exercise 4: says which rank loads what, and compares the noise that they got."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from ..judging import Answer, differ, require
from .cases import AUGMENTED, EPOCHS, UNIT, noises

Noise = list[list[int]]  # for each image its numbers, in units of `UNIT`
RANKS = 3


def judge_augmented(answer: Answer) -> list[str]:
    draw = random.randrange(2**32)
    told = answer.on_ranks("noise.augmented", ranks=RANKS, given=asks(draw))
    decide(compare({name: noise for rank in told for name, noise in rank.items()}, draw))
    return [
        (
            f"{EPOCHS} epochs with 0 to 3 workers, and in another order: each image gets the noise of its seed, epoch"
            " and index"
        ),
        "no two images, epochs or seeds share their noise, not even among 100,000 images; it is the same in another"
        " process, and for other images",
        "global random states and the images are left alone",
    ]


def asks(draw: int) -> list[dict[str, Any]]:
    """What each rank does, by name. What has to be the same is never asked of one rank: an answer that remembers its
    noise, or finds it in our frames, has nothing to repeat."""
    order = list(range(AUGMENTED))

    def load(epoch: int, workers: int = 0, seed: int = 0, order: list[int] = order) -> dict[str, Any]:
        return {"task": "load", "seed": seed, "epoch": epoch, "workers": workers, "order": order}

    def items(epoch: int, indices: list[int]) -> dict[str, Any]:
        return {"task": "items", "epoch": epoch, "indices": indices}

    def black(n: int, size: int, seed: int, epoch: int, salted: bool = False) -> dict[str, Any]:
        return {"task": "black", "n": n, "size": size, "seed": seed, "epoch": epoch, "salted": salted}

    first = {_alone(epoch): load(epoch) for epoch in range(EPOCHS)}
    turned = {"turned": load(1, order=order[::-1]), "again": items(2, [5, 5, 0])}
    workers = {n: {_with_workers(n, epoch): load(epoch, n) for epoch in (0, 1)} for n in (1, 2, 3)}
    return [
        first | {"single": items(EPOCHS, [0, 1, 2, 3]), "salted": black(4, 4, 3, 1, salted=True)},
        turned
        | {"seed": load(0, seed=1), "black": black(AUGMENTED // 2, 8, 0, 1), "unsalted": black(4, 4, 3, 1)}
        | {"many": {"task": "many", "draw": draw}},
        {"elsewhere": load(2)} | workers[1] | workers[2] | workers[3],
    ]


def _alone(epoch: int) -> str:
    return f"epoch {epoch}"


def _with_workers(n: int, epoch: int) -> str:
    return f"epoch {epoch} with {n}"


def compare(told: dict[str, Any], draw: int) -> dict[str, Any]:
    """What is the same and what isn't, in what all ranks told."""
    alone = [told[_alone(epoch)] for epoch in range(EPOCHS)]
    rows: Noise = sum(alone, [])
    numbers = [v * UNIT for row in rows for v in row]
    return {
        "pairs": [[divmod(a, AUGMENTED), divmod(b, AUGMENTED)] for a, b in _alike(rows)],
        "touched": told["single"]["touched"],
        "elsewhere": _same(told["elsewhere"], alone[2]),
        "workers": [n for n in (1, 2, 3) if not all(_same(told[_with_workers(n, e)], alone[e]) for e in (0, 1))],
        "order": _same(told["turned"], alone[1]) and _same(told["again"]["noise"], [alone[2][i] for i in (5, 5, 0)]),
        "seed": not _same(told["seed"], alone[0]),
        "mean": statistics.fmean(numbers),
        "std": statistics.pstdev(numbers),
        "beyond": sum(abs(v) > 2 for v in numbers) / len(numbers),
        "collision": _collision(told["many"], draw, lambda noise: [tuple(noise)]),
        "borrowed": _collision(told["many"], draw, _most_of),
        "salted": _same(told["salted"], told["unsalted"]),
        "images": _same(told["black"], alone[1][: AUGMENTED // 2]),
        "repeats": len(rows[0]) - len({round(v / 10) for v in rows[0]}),
    }


def _near(a: list[int], b: list[int], units: int) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= units for x, y in zip(a, b, strict=True))


def _same(one: Noise, other: Noise) -> bool:
    """Equal but for rounding: adding noise to another image rounds it in another way."""
    return len(one) == len(other) and all(_near(a, b, 1) for a, b in zip(one, other, strict=True))


def _alike(rows: Noise) -> list[tuple[int, int]]:
    """Each row that repeats an earlier one, after the first that it repeats."""
    pairs = ((next((a for a in range(b) if _near(rows[a], rows[b], 5)), None), b) for b in range(len(rows)))
    return [(a, b) for a, b in pairs if a is not None]


Keys = Callable[[list[int]], Iterable[tuple[int, ...]]]


def _collision(many: Noise, draw: int, keys: Keys) -> list[tuple[int, int, int]]:
    """The first two (seed, epoch, index) whose noises have a key in common; none is right."""
    seen: dict[tuple[int, ...], tuple[int, int, int]] = {}
    for asked, noise in zip(noises(draw), many, strict=True):
        found = set(keys(noise))
        if common := next((key for key in found if key in seen), None):
            return [seen[common], asked]
        seen |= dict.fromkeys(found, asked)
    return []


def _most_of(noise: list[int]) -> Iterable[tuple[int, ...]]:
    """Whatever is left of a small image's four numbers when they're negated, turned, or moved on by one."""
    return itertools.combinations(sorted(map(abs, noise)), 3)


def decide(found: dict[str, Any]) -> None:
    """Raise the first `Difference`; `found` is from `compare`."""
    pairs = found["pairs"]
    across = [(a, b) for a, b in pairs if a[0] != b[0] and a[1] != b[1]]
    if len(pairs) > 2 and all(a[0] == b[0] for a, b in pairs[:3]):
        (epoch, one), (_, other) = pairs[0]
        differ("same for all", epoch=epoch, one=one, other=other)
    require(all(a[1] != b[1] for a, b in pairs), "same every epoch")
    require(not found["touched"], "global state", touched=" and ".join(found["touched"]))
    require(found["elsewhere"], "another process", how="another")
    if found["workers"]:
        differ("workers matter", workers=found["workers"][0])
    require(found["order"], "order matters")
    if across:
        (epoch, image), (other_epoch, other) = across[0]
        others = len(across) - 1
        differ(
            "sums collide", how="epochs", image=image, epoch=epoch, other=other, other_epoch=other_epoch, others=others
        )
    require(found["seed"], "seed ignored")
    _normal(found)
    for how, symptom in (("collision", "sums collide"), ("borrowed", "borrowed")):
        if found[how]:
            names = ("seed", "epoch", "index", "other_seed", "other_epoch", "other")
            differ(symptom, how="seeds", **dict(zip(names, sum(map(list, found[how]), []), strict=True)))
    require(found["salted"], "another process", how="salted")
    require(found["images"], "images matter")
    require(found["repeats"] <= 40, "repeats inside", n=found["repeats"])  # of 192; rounded numbers may meet by chance


def _normal(found: dict[str, Any]) -> None:
    ok = abs(found["mean"]) <= 0.05 and abs(found["std"] - 1) <= 0.05
    require(ok, "not normal", how="moments", mean=found["mean"], std=found["std"])
    require(0.03 < found["beyond"] < 0.06, "not normal", how="tails", beyond=found["beyond"])
