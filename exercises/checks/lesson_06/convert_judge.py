"""Lesson 06, exercise 2: how a training in stages differs from the same one in one process."""

from __future__ import annotations

import random
from typing import Any

from ..judging import Answer, Difference, apart, by_rank, gap, some
from .cases import ConvertCase, convert_cases

ROUNDING = 1e-9  # in double precision right answers differ by 1e-15, and every mistake here by more than 1e-5
EXPECTED = "the weights of one process that trains the whole model"
KNOWN = {
    "sum": ("sum", "Gradients are as large as those of the sum of all micro-batches' losses"),
    "divided twice": ("divided twice", "Gradients are too small: they're divided by the number of micro-batches twice"),
    "averaged": ("averaged", "Gradients are divided by the number of ranks"),
    "old gradients": ("old gradients", "Gradients of earlier batches count again"),
    "old gradients, kept whole": ("old gradients", "Gradients of earlier batches count again"),
}


def judge_convert(answer: Answer) -> list[str]:
    draw = random.Random()
    given: dict[str, Any] = {"cases": convert_cases(draw), "seed": draw.randrange(2**40)}
    said = {r"_StageForwardMeta|First stage requires|forward\(\) missing": "first stage"}
    told = answer.on_ranks("convert.train", ranks=max(case[0] for case in given["cases"]), said=said, given=given)
    twins = answer.on_ranks("convert.twins", ranks=1, given=given)[0]["cases"]
    worst = 0.0
    for i, (case, twin) in enumerate(zip(given["cases"], twins, strict=True)):
        seen = [t["cases"][i] for t in told[: case[0]]]
        _case(seen, twin, case)
        worst = max(worst, *(gap(s["end"], right) for s, right in zip(seen, twin[""]["weights"], strict=True)))
    return [
        (
            f"{len(twins)} trainings in 2, 3 and 4 unequal stages: afterwards every rank's layers have the weights of"
            f" one process (largest gap {worst:.0e})"
        ),
        "each rank makes only its own layers, and the last one knows the mean loss of each batch",
        "the order is 1F1B: stage s of p holds p - s micro-batches, however many there are",
    ]


def _words(case: ConvertCase) -> str:
    ranks, counts, m, batches = case
    return f"{ranks} ranks with {some(counts)} layers, {m} micro-batches, {batches} batch{'es' * (batches > 1)}"


def _case(seen: list[dict[str, Any]], twin: dict[str, Any], case: ConvertCase) -> None:
    """`twin` has weights and losses as they should be, under "", and as each known mistake makes them."""
    ranks, _, m, _ = case
    words = _words(case)
    _layers(seen, case, words)
    moved = [gap(s["start"], s["end"]) > 0 for s in seen]
    if not all(moved):
        raise Difference(
            "not trained",
            f"After the training rank {moved.index(False)} has the weights that it began with ({words}).",
            EXPECTED,
            by_rank(["trained" if some_moved else "as before" for some_moved in moved]),
        )
    _weights(seen, twin, words)
    _order([s["in_flight"] for s in seen], ranks, m, words)
    _losses(seen[-1]["losses"], twin[""]["losses"], ranks, words)


def _layers(seen: list[dict[str, Any]], case: ConvertCase, words: str) -> None:
    _, counts, _, _ = case
    own = [list(range(sum(counts[:rank]), sum(counts[: rank + 1]))) for rank in range(len(counts))]
    if any(sorted(s["made"]) != numbers for s, numbers in zip(seen, own, strict=True)):
        raise Difference(
            "layers",
            f"A rank doesn't make each of its layers once ({words}).",
            "; ".join(f"rank {rank}: {some(numbers)}" for rank, numbers in enumerate(own)),
            by_rank([f"makes {some(s['made'])}" for s in seen]),
        )
    lengths = [(len(s["end"]), len(s["start"])) for s in seen]
    if any(got != wanted for got, wanted in lengths):
        raise Difference(
            "part",
            f"The model that `train` returns isn't made of this rank's layers ({words}).",
            "on each rank its own layers, in their order",
            by_rank([f"{got} weights, and its layers have {wanted}" for got, wanted in lengths]),
        )


def _weights(seen: list[dict[str, Any]], twin: dict[str, Any], words: str) -> None:
    off = [gap(s["end"], right) for s, right in zip(seen, twin[""]["weights"], strict=True)]
    if max(off) <= ROUNDING:
        return
    got = by_rank([f"off by {value:.2g}" if value > ROUNDING else "right" for value in off])
    for how, (symptom, what) in KNOWN.items():
        if all(gap(s["end"], w) <= ROUNDING for s, w in zip(seen, twin[how]["weights"], strict=True)):
            raise Difference(symptom, f"{what} ({words}).", EXPECTED, got)
    raise Difference("weights", f"After the training the weights aren't right ({words}).", EXPECTED, got)


def _order(in_flight: list[int], ranks: int, m: int, words: str) -> None:
    wanted = [min(m, ranks - rank) for rank in range(ranks)]
    if in_flight == wanted:
        return
    many = any(got > want for got, want in zip(in_flight, wanted, strict=True))
    raise Difference(
        "GPipe" if many else "one at a time",
        f"The weights are right, and the order isn't 1F1B: a rank holds {'more' if many else 'fewer'} micro-batches at"
        f" once ({words}).",
        "; ".join(f"rank {rank}: {n}" for rank, n in enumerate(wanted)),
        by_rank([f"at most {n} between forward and backward" for n in in_flight]),
    )


def _losses(losses: list[float], right: list[list[float]], ranks: int, words: str) -> None:
    means = [sum(each) / len(each) for each in right]
    if gap(losses, means) <= ROUNDING:
        return
    who = f"rank {ranks - 1}"
    if len(losses) != len(means):
        raise Difference(
            "how many losses",
            f"The last rank returns {len(losses)} losses ({words}).",
            f"{len(means)}: one for each batch",
            [(who, some([f"{loss:.4f}" for loss in losses]))],
        )
    known = {
        "loss of one": [[each[i] for each in right] for i in (0, -1)],
        "losses added": [[sum(each) for each in right]],
    }
    symptom = next((name for name, ways in known.items() if min(gap(losses, way) for way in ways) <= ROUNDING), "loss")
    i = max(range(len(means)), key=lambda i: abs(losses[i] - means[i]))
    wanted, got = apart(means[i], losses[i])
    what = {"loss of one": "the loss of one micro-batch", "losses added": "the sum of its micro-batches' losses"}
    raise Difference(
        symptom,
        f"What the last rank returns for batch {i} is {what.get(symptom, 'not its mean loss')} ({words}).",
        f"{wanted}: the mean over the batch",
        [(who, got)],
    )
