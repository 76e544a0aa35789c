"""Lesson 05, exercise 2: what a hook sends, and what becomes of the digits that bfloat16 hasn't room for."""

from __future__ import annotations

from typing import Any

from ..judging import Answer, Difference, by_rank, some
from .cases import HOOK_RANKS, HOOK_STEPS, SHAPES

HALF_ULP = 2.0**-8  # bfloat16 rounds a number by at most this part of it
LOST = 8e-4  # of a number, on average over the steps: with feedback at most 2 roundings / steps, 1.6e-4
EXPECTED = (
    f"over {HOOK_STEPS} steps the mean of what comes out is the mean gradient, since what rounding took is sent later"
)


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
    if blocking := seen[0]["blocking"]:
        raise Difference(
            "waits",
            f"The hook calls {some(blocking)} and waits for it{where}, so backward stands still meanwhile.",
            "a Future at once: `async_op=True`, then `get_future()`",
        )
    sent = [s["sent"] / s["filled"] for s in seen]
    got = by_rank([f"{share:.0%} of the bytes" for share in sent])
    if max(sent) == 0:
        raise Difference("no exchange", f"Nothing is sent{where}.", "half the bytes of each bucket", got)
    if max(sent) > 0.51:
        raise Difference("bytes", f"A rank sends {max(sent):.0%} of the bytes{where}.", "half: bfloat16", got)
    if min(sent) < 0.49:
        raise Difference("bytes", f"A rank sends {min(sent):.0%} of the bytes{where}.", "half: every number", got)
    if kinds := [kind for s in seen for kind in s["kinds"] if kind != "torch.float32"]:
        raise Difference(
            "another type",
            f"The Future's value is a {kinds[0]}{where}.",
            "a tensor of the bucket's type, torch.float32",
        )
    mean = [
        [sum(values) / size for values in zip(*(s["mine"][k] for s in seen), strict=True)] for k in range(len(SHAPES))
    ]
    if any(s["mean"] != seen[0]["mean"] for s in seen):
        raise Difference("ranks differ", f"The ranks get different gradients{where}.", "the same on all ranks")
    first, average = (_off(seen[0][when], mean) for when in ("first", "mean"))
    if first > 2 * HALF_ULP:
        if _off([[v / size for v in row] for row in seen[0]["first"]], mean) <= 2 * HALF_ULP:
            raise Difference("sum", f"What comes out is the sum over the ranks{where}.", "the mean")
        raise Difference(
            "not the mean",
            f"In the first step a gradient is off by {first:.2g} of itself{where}.",
            "the mean over the ranks, rounded to bfloat16: off by at most 0.0039 of itself",
        )
    if average > LOST:
        if average > 1.1 * HALF_ULP:  # more than a rounding takes away
            raise Difference(
                "grows", f"After {HOOK_STEPS} steps a gradient is off by {average:.2g} of itself{where}.", EXPECTED
            )
        raise Difference(
            "lost", f"On average over the steps a gradient is off by {average:.2g} of itself{where}.", EXPECTED
        )
    if not all(s["kept"] for s in seen):
        raise Difference(
            "elsewhere",
            f"After the training `state` is empty{where}: what's left over lies somewhere else, where a second training"
            " would find it.",
            "what's left over in `state`, which is new for each training",
        )
    return average


def _off(values: list[list[float]], wanted: list[list[float]]) -> float:
    """The largest difference, as a part of what is wanted."""
    return max(
        abs(v - w) / abs(w) if v == v else float("inf")
        for row, right in zip(values, wanted, strict=True)
        for v, w in zip(row, right, strict=True)
    )
