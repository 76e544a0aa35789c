"""Lesson 12: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Exercise, apart_all, by_rank, differ, gap, require, some
from .cases import (
    LIGHTNING_CASES,
    LIGHTNING_ERRORS,
    LOSS_CASES,
    PENALTY,
    PORT_BATCHES,
    PORT_RANKS,
    SAMPLER_CASES,
    TENSORFLOW_CASES,
    TENSORFLOW_ERRORS,
    answers,
    random_batches,
    random_sets,
    seen_by,
)

ROUNDING = 1e-9  # in double precision
SINGLE = 2e-5  # in single precision, of a number of size 1


# --- 12.1 -------------------------------------------------------------------------------------------------------------


def judge_port(answer: Answer) -> list[str]:
    said = {
        "No inf checks|GradScaler": "precision",
        "no parameters|empty parameter list": "no parameters",
        "second time": "own backward",
    }
    given = [random.randrange(2**32), batches := random.choice(PORT_BATCHES)]
    told = answer.on_ranks("port", ranks=PORT_RANKS, said=said, given=given)
    twin = answer.on_ranks("twins.port", ranks=1, given=given)[0]
    mine = told[0]
    if mine["said"] is not None and gap(mine["said"], twin["loss"]) > ROUNDING:
        differ("loss", [f"{mine['said']:.6f}"], loss=twin["loss"])
    got = by_rank([f"{t['batches']} batches" for t in told])
    require(all(t["batches"] == batches for t in told), "cut short", got, batches=batches)
    got, steps = by_rank([f"{t['steps']} steps" for t in told]), len(twin["rates"])
    require(mine["steps"] == steps, "accumulation", got, steps=steps, batches=batches)
    if gap(mine["rates"], twin["rates"]) > ROUNDING:
        rates = [some([f"{rate:g}" for rate in mine["rates"]])]
        symptom = (
            "no schedule"
            if min(mine["rates"]) == max(mine["rates"]) >= 0.99e-2
            else "once an epoch"
            if len(set(mine["rates"])) == 1
            else "rates"
        )
        differ(symptom, rates, right=some([f"{rate:g}" for rate in twin["rates"]]))
    require(all(t["mode"] for t in told), "eval mode")
    gaps = [gap(t["weights"], twin["norm"]) for t in told]
    symptom = "clipping" if gap(mine["weights"], twin["none"]) < ROUNDING else "weights"
    require(max(gaps) <= ROUNDING, symptom, by_rank([f"off by {off:.2g}" for off in gaps]))
    return [
        "2 ranks, a dozen batches and more: every weight as after the loop with the whole batch",
        "the learning rate of each step is that of the loop",
    ]


# --- 12.2 -------------------------------------------------------------------------------------------------------------


def judge_sampler(answer: Answer) -> list[str]:
    rng = random.Random()
    cases = [*SAMPLER_CASES, *random_sets(rng)]
    asked = [list(range(ranks)) if ranks <= 16 else [0, 1, ranks - 1] for _, ranks in cases]
    found = [answers(n) for n, _ in SAMPLER_CASES] + [
        [rng.random() < 0.7 for _ in range(n)] for n, _ in cases[len(SAMPLER_CASES) :]
    ]
    correct = [
        [[right[i] for i in seen_by(rank, ranks, n)] for rank in range(ranks)]
        for (n, ranks), right in zip(cases, found, strict=True)
    ]
    sets = [(n, ranks, which) for (n, ranks), which in zip(cases, asked, strict=True)]
    shares_of = [(n, c) for (n, _), c in zip(cases, correct, strict=True)]
    told = answer.on_ranks("sampler", ranks=1, given={"sets": sets, "correct": []})[0]
    for (n, ranks, which), seen in zip(sets, told["seen"], strict=True):
        _seen(n, ranks, which, seen)
    told = answer.on_ranks("sampler", ranks=1, given={"sets": [], "correct": shares_of})[0]
    for (n, ranks), right_ones, answers_, share in zip(cases, found, correct, told["shares"], strict=True):
        right = sum(right_ones) / n
        if abs(share - right) < ROUNDING:
            continue
        total, size = sum(map(sum, answers_)), sum(map(len, answers_))
        known = {"counted twice": total / size, "over n": total / n, "a count": float(sum(right_ones))}
        symptom = next((name for name, value in known.items() if abs(value - share) < ROUNDING), "accuracy")
        expected, got = apart_all([right], [share])
        differ(symptom, got, n=n, ranks=ranks, right=expected[0])
    return [
        (
            f"{len(cases)} sets of 1 to 1025 images on 1 to 1024 ranks: the images of each rank, as torch's"
            " sampler gives them"
        ),
        f"{len(cases)} accuracies, each image counted once",
    ]


def _seen(n: int, ranks: int, which: list[int], seen: list[list[int]]) -> None:
    """Compare what these ranks see of n images with what torch's sampler gives them."""
    true = [seen_by(rank, ranks, n) for rank in which]
    if seen == true:
        return
    wrong = [i for i in range(len(which)) if seen[i] != true[i]][:4]  # a few are enough to see it
    shown = sorted({0, 1, 2, 3, *wrong} & set(range(len(which))))[: 4 + len(wrong)]
    got = [(f"rank {which[i]}", some(seen[i], 8)) for i in shown]
    right = "; ".join(f"rank {which[i]}: {some(true[i], 8)}" for i in shown)
    facts: dict[str, Any] = {"n": n, "ranks": ranks, "right": right}
    require(len({len(s) for s in seen}) == 1, "uneven", got, **facts)
    require(all(0 <= i < n for s in seen for i in s), "out of range", got, **facts)
    require(len(seen[0]) >= len(true[0]), "dropped", got, **facts)
    each = len(true[0])
    blocks = [[i % n for i in range(rank * each, (rank + 1) * each)] for rank in which]
    differ("blocks" if seen == blocks else "other images", got, **facts)


