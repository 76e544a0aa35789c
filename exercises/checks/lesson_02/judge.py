"""Lesson 02: what its exercises ask for, and what shows that an answer doesn't do it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Difference, Exercise, by_rank, samples, some
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
    if batch["wrong"]:
        raise Difference("dtype", f"{batch['wrong'][0]} ({case}).", "tokens and labels int64, real bool")
    longest = max(lengths)
    for name, shape in batch["shapes"].items():
        wanted, why = (
            ([len(lengths)], "a label for each sample")
            if name == "labels"
            else ([len(lengths), longest], "as wide as the longest of this batch")
        )
        if shape != wanted:
            wide = name == "tokens" and shape[:1] == wanted[:1] and shape[1:] > [longest]
            symptom = "fixed length" if wide else "shape"
            raise Difference(symptom, f"`{name}` has shape {shape} ({case}).", f"{wanted}: {why}")
    if batch["labels"] != labels:
        raise Difference(
            "labels",
            f"The labels are not those of the samples, in their order ({case}).",
            str(labels),
            [str(batch["labels"])],
        )
    tokens = [row + [0] * (longest - len(row)) for row, _ in given]
    real = [[1] * n + [0] * (longest - n) for n in lengths]
    if batch["tokens"] != tokens:
        left = [[0] * (longest - len(row)) + row for row, _ in given]
        symptom = (
            "left" if batch["tokens"] == left else "order" if sorted(batch["tokens"]) == sorted(tokens) else "tokens"
        )
        row = next(i for i, (a, b) in enumerate(zip(batch["tokens"], tokens, strict=True)) if a != b)
        raise Difference(
            symptom,
            f"Row {row} of `tokens` is not sample {row} followed by zeros ({case}).",
            _from(tokens[row], batch["tokens"][row]),
            [_from(batch["tokens"][row], tokens[row])],
        )
    if batch["real"] != real:
        inverted = [[1 - m for m in row] for row in real]
        zeros = [[int(t != 0) for t in row] for row in tokens]
        symptom = "inverted" if batch["real"] == inverted else "token 0" if batch["real"] == zeros else "mask"
        differs = {
            "inverted": "`real` is True where there is padding",
            "token 0": "`real` is False where the token is 0",
        }.get(symptom, "`real` is wrong")
        row = next(i for i, (a, b) in enumerate(zip(batch["real"], real, strict=True)) if a != b)
        raise Difference(
            symptom,
            f"{differs} ({case}).",
            _from([bool(m) for m in real[row]], [bool(m) for m in batch["real"][row]]),
            [_from([bool(m) for m in batch["real"][row]], [bool(m) for m in real[row]])],
        )


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
            if sorted(sum(again, [])) != list(range(n)):
                raise Difference(
                    "second epoch",
                    f"The {('second', 'third', 'fourth')[epoch - 1]} epoch doesn't give every sample once, as the first"
                    f" does ({case}).",
                    f"{samples(n)} again",
                    by_rank([some(a) for a in again]),
                )
        for rank, (s, own) in enumerate(zip(seen, epochs, strict=True)):
            wanted = sum(map(len, own))
            if s["reads"] > wanted:
                raise Difference(
                    "reads too much",
                    f"On rank {rank} {len(own)} epochs called `read` {s['reads']} times ({case}): some samples are read"
                    " and thrown away.",
                    f"{wanted} times",
                )
    return [
        f"{len(cases)} cases of 1 to {RANKS} ranks with 0 to 3 workers each: every sample once, in each epoch",
        "no rank has two samples more than another; none is read in vain",
    ]


def _indices(values: list[int], n: int, case: str) -> list[int]:
    """The indices of the samples that `read` returned."""
    index = {sample_of(i): i for i in range(n)}
    if strange := [v for v in values if v not in index]:
        raise Difference(
            "not read",
            f"The stream gives {strange[0]}, which `read` returns for no sample ({case}).",
            "what `read(i)` returns, for each i",
            [some(values)],
        )
    return [index[v] for v in values]


def _dealt(shares: list[list[int]], n: int, workers: Workers, case: str) -> None:
    got = by_rank([some(share, 14) for share in shares])
    expected = f"each of {samples(n)} once, over all ranks and workers"
    counted = Counter(sum(shares, []))
    missing = [i for i in range(n) if i not in counted]
    for rank, share in enumerate(shares):
        if max(Counter(share).values(), default=0) > 1:
            often = max(Counter(share).values())
            raise Difference(
                "workers repeat",
                f"On rank {rank} its {workers_of(workers, rank)} workers give a sample {often} times ({case}).",
                expected,
                got,
            )
    if max(counted.values(), default=0) > 1:
        raise Difference("ranks repeat", f"{max(counted.values())} ranks give the same sample ({case}).", expected, got)
    if missing or set(counted) - set(range(n)):
        raise Difference("missed", f"No rank gives {len(missing)} of {samples(n)} ({case}).", expected, got)
    sizes = [len(share) for share in shares]
    if max(sizes) - min(sizes) > 1:
        raise Difference(
            "uneven ranks",
            f"One rank has {max(sizes)} samples and another {min(sizes)} ({case}).",
            "shares that differ by one at most",
            got,
        )


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
