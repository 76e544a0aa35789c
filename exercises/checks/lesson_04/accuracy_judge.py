"""Lesson 04, exercise 2: draws the test sets, deals them out, and recognises known mistakes by their values."""

from __future__ import annotations

import random
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, by_rank, dealt, differ, require, samples
from .cases import ACCURACY_CASES, accuracy_cases, test_set

RANKS = 4
MOST_COLLECTIVES = 4


def judge_accuracy(answer: Answer) -> list[str]:
    cases = accuracy_cases(random.Random())
    # In the fixed cases, each known mistake gives a value of its own.
    draws = [random.Random(n if i < len(ACCURACY_CASES) else None) for i, (n, _, _) in enumerate(cases)]
    sets = [test_set(draw, n) for draw, (n, _, _) in zip(draws, cases, strict=True)]
    parts = [[batches(*s, rank, *case) for s, case in zip(sets, cases, strict=True)] for rank in range(RANKS)]
    with dealt(parts) as folder:
        told = answer.on_ranks("accuracy", ranks=RANKS, given={"dealt": folder, "cases": cases})
    most = 0
    for i, (_, ranks, batch_size) in enumerate(cases):
        seen = [told[rank]["cases"][i] for rank in range(ranks)]
        decide(seen, [len(parts[rank][i]) for rank in range(ranks)], facts(*sets[i], ranks, batch_size), cases[i])
        most = max(most, *(s["collectives"] for s in seen))
    return [
        (f"{len(cases)} test sets of 1 to 4000 samples on 2 to 4 ranks: the accuracy of one process, on every rank"),
        "no padded sample counted, also where a rank holds nothing else",
        f"each batch read once, and at most {counted(most, 'collective')} for a whole evaluation",
    ]


def positions(n: int, ranks: int, rank: int) -> range:
    """The positions of a rank's samples in the padded test set, as a DistributedSampler deals them."""
    return range(rank, -(-n // ranks) * ranks, ranks)


def _cut(values: list[Any], size: int) -> list[list[Any]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def batches(
    predictions: list[int], labels: list[int], rank: int, n: int, ranks: int, batch_size: int
) -> list[list[list[int]]]:
    """The batches of a rank, each its predictions and its labels; none for a rank that takes no part."""
    mine = [i % n for i in positions(n, ranks, rank)] if rank < ranks else []
    return [[[predictions[i] for i in at], [labels[i] for i in at]] for at in _cut(mine, batch_size)]


def facts(predictions: list[int], labels: list[int], ranks: int, batch_size: int) -> dict[str, Any]:
    """The accuracy, and what known mistakes make of it: a number, or one for each rank (None where there is none)."""
    right = [p == y for p, y in zip(predictions, labels, strict=True)]
    n = len(right)

    def mean(values: list[Any]) -> float | None:
        return sum(values) / len(values) if values else None

    at = [positions(n, ranks, rank) for rank in range(ranks)]
    padded = [[right[i % n] for i in own] for own in at]
    real = [[right[i] for i in own if i < n] for own in at]
    return {
        "truth": mean(right),
        "correct": sum(right),
        "padded": mean(sum(padded, [])),
        "local": [mean(own) for own in padded],
        "local_real": [mean(own) for own in real],
        "mean_of_ranks": mean([mean(own) for own in real if own]),
        "mean_of_batches": mean([mean(batch) for own in padded for batch in _cut(own, batch_size)]),
    }


def decide(seen: list[dict[str, Any]], dealt_out: list[int], fact: dict[str, Any], case: tuple[int, int, int]) -> None:
    """Raise the first `Difference` of one case; `dealt_out` is how many batches each rank was given."""
    n, ranks, batch_size = case
    words = f"{samples(n)} on {ranks} ranks, batches of {batch_size}"
    _same_and_exact([s["value"] for s in seen], fact, n, words)
    calls = [s["collectives"] for s in seen]
    got = by_rank([f"{c} collectives" for c in calls])
    few = max(calls) <= MOST_COLLECTIVES
    require(few, "collectives", got, batches=dealt_out[0], calls=max(calls), most=MOST_COLLECTIVES)
    read = [s["handed_out"] for s in seen]
    once = all(a <= b for a, b in zip(read, dealt_out, strict=True))
    require(once, "reads twice", by_rank([f"{r} batches read" for r in read]), case=words, batches=dealt_out[0])


def _same_and_exact(values: list[float], fact: dict[str, Any], n: int, case: str) -> None:
    truth = fact["truth"]
    digits = 6 if len({*values, truth}) == len({f"{v:.6f}" for v in (*values, truth)}) else 17
    got = by_rank([f"{v:.{digits}f}" for v in values])

    def fits(key: str) -> bool:
        """Whether every rank's value is the one that a known mistake gives."""
        mistaken = fact[key] if isinstance(fact[key], list) else [fact[key]] * len(values)
        return all(m is not None and abs(v - m) < 1e-6 for v, m in zip(values, mistaken, strict=True))

    right = [abs(v - truth) < 1e-6 for v in values]
    if all(right) and len(set(values)) == 1:
        return
    told = {"case": case, "truth": truth, "correct": fact["correct"], "n": n}
    require(not right[0] or any(right[1:]), "one rank", got, **told)
    require(not (fits("local") or fits("local_real")), "local", got, **told)
    require(len(set(values)) == 1, "ranks disagree", got, **told)
    require(not fits("padded"), "padding", got, padded=len(values) * -(-n // len(values)), **told)
    for how in ("ranks", "batches"):
        require(not fits(f"mean_of_{how}"), "mean of means", got, how=how, **told)
    differ("wrong value", got, **told)
