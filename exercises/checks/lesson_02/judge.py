"""Lesson 02: what its exercises ask for, and what shows that an answer doesn't do it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Exercise, by_rank, differ, require, samples, some
from .cases import LENGTHS, RANKS, Sentence, Workers, sample_of, sentences, stream_cases, workers_of
from .convert_judge import judge_convert
from .noise_judge import judge_augmented

# --- 02.2 -------------------------------------------------------------------------------------------------------------


def judge_collate(answer: Answer) -> list[str]:
    told = answer.on_ranks("collate", ranks=1)[0]
    batches = sentences(told["seed"])
    # The task stops at a batch of another shape, so there may be fewer than were asked for.
    for given, batch in zip(batches, told["batches"], strict=False):
        _padded(given, batch, "")
    every = [sample for given in sentences(0)[: len(LENGTHS)] for sample in given if sample[0]]
    for start, batch in zip(range(0, len(every), 4), told["in_workers"], strict=True):
        _padded(every[start : start + 4], batch, ", in a worker")
    return [
        f"{len(batches)} batches, some with empty samples: as wide as the longest, no token lost, zeros behind",
        "the mask tells token 0 from padding; samples and batches made before are left as they were",
        "the same as collate_fn of a DataLoader with two workers",
    ]


def _padded(given: list[Sentence], batch: dict[str, Any], where: str) -> None:
    lengths, labels = [len(tokens) for tokens, _ in given], [label for _, label in given]
    case = f"lengths {lengths}{where}"
    require(not batch["wrong"], "dtype", wrong="".join(batch["wrong"][:1]), case=case)
    longest = max(lengths)
    for name, shape in batch["shapes"].items():
        wanted = [len(lengths)] if name == "labels" else [len(lengths), longest]
        wide = name == "tokens" and shape[:1] == wanted[:1] and shape[1:] > [longest]
        how = "labels" if name == "labels" else "others"
        symptom = "fixed length" if wide else "shape"
        require(shape == wanted, symptom, name=name, shape=shape, case=case, wanted=wanted, how=how)
    require(batch["labels"] == labels, "labels", [str(batch["labels"])], case=case, labels=labels)
    tokens = [row + [0] * (longest - len(row)) for row, _ in given]
    real = [[1] * n + [0] * (longest - n) for n in lengths]
    if batch["tokens"] != tokens:
        left = [[0] * (longest - len(row)) + row for row, _ in given]
        symptom = (
            "left" if batch["tokens"] == left else "order" if sorted(batch["tokens"]) == sorted(tokens) else "tokens"
        )
        row = next(i for i, (a, b) in enumerate(zip(batch["tokens"], tokens, strict=True)) if a != b)
        got, right = batch["tokens"][row], tokens[row]
        differ(symptom, [_from(got, right)], row=row, case=case, right=_from(right, got))
    if batch["real"] != real:
        inverted = [[1 - m for m in row] for row in real]
        zeros = [[int(t != 0) for t in row] for row in tokens]
        symptom = "inverted" if batch["real"] == inverted else "token 0" if batch["real"] == zeros else "mask"
        row = next(i for i, (a, b) in enumerate(zip(batch["real"], real, strict=True)) if a != b)
        got, right = [bool(m) for m in batch["real"][row]], [bool(m) for m in real[row]]
        differ(symptom, [_from(got, right)], case=case, right=_from(right, got))


def _from(row: list[Any], other: list[Any]) -> str:
    """A row. Of a long one, 12 numbers from just before the first that differs."""
    if len(row) <= 12:
        return str(row)
    first = max(0, next((i for i, (a, b) in enumerate(zip(row, other, strict=False)) if a != b), 0) - 2)
    return f"from position {first} on {some(row[first:], 12)}"


# --- 02.3 -------------------------------------------------------------------------------------------------------------


def judge_stream(answer: Answer) -> list[str]:
    told = answer.on_ranks("stream", ranks=RANKS)
    cases = stream_cases(told[0]["seed"])
    for number, (n, ranks, workers) in enumerate(cases):
        seen = [told[rank]["cases"][number] for rank in range(ranks)]
        on_each = (
            f"{workers} workers on each" if isinstance(workers, int) else f"{' and '.join(map(str, workers))} workers"
        )
        case = f"{samples(n)}, {counted(ranks, 'rank')}, {on_each}"
        epochs = [[_indices(epoch, n, case) for epoch in s["epochs"]] for s in seen]
        _dealt([own[0] for own in epochs], n, workers, case)
        for epoch in range(1, max(len(own) for own in epochs)):
            again = [own[epoch] if epoch < len(own) else own[0] for own in epochs]
            ok, got = sorted(sum(again, [])) == list(range(n)), by_rank([some(a) for a in again])
            which = ("second", "third", "fourth")[epoch - 1]
            require(ok, "second epoch", got, which=which, case=case, n=n)
        for rank, (s, own) in enumerate(zip(seen, epochs, strict=True)):
            wanted = sum(map(len, own))
            facts = {"rank": rank, "epochs": len(own), "reads": s["reads"], "case": case, "wanted": wanted}
            require(s["reads"] <= wanted, "reads too much", **facts)
    return [
        f"{len(cases)} cases of 1 to {RANKS} ranks with 0 to 3 workers each: every sample once, in each epoch",
        "no rank has two samples more than another; none is read in vain",
    ]


def _indices(values: list[int], n: int, case: str) -> list[int]:
    """The indices of the samples that `read` returned."""
    index = {sample_of(i): i for i in range(n)}
    if strange := [v for v in values if v not in index]:
        differ("not read", [some(values)], strange=strange[0], case=case)
    return [index[v] for v in values]


def _dealt(shares: list[list[int]], n: int, workers: Workers, case: str) -> None:
    got = by_rank([some(share, 14) for share in shares])
    times = Counter(sum(shares, []))
    missing = [i for i in range(n) if i not in times]
    facts = {"n": n, "case": case}
    for rank, share in enumerate(shares):
        often = max(Counter(share).values(), default=0)
        of_rank = {"rank": rank, "workers": workers_of(workers, rank), "often": often}
        require(often <= 1, "workers repeat", got, **of_rank, **facts)
    most = max(times.values(), default=0)
    require(most <= 1, "ranks repeat", got, most=most, **facts)
    require(not missing and not set(times) - set(range(n)), "missed", got, missing=len(missing), **facts)
    sizes = [len(share) for share in shares]
    require(max(sizes) - min(sizes) <= 1, "uneven ranks", got, most=max(sizes), least=min(sizes), **facts)


SCRIPT = "2686ae034622"  # the loop as it's handed out

EXERCISES = {
    e.name: e
    for e in [
        Exercise("02.1", "feed a loop that starves", judge_convert, SCRIPT, how="with real workers"),
        Exercise("02.2", "a collate that pads", judge_collate, how="also in real workers"),
        Exercise("02.3", "a stream for ranks and workers", judge_stream, how="on real ranks, with real workers"),
        Exercise("02.4", "noise that can be repeated", judge_augmented, how="in real workers"),
    ]
}
