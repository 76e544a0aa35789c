"""Lesson 04, exercise 3: what shows that a trainer isn't mended."""

from __future__ import annotations

import math
from typing import Any

from ..judging import Answer, Difference, by_rank, samples, some
from .cases import EPOCHS, N_TRAIN, PER_STEP, SHARES

ROUNDING = 1e-9  # in double precision right answers differ by 1e-16, and every mistake here by more than 1e-4

MOST_COLLECTIVES = 4  # in a step


def judge_trainer(letter: str, answer: Answer) -> list[str]:
    ranks = answer.on_ranks("evaluating_trainer" if letter == "e" else "trainer", ranks=2)
    return decide(letter, beside_its_twin(answer, ranks))


def beside_its_twin(answer: Answer, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks told, compared with one process that trains on the samples of both."""
    steps = [len(rank["weights"]) for rank in ranks]
    if min(steps) == 0:
        raise Difference(
            "no steps",
            "No optimizer took a step." if max(steps) == 0 else f"On rank {steps.index(0)} no optimizer took a step.",
            f"{N_TRAIN // PER_STEP} steps in each of {EPOCHS} epochs",
            by_rank([f"{n} steps" for n in steps]),
        )
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
    if set(steps) != {EPOCHS * N_TRAIN // PER_STEP}:
        raise Difference(
            "steps",
            f"The training has {max(steps)} steps.",
            f"{EPOCHS * N_TRAIN // PER_STEP}: {PER_STEP} samples a step over both ranks",
            by_rank([f"{n} steps" for n in steps]),
        )
    _samples(told, letter)
    if letter == "c":
        _bias(told)
    if letter == "e":
        _accuracies(told)
    if max(told["evaluating"]):
        raise Difference(
            "evaluation mode",
            f"In {max(told['evaluating'])} of {max(steps)} steps the model was in evaluation mode: dropout is off"
            " there, and batch norm learns no statistics.",
            "training mode in every step",
            by_rank([f"{count} steps in evaluation mode" for count in told["evaluating"]]),
        )
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
    expected = "both ranks hold the weights of one process that trains on the samples of both"
    reduces = [
        [sum(name.startswith(("allreduce", "reduce_scatter")) for name in step) for step in rank]
        for rank in told["calls"]
    ]
    if max(max(rank[2:], default=0) for rank in reduces) == 0 and told["rank_gap"][-1] > ROUNDING:
        raise Difference(
            "no exchange",
            "From the third step on, not one gradient is exchanged: each rank trains a model of its own.",
            expected,
            by_rank([f"0 all-reduces a step; after step 5 the weights differ by {_at(told['rank_gap'], 4):.2g}"] * 2),
        )
    if told["start_gap"]:
        names = some([f"{name} (by {gap:.2g})" for name, gap in told["start_gap"].items()], 3)
        last = told["rank_gap"][-1]
        later = f" After the last they still differ by {last:.2g}." if last > 0 else ""
        raise Difference(
            "different start",
            f"Before the first step the ranks hold different weights: {names}.{later}",
            "the same weights everywhere before the first step: DDP copies rank 0's when it wraps the model, and then"
            " only keeps them equal",
        )
    for step, gap in enumerate(told["rank_gap"][: max(5, len(told["rank_gap"]))], 1):
        if gap > ROUNDING:
            raise Difference(
                "drift", f"After step {step} the two ranks hold different weights: they differ by {gap:.2g}.", expected
            )
    for step, gaps in enumerate(told["twin_gap"], 1):
        if max(gaps) > ROUNDING:
            counts = [len(told["samples"][rank][step - 1]) for rank in (0, 1)]
            raise Difference(
                "not the mean",
                f"After step {step} both ranks agree, and are off by {max(gaps):.2g} from one process on the same"
                " samples.",
                expected,
                by_rank([f"{samples(n)} in step {step}" for n in counts]),
            )
    # DDP has one broadcast of the buffers and one all-reduce; an answer may add a few of its own.
    most_calls = max(max((len(step) for step in rank[2:]), default=0) for rank in told["calls"])
    if most_calls > MOST_COLLECTIVES:
        raise Difference(
            "too many",
            f"A step has {most_calls} collectives: {some(max(told['calls'][0][2:], key=len), 8)}.",
            "one broadcast of the buffers, one all-reduce for the gradients (they fit in one bucket), and at most two"
            " of your own",
        )
    most = max(max(rank[2:], default=0) for rank in reduces)
    if most > 2:
        raise Difference(
            "too many",
            f"A step has {most} all-reduces.",
            "one for the gradients (they fit in one bucket), and at most one of your own",
        )


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
        if missing:
            raise Difference(
                "samples missed",
                f"In epoch {epoch}, no rank saw {missing} of {N_TRAIN} samples.",
                "every sample once an epoch",
            )
    shares = {(len(a), len(b)) for a, b in zip(*told["samples"], strict=True)}
    wanted = SHARES if letter == "d" else (4, 4)
    if shares != {wanted}:
        raise Difference(
            "shares",
            f"The ranks take {' or '.join(f'{a} and {b}' for a, b in sorted(shares))} samples a step.",
            f"{wanted[0]} and {wanted[1]}",
        )
    pairs = [(i, k) for k in range(EPOCHS) for i in range(k) if orders[i] == orders[k]]
    if pairs:
        early, late = pairs[0]
        got = [
            f"epoch {early}: {some(a)}; epoch {late}: {some(b)}"
            for a, b in zip(orders[early], orders[late], strict=True)
        ]
        raise Difference(
            "same every epoch",
            (
                "All epochs go through the samples in the same order."
                if len(pairs) == EPOCHS * (EPOCHS - 1) // 2
                else f"Epochs {early} and {late} go through the samples in the same order."
            ),
            "a new order each epoch",
            by_rank(got),
        )


def _bias(told: dict[str, Any]) -> None:
    wanted = told["log_frequency"]
    if any(abs(got - want) > ROUNDING for bias in told["bias"] for got, want in zip(bias, wanted, strict=True)):
        got = by_rank([some([f"{v:.3f}" for v in bias]) for bias in told["bias"]])
        raise Difference(
            "bias",
            "Before the first step the bias of the head is not the log of the class frequencies.",
            some([f"{v:.3f}" for v in wanted]),
            got,
        )


def _accuracies(told: dict[str, Any]) -> None:
    got, wanted = told["result"][0], told["accuracy"]
    if got is None or len(got) != len(wanted) or not all(abs(a - b) <= 1e-6 for a, b in zip(got, wanted, strict=True)):
        text = "nothing that is a list of numbers" if got is None else some([f"{v:.4f}" for v in got])
        raise Difference(
            "accuracy",
            "Rank 0 does not return the accuracy after each epoch.",
            some([f"{v:.4f}" for v in wanted]),
            [f"rank 0: {text}"],
        )
