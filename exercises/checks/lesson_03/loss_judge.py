"""Lesson 03, exercise 4: draws the batches, deals out their chunks, and compares loss and gradient with one device."""

from __future__ import annotations

import math
import random
from typing import Any

from ..judging import Answer, apart, dealt, differ, some
from . import cases

RANKS = 4  # chunk k runs on rank k modulo RANKS


def judge_loss(answer: Answer) -> list[str]:
    draw = random.Random()
    asked = cases.loss_cases(draw)
    sizes = [_sizes(rows, n) for rows, n, _ in asked]
    # Fixed batches are the same in each check: a known mistake then gives the same numbers.
    draws = [random.Random(i) if i < len(cases.LOSS_CASES) else draw for i in range(len(asked))]
    batches = [cases.loss_batch(d, rows, ignored) for d, (rows, _, ignored) in zip(draws, asked, strict=True)]
    others = [cases.loss_batch(draw, rows, ignored) for rows, _, ignored in asked]
    with dealt(
        [[(_model(b), _chunks(b, s)[r::RANKS]) for b, s in zip(batches, sizes, strict=True)] for r in range(RANKS)]
    ) as folder:
        ranks = answer.on_ranks("losses.replicas", ranks=RANKS, given={"dealt": folder})
    results = [
        [ranks[k % RANKS]["results"][i][k // RANKS] for k in range(len(chunks))] for i, chunks in enumerate(sizes)
    ]
    given = {"results": results, "others": [(_model(b), _chunks(b, s)) for b, s in zip(others, sizes, strict=True)]}
    totals = answer.on_ranks("losses.totals", ranks=1, given=given)[0]["totals"]
    twins = answer.on_ranks("twins.whole_loss", ranks=1, given=list(zip(batches, sizes, strict=True)))[0]["cases"]
    for case, chunks, parts, total, twin in zip(asked, sizes, results, totals, twins, strict=True):
        decide(case, chunks, join(parts, total, twin))
    return [
        (
            f"{len(batches)} batches of 5 to 40 samples on 2 to 7 devices: loss and gradient of one device, also"
            " for uneven chunks"
        ),
        "every class counts with its weight; ignored labels do not count, not even where a replica has nothing else",
        "a replica returns a few numbers, however many samples it has, and the total is made of them alone",
    ]


def _sizes(rows: int, n: int) -> list[int]:
    """The rows of each chunk, as `torch.chunk` cuts them."""
    size = -(-rows // n)
    return [min(size, rows - start) for start in range(0, rows, size)]


def _model(batch: dict[str, Any]) -> dict[str, Any]:
    """What all replicas have of a batch: the model's parameters, and the classes' weights."""
    return {name: batch[name] for name in ("parameters", "weight")}


def _chunks(batch: dict[str, Any], sizes: list[int]) -> list[Any]:
    return [
        (batch["x"][k * sizes[0] : k * sizes[0] + size], batch["y"][k * sizes[0] : k * sizes[0] + size])
        for k, size in enumerate(sizes)
    ]


def join(parts: list[dict[str, Any]], total: dict[str, Any], twin: dict[str, Any]) -> dict[str, Any]:
    """One batch: what the answer makes of it, and what one device does. The gradient follows from the chain rule: the
    loss by the replicas' numbers, times those by the parameters."""
    seen = {
        "loss": total["loss"],
        "right": twin["loss"],
        "known": twin["known"],
        "dtypes": [parts[0]["dtype"], total["dtype"]],
        "numbers": sum(len(part["numbers"]) for part in parts) / len(parts),
        "gradient": total["gradient"],
    }
    if not total["gradient"]:
        return seen
    wanted, got = twin["gradient"], [0.0] * len(twin["gradient"])
    learning = [part["gradients"] for part in parts if "gradients" in part]
    for each, of_part in zip(learning, total["of_parts"], strict=True):
        for gradient, factor in zip(each, of_part, strict=False):
            got = [g + factor * v for g, v in zip(got, gradient, strict=True)]
    length = math.hypot(*wanted)
    return seen | {
        "factor": sum(g * w for g, w in zip(got, wanted, strict=True)) / length**2,
        "gap": math.hypot(*(g - w for g, w in zip(got, wanted, strict=True))) / length,
    }


def decide(case: tuple[int, int, list[int]], chunks: list[int], seen: dict[str, Any]) -> None:
    """Raise the `Difference` of one batch, if there is any; `seen` is from `join`."""
    rows, _, ignored = case
    words = f"{rows} samples in chunks of {some(chunks)}" + (f", {len(ignored)} of them ignored" if ignored else "")
    symptom = _loss_symptom(seen, rows, len(chunks), len(set(chunks)) == 1, bool(ignored))
    if not symptom:
        return
    right, loss = apart(seen["right"], seen["loss"], 7)
    got = f"loss {loss}" + (f", its gradient {seen['factor']:.4f} times as long" if "factor" in seen else "")
    if symptom == "dtype":
        got = f"replicas return {seen['dtypes'][0]}, and the loss is {seen['dtypes'][1]}"
    if symptom == "too much":
        got = f"{seen['numbers']:g} numbers from each replica"
    differ(symptom, [got], case=words, right=right)


def _loss_symptom(seen: dict[str, Any], rows: int, replicas: int, even: bool, ignored: bool) -> str:
    loss, right = seen["loss"], seen["right"]
    if not seen["gradient"]:
        return "no gradient"
    if seen["numbers"] > 4 or (not even and seen["numbers"] * replicas == rows):
        return "too much"
    if loss != loss:
        return "not a number"
    if set(seen["dtypes"]) != {"float64"}:
        return "dtype"
    if abs(loss - right) < 1e-9 * max(1.0, abs(right)):
        return "" if seen["gap"] < 1e-9 else "gradient"
    known = (name for name, losses in seen["known"].items() if any(abs(loss / x - 1) < 1e-9 for x in losses))
    return next(known, "ignored" if ignored else "wrong")
