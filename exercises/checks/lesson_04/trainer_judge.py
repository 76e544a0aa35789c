"""Lesson 04, exercise 3: what shows that a trainer isn't mended."""

from __future__ import annotations

import math
from typing import Any

from ..judging import Answer, by_rank, differ, require, samples, some
from .cases import EPOCHS, N_TRAIN, PER_STEP, SHARES

ROUNDING = 1e-9  # in double precision right answers differ by 1e-16, and every mistake here by more than 1e-4

MOST_COLLECTIVES = 4  # in a step


def judge_trainer(letter: str, answer: Answer) -> list[str]:
    ranks = answer.on_ranks("evaluating_trainer" if letter == "e" else "trainer", ranks=2)
    return decide(letter, beside_its_twin(answer, ranks))


def beside_its_twin(answer: Answer, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks told, compared with one process that trains on the samples of both."""
    steps = [len(rank["weights"]) for rank in ranks]
    got = by_rank([f"{n} steps" for n in steps])
    if min(steps) == 0:
        how = "nobody" if max(steps) == 0 else "one"
        differ("no steps", got, how=how, rank=steps.index(0), steps=N_TRAIN // PER_STEP, epochs=EPOCHS)
    batches = [a + b for a, b in zip(*(rank["samples"] for rank in ranks), strict=False)]
    given = {"start": ranks[0]["start"], "batches": batches, "evaluate_every": steps[0] // EPOCHS or 1}
    (twin,) = answer.on_ranks("twins.trainer", ranks=1, given=given)
    return compare(ranks, twin)


def compare(ranks: list[dict[str, Any]], twin: dict[str, Any]) -> dict[str, Any]:
    """How far the ranks are from each other and from the twin after each step, and what each of them saw."""
    starts, weights = [rank["start"] for rank in ranks], [rank["weights"] for rank in ranks]
    gaps = {name: _gap(starts[0][name], starts[1][name]) for name in starts[0]}
    return {
        **{key: [rank[key] for rank in ranks] for key in ("samples", "calls", "evaluating", "result")},
        "steps": [len(w) for w in weights],
        "bias": [start["head.bias"] for start in starts],
        "log_frequency": twin["log_frequency"],
        "accuracy": twin["accuracies"],
        "start_gap": {name: gap for name, gap in gaps.items() if gap > 0},
        "rank_gap": [_gap(a, b) for a, b in zip(*weights, strict=False)],
        "twin_gap": [[_gap(w, a), _gap(w, b)] for w, a, b in zip(twin["weights"], *weights, strict=False)],
    }


def _gap(a: list[float], b: list[float]) -> float:
    """The largest difference; infinite for another length, or for what isn't a number."""
    gaps = [abs(x - y) for x, y in zip(a, b, strict=False)]
    return max(gaps, default=0.0) if len(a) == len(b) and all(gap == gap for gap in gaps) else math.inf


def decide(letter: str, told: dict[str, Any]) -> list[str]:
    """What was checked; raises the first `Difference`. `told` is from `compare`."""
    steps = told["steps"]
    _replicas(told)
    right, got = EPOCHS * N_TRAIN // PER_STEP, by_rank([f"{n} steps" for n in steps])
    require(set(steps) == {right}, "steps", got, most=max(steps), right=right, each=PER_STEP)
    _samples(told, letter)
    if letter == "c":
        _bias(told)
    if letter == "e":
        _accuracies(told)
    most, got = max(told["evaluating"]), by_rank([f"{n} steps in evaluation mode" for n in told["evaluating"]])
    require(most == 0, "evaluation mode", got, most=most, steps=max(steps))
    worst = max(max(gaps) for gaps in told["twin_gap"])
    return [
        (
            f"{min(steps)} steps on 2 ranks that started from different weights: after each of them both hold the same"
            " weights"
        ),
        f"and those of one process that trains on the same samples (largest gap {worst:.0e})",
        f"all {N_TRAIN} samples in each epoch, in a new order",
        f"collectives in a step, from the third on: {', '.join(told['calls'][0][2])}",
    ]


def _replicas(told: dict[str, Any]) -> None:
    """After each step both ranks must hold the twin's weights, and get there with as few collectives as DDP."""
    reduces = [
        [sum(name.startswith(("allreduce", "reduce_scatter")) for name in step) for step in rank]
        for rank in told["calls"]
    ]
    most, last = max(max(rank[2:], default=0) for rank in reduces), told["rank_gap"][-1]
    got = by_rank([f"0 all-reduces a step; after step 5 the weights differ by {_at(told['rank_gap'], 4):.2g}"] * 2)
    require(most > 0 or last <= ROUNDING, "no exchange", got)
    names = some([f"{name} (by {gap:.2g})" for name, gap in told["start_gap"].items()], 3)
    require(not told["start_gap"], "different start", how="still" if last > 0 else "once", names=names, last=last)
    for step, gap in enumerate(told["rank_gap"], 1):
        require(gap <= ROUNDING, "drift", step=step, gap=gap)
    for step, gaps in enumerate(told["twin_gap"], 1):
        if max(gaps) > ROUNDING:
            got = by_rank([f"{samples(len(told['samples'][rank][step - 1]))} in step {step}" for rank in (0, 1)])
            differ("not the mean", got, step=step, gap=max(gaps))
    # DDP has one broadcast of the buffers and one all-reduce; an answer may add a few of its own.
    most_calls = max(max((len(step) for step in rank[2:]), default=0) for rank in told["calls"])
    if most_calls > MOST_COLLECTIVES:
        differ("too many", how="calls", n=most_calls, calls=some(max(told["calls"][0][2:], key=len), 8))
    require(most <= 2, "too many", how="reduces", n=most)


def _at(values: list[float], index: int) -> float:
    return values[min(index, len(values) - 1)]


def _samples(told: dict[str, Any], letter: str) -> None:
    """Every sample once an epoch, in the right shares, in a new order."""
    per_epoch = N_TRAIN // PER_STEP
    orders: list[list[list[int]]] = [
        [sum(rank[e * per_epoch : (e + 1) * per_epoch], []) for rank in told["samples"]] for e in range(EPOCHS)
    ]
    for epoch, (one, other) in enumerate(orders):
        missing = N_TRAIN - len({*one, *other})
        require(missing == 0, "samples missed", epoch=epoch, missing=missing, n=N_TRAIN)
    shares = {(len(a), len(b)) for a, b in zip(*told["samples"], strict=True)}
    wanted = SHARES if letter == "d" else (4, 4)
    found = " or ".join(f"{a} and {b}" for a, b in sorted(shares))
    require(shares == {wanted}, "shares", found=found, one=wanted[0], other=wanted[1])
    pairs = [(i, k) for k in range(EPOCHS) for i in range(k) if orders[i] == orders[k]]
    if pairs:
        early, late = pairs[0]
        got = [
            f"epoch {early}: {some(a)}; epoch {late}: {some(b)}"
            for a, b in zip(orders[early], orders[late], strict=True)
        ]
        how = "all" if len(pairs) == EPOCHS * (EPOCHS - 1) // 2 else "two"
        differ("same every epoch", by_rank(got), how=how, early=early, late=late)


def _bias(told: dict[str, Any]) -> None:
    wanted = told["log_frequency"]
    ok = all(abs(a - b) <= ROUNDING for bias in told["bias"] for a, b in zip(bias, wanted, strict=True))
    got = by_rank([some([f"{v:.3f}" for v in bias]) for bias in told["bias"]])
    require(ok, "bias", got, wanted=some([f"{v:.3f}" for v in wanted]))


def _accuracies(told: dict[str, Any]) -> None:
    got, wanted = told["result"][0], told["accuracy"]
    text = "nothing that is a list of numbers" if got is None else some([f"{v:.4f}" for v in got])
    ok = (
        got is not None
        and len(got) == len(wanted)
        and all(abs(a - b) <= 1e-6 for a, b in zip(got, wanted, strict=True))
    )
    require(ok, "accuracy", [f"rank 0: {text}"], wanted=some([f"{v:.4f}" for v in wanted]))
