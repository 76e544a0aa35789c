"""Lesson 06, exercise 2: how a training in stages differs from the same one in one process."""

from __future__ import annotations

import random
from typing import Any

from ..judging import Answer, apart, by_rank, gap, require, some
from .cases import ConvertCase, convert_cases

ROUNDING = 1e-9  # in double precision right answers differ by 1e-15, and every mistake here by more than 1e-5
# Mistakes that the twins know; before the comma is the symptom.
KNOWN = ["sum", "divided twice", "averaged", "old gradients", "old gradients, kept whole"]


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
    got = by_rank(["trained" if some_moved else "as before" for some_moved in moved])
    for rank, some_moved in enumerate(moved):
        require(some_moved, "not trained", got, rank=rank, case=words)
    _weights(seen, twin, words)
    _order([s["in_flight"] for s in seen], ranks, m, words)
    _losses(seen[-1]["losses"], twin[""]["losses"], ranks, words)


def _layers(seen: list[dict[str, Any]], case: ConvertCase, words: str) -> None:
    _, counts, _, _ = case
    own = [list(range(sum(counts[:rank]), sum(counts[: rank + 1]))) for rank in range(len(counts))]
    right = all(sorted(s["made"]) == numbers for s, numbers in zip(seen, own, strict=True))
    wanted = "; ".join(f"rank {rank}: {some(numbers)}" for rank, numbers in enumerate(own))
    require(right, "layers", by_rank([f"makes {some(s['made'])}" for s in seen]), wanted=wanted, case=words)
    lengths = [(len(s["end"]), len(s["start"])) for s in seen]
    got = by_rank([f"{a} weights, and its layers have {b}" for a, b in lengths])
    require(all(a == b for a, b in lengths), "part", got, case=words)


def _weights(seen: list[dict[str, Any]], twin: dict[str, Any], words: str) -> None:
    off = [gap(s["end"], right) for s, right in zip(seen, twin[""]["weights"], strict=True)]
    got = by_rank([f"off by {value:.2g}" if value > ROUNDING else "right" for value in off])

    def gives(how: str) -> bool:
        return all(gap(s["end"], w) <= ROUNDING for s, w in zip(seen, twin[how]["weights"], strict=True))

    symptom = next(filter(gives, KNOWN), "weights").partition(",")[0]
    require(max(off) <= ROUNDING, symptom, got, case=words)


def _order(in_flight: list[int], ranks: int, m: int, words: str) -> None:
    wanted = [min(m, ranks - rank) for rank in range(ranks)]
    many = any(got > want for got, want in zip(in_flight, wanted, strict=True))
    require(
        in_flight == wanted,
        "GPipe" if many else "one at a time",
        by_rank([f"at most {n} between forward and backward" for n in in_flight]),
        wanted="; ".join(f"rank {rank}: {n}" for rank, n in enumerate(wanted)),
        case=words,
    )


def _losses(losses: list[float], right: list[list[float]], ranks: int, words: str) -> None:
    means = [sum(each) / len(each) for each in right]
    who, shown = f"rank {ranks - 1}", some([f"{loss:.4f}" for loss in losses])
    right_number = len(losses) == len(means)
    require(right_number, "how many losses", [(who, shown)], found=len(losses), batches=len(means), case=words)
    known = {
        "loss of one": [[each[i] for each in right] for i in (0, -1)],
        "losses added": [[sum(each) for each in right]],
    }
    symptom = next((name for name, ways in known.items() if min(gap(losses, way) for way in ways) <= ROUNDING), "loss")
    i = max(range(len(means)), key=lambda i: abs(losses[i] - means[i]))
    wanted, got = apart(means[i], losses[i])
    require(gap(losses, means) <= ROUNDING, symptom, [(who, got)], i=i, wanted=wanted, case=words)