# --- 12.3 -------------------------------------------------------------------------------------------------------------


def judge_batches(answer: Answer) -> list[str]:
    cases = random_batches(random.Random())
    fixed: list[Sequence[tuple[int, ...]]]
    fixed = [LIGHTNING_CASES, LIGHTNING_ERRORS, TENSORFLOW_CASES, TENSORFLOW_ERRORS]
    for what, first in zip(cases, fixed, strict=True):
        cases[what] = [*first, *cases[what]]
    told = answer.on_ranks("batches", ranks=1, given=cases)[0]
    for case, pair in zip(cases["lightning"], told["lightning"], strict=True):
        _lightning(case, pair)
    for case, pair in zip(cases["lightning_errors"], told["lightning_errors"], strict=True):
        if pair != "ValueError":
            differ("no error", [str(tuple(pair))], how="lightning", batch=case[0], ranks=case[1] * case[2])
    for (batch, workers, replicas), pair in zip(cases["tensorflow"], told["tensorflow"], strict=True):
        right = [batch, batch // (workers * replicas)]
        if pair != right:
            known = {"local batch": right[1], "batch of a worker": batch // workers}
            symptom = next(
                (name for name, value in known.items() if pair != "ValueError" and pair[0] == value != batch),
                "tensorflow",
            )
            facts: dict[str, Any] = {"batch": batch, "workers": workers, "replicas": replicas, "right": tuple(right)}
            differ(symptom, [str(pair)], **facts)
    for (batch, workers, replicas), pair in zip(cases["tensorflow_errors"], told["tensorflow_errors"], strict=True):
        if pair != "ValueError":
            differ("no error", [str(tuple(pair))], how="tensorflow", batch=batch, replicas=workers * replicas)
    return [
        f"{len(cases['lightning'])} clusters: batch size and accumulation make the global batch, with as few parts as"
        " fit",
        f"{len(cases['tensorflow'])} times TensorFlow's global batch and its replicas' part",
        "what does not divide raises ValueError",
    ]


def _lightning(case: tuple[int, ...], pair: Any) -> None:
    batch, nodes, devices, fits = case
    ranks = nodes * devices
    share = batch // ranks
    parts = next(k for k in range(1, share + 1) if share % k == 0 and share // k <= fits)
    words = f"global batch {batch}, {counted(nodes, 'node')} with {counted(devices, 'device')}, {fits} fit"
    facts: dict[str, Any] = {"case": words, "each": share // parts, "parts": parts, "batch": batch}
    require(pair != "ValueError", "error", **facts)
    size, accumulate = pair
    got = [f"({size}, {accumulate}): steps of {size * accumulate * ranks} images"]
    require(size >= 1 and accumulate >= 1, "none", got, **facts)
    require(size <= fits, "does not fit", got, size=size, **facts)
    if size * accumulate * ranks != batch:
        makes = size * accumulate
        symptom = (
            "global in the loader"
            if makes == batch
            else "nodes left out"
            if makes * devices == batch
            else "another step"
        )
        differ(symptom, got, **facts)
    require(accumulate == parts, "too many parts", got, **facts)


# --- 12.4 -------------------------------------------------------------------------------------------------------------


def _product(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    """Of two matrices."""
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def _loss_facts(told: dict[str, Any], global_batch: int) -> dict[str, Any]:
    """The loss that the replicas returned, the parts of the right one, and how far the weights are from those after a
    step with its gradient. An image's loss is the squared norm of image times kernel."""
    first, images = told["first"], told["images"]
    each = [[sum(v * v for v in row) for row in _product(part, first)] for part in images]
    whole = [row for part in images for row in part]
    slope = _product([list(column) for column in zip(*whole, strict=True)], _product(whole, first))
    after = [
        [w - 2 * s / global_batch - PENALTY * w for w, s in zip(*rows, strict=True)]
        for rows in zip(first, slope, strict=True)
    ]
    return {
        "value": told["value"],
        "penalty": PENALTY * sum(w * w for row in first for w in row) / 2,
        "images": sum(map(sum, each)) / global_batch,
        "local means": sum(sum(part) / len(part) if part else math.nan for part in each),
        "sum": sum(map(sum, each)),
        "gap": gap(told["kernel"], after) / max(1.0, *(abs(s) for row in slope for s in row)),
    }


def judge_loss(answer: Answer) -> list[str]:
    told = answer.on_ranks("loss", ranks=1)[0]["cases"]
    cases = [_loss_facts(t, n) for t, (_, n) in zip(told, LOSS_CASES, strict=True)]

    def near(a: float, b: float) -> bool:
        return abs(a - b) <= SINGLE * max(1.0, abs(b)) or (a != a and b != b)

    def replicas(i: int) -> int:
        return len(LOSS_CASES[i][0])

    known = {
        "local mean": lambda i, c: c["local means"] + c["penalty"],
        "local mean, penalty twice": lambda i, c: c["local means"] + replicas(i) * c["penalty"],
        "mean of means": lambda i, c: (c["local means"]) / replicas(i) + c["penalty"],
        "penalty twice": lambda i, c: c["images"] + replicas(i) * c["penalty"],
        "no penalty": lambda i, c: c["images"],
        "sum": lambda i, c: c["sum"] + c["penalty"],
        "divided twice": lambda i, c: c["images"] / replicas(i) + c["penalty"],
        "two replicas": lambda i, c: c["images"] + replicas(i) * c["penalty"] / 2,
        "penalty over images": lambda i, c: c["images"] + replicas(i) * c["penalty"] / LOSS_CASES[i][1],
    }
    for i, case in enumerate(cases):
        right = case["images"] + case["penalty"]
        parts, global_batch = LOSS_CASES[i]
        words = (
            f"{' and '.join(map(str, parts))} images on {counted(len(parts), 'replica')}, global batch {global_batch}"
        )
        if (
            case["value"] != case["value"]
            and 0 in parts
            and all(near(c["value"], c["images"] + c["penalty"]) for c in cases[:i])
        ):
            differ("empty replica", ["nan"], case=words, right=right)
        if not near(case["value"], right):
            symptom = next(
                (
                    name
                    for name, value in known.items()
                    if all(near(c["value"], value(j, c)) for j, c in enumerate(cases))
                ),
                "another loss",
            )
            got = [
                f"{case['value']:.4f} (it should be {case['images']:.4f} for the images and {case['penalty']:.4f} for"
                " the penalty)"
            ]
            differ(symptom, got, case=words, right=right)
        require(case["gap"] <= SINGLE, "gradient", [f"off by {case['gap']:.2g}"], case=words)
    return [
        f"{len(LOSS_CASES) - 1} global batches, some of them not full: the loss and the update of one device with the"
        " whole batch",
        "the same function on one device",
    ]


EXERCISES = {
    e.name: e
    for e in [
        Exercise("12.1", "port a loop", judge_port, needs="lightning"),
        Exercise("12.2", "what Lightning did with your sampler", judge_sampler, how=""),
        Exercise("12.3", "one batch size, three dialects", judge_batches, how=""),
        Exercise(
            "12.4",
            "scale a loss for replicas",
            judge_loss,
            how="under MirroredStrategy on up to three logical devices",
            needs="tensorflow",
        ),
    ]
}
