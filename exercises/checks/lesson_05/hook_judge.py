"""Lesson 05, exercise 2: what a hook sends, and what becomes of the digits that bfloat16 hasn't room for."""

from __future__ import annotations

from typing import Any

from ..judging import Answer, by_rank, differ, require, some
from .cases import HOOK_RANKS, HOOK_STEPS, SHAPES

HALF_ULP = 2.0**-8  # bfloat16 rounds a number by at most this part of it
LOST = 8e-4  # of a number, on average over the steps: with feedback at most 2 roundings / steps, 1.6e-4


def judge_hook(answer: Answer) -> list[str]:
    told = answer.on_ranks("hook.train", ranks=max(HOOK_RANKS))
    worst = 0.0
    for i, size in enumerate(HOOK_RANKS):
        seen = [t["found"][i] for t in told[:size]]
        worst = max(worst, _one(seen, size, f" ({size} ranks)"))
    share = told[0]["found"][0]["sent"] / told[0]["found"][0]["filled"]
    return [
        f"{HOOK_STEPS} steps on 2 and on 3 ranks: {share:.0%} of the bytes are sent, and nothing waits in backward",
        f"gradients from 1e-9 to 1e9; on average over the steps none is off by more than {worst:.0e} of itself",
    ]


def _one(seen: list[dict[str, Any]], size: int, where: str) -> float:
    """The largest error over the steps, as a part of the gradient."""
    blocking = seen[0]["blocking"]
    require(not blocking, "waits", calls=some(blocking), where=where)
    sent = [s["sent"] / s["filled"] for s in seen]
    got = by_rank([f"{share:.0%} of the bytes" for share in sent])
    require(max(sent) > 0, "no exchange", got, where=where)
    require(max(sent) <= 0.51, "bytes", got, how="many", share=max(sent), where=where)
    require(min(sent) >= 0.49, "bytes", got, how="few", share=min(sent), where=where)
    kinds = [kind for s in seen for kind in s["kinds"] if kind != "torch.float32"]
    require(not kinds, "another type", kind="".join(kinds[:1]), where=where)
    mean = [
        [sum(values) / size for values in zip(*(s["mine"][k] for s in seen), strict=True)] for k in range(len(SHAPES))
    ]
    require(all(s["mean"] == seen[0]["mean"] for s in seen), "ranks differ", where=where)
    first, average = (_off(seen[0][when], mean) for when in ("first", "mean"))
    if first > 2 * HALF_ULP:
        summed = _off([[v / size for v in row] for row in seen[0]["first"]], mean) <= 2 * HALF_ULP
        differ("sum" if summed else "not the mean", first=first, where=where)
    more = average > 1.1 * HALF_ULP  # more than a rounding takes away
    require(average <= LOST, "grows" if more else "lost", average=average, steps=HOOK_STEPS, where=where)
    require(all(s["kept"] for s in seen), "elsewhere", where=where)
    return average


def _off(values: list[list[float]], wanted: list[list[float]]) -> float:
    """The largest difference, as a part of what is wanted."""
    return max(
        abs(v - w) / abs(w) if v == v else float("inf")
        for row, right in zip(values, wanted, strict=True)
        for v, w in zip(row, right, strict=True)
    )
