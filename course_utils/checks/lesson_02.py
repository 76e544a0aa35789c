"""Lesson 02: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ..predict import loader_run
from . import hints_02
from .base import Difference, Exercise, by_rank, on_ranks, samples, some
from .cases_02 import EPOCHS, LENGTHS, MB, STREAM_CASES, WORKER_CASES, workers

ADAPTER = Path(__file__).resolve().parent / "ranks_02.py"


# --- 02.1 -------------------------------------------------------------------------------------------------------------------


def judge_workers(answer: Path) -> list[str]:
    chosen = on_ranks(ADAPTER, "workers", answer, ranks=1)[0]["chosen"]
    for (limit, load_s, compute_s, cores, batch, shm, prefetch), value in zip(WORKER_CASES, chosen, strict=True):
        needed, by_cores, by_memory = workers(load_s, compute_s, cores, batch, shm, prefetch)
        wanted = min(needed, by_cores, by_memory)
        if value == wanted:
            continue
        case = f"a batch of {batch / MB:g} MB loads in {load_s:g} s and computes in {compute_s:g} s; {cores} core{'s' * (cores > 1)}, "
        case += f"{shm / MB:g} MB of shared memory, prefetch_factor {prefetch}"
        expected, got = f"{wanted}: {case}", [f"{value}"]
        if value > by_memory:
            way = max(0, value) * prefetch + 1
            raise Difference("memory", f"With {value} workers up to {way} batches are on the way, {way * batch / MB:g} MB.", expected, got)
        if limit == "one core":
            raise Difference("one core", "A loader on one core still gains by one worker, while the device computes.", expected, got)
        if value > by_cores:
            raise Difference("cores", f"{value} workers and the loop are {value + 1} processes for {cores} cores.", expected, got)
        if value > needed:
            raise Difference("too many", f"{needed} worker{'s' * (needed > 1)} would hide loading too.", expected, got)
        run = loader_run(200, load_s, compute_s, workers=max(0, value), prefetch=prefetch)
        raise Difference(
            "too few", f"With {value} workers the loop waits for {run.wait_s:.1f} of {run.total_s:.1f} s in an epoch of 200 batches.", expected, got
        )
    return [
        f"{len(WORKER_CASES)} machines and steps, among them whole multiples, one core, and shared memory that a single batch more would fill",
        "with fewer workers the loop would wait, with more a core, memory or a process would be wasted",
    ]


# --- 02.2 -------------------------------------------------------------------------------------------------------------------


def judge_collate(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "collate", answer, ranks=1)[0]
    for lengths, batch in zip(LENGTHS, told["batches"], strict=True):
        _padded(lengths, batch, list(range(1, len(lengths) + 1)), f"lengths {lengths}")
    every = told["every"]
    for start, batch in zip(range(0, len(every), 4), told["in_workers"], strict=True):
        lengths = every[start : start + 4]
        _padded(lengths, batch, list(range(start + 1, start + 1 + len(lengths))), f"lengths {lengths}, in a worker")
    return [
        f"{len(LENGTHS)} batches with samples of 0 to 9 tokens: as wide as the longest, no token lost, zeros behind",
        "the mask tells token 0 from padding; samples are left as they were",
        "the same as collate_fn of a DataLoader with two workers",
    ]


def _padded(lengths: list[int], batch: dict[str, Any], labels: list[int], case: str) -> None:
    if batch["wrong"]:
        raise Difference("dtype", f"{batch['wrong'][0]} ({case}).", "tokens and labels int64, real bool")
    longest = max(lengths)
    if batch["shape"] != [len(lengths), longest]:
        symptom = "fixed length" if batch["shape"][:1] == [len(lengths)] and batch["shape"][1:] > [longest] else "shape"
        raise Difference(symptom, f"`tokens` has shape {batch['shape']} ({case}).", f"[{len(lengths)}, {longest}]: as wide as the longest of this batch")
    if batch["labels"] != labels:
        raise Difference("labels", f"The labels are not those of the samples, in their order ({case}).", str(labels), [str(batch["labels"])])
    tokens = [list(range(n)) + [0] * (longest - n) for n in lengths]
    real = [[1] * n + [0] * (longest - n) for n in lengths]
    if batch["tokens"] != tokens:
        left = [[0] * (longest - n) + list(range(n)) for n in lengths]
        symptom = "left" if batch["tokens"] == left else "order" if sorted(batch["tokens"]) == sorted(tokens) else "tokens"
        row = next(i for i, (a, b) in enumerate(zip(batch["tokens"], tokens, strict=True)) if a != b)
        raise Difference(symptom, f"Row {row} of `tokens` is not sample {row} with zeros behind ({case}).", str(tokens[row]), [str(batch["tokens"][row])])
    if batch["real"] != real:
        inverted = [[1 - m for m in row] for row in real]
        zeros = [[int(t != 0) for t in row] for row in tokens]
        symptom = "inverted" if batch["real"] == inverted else "token 0" if batch["real"] == zeros else "mask"
        differs = {"inverted": "`real` is True where there is padding", "token 0": "`real` is False where the token is 0"}.get(symptom, "`real` is wrong")
        row = next(i for i, (a, b) in enumerate(zip(batch["real"], real, strict=False)) if a != b) if len(batch["real"]) == len(real) else 0
        raise Difference(symptom, f"{differs} ({case}).", str([bool(m) for m in real[row]]), [str([bool(m) for m in batch["real"][row]])])


# --- 02.3 -------------------------------------------------------------------------------------------------------------------


def judge_stream(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "stream", answer, ranks=2)
    for number, (n, ranks, num_workers) in enumerate(STREAM_CASES):
        seen = [told[rank]["cases"][number] for rank in range(ranks)]
        case = f"{samples(n)}, {ranks} rank{'s' * (ranks > 1)}, {num_workers} workers on each"
        first = [epochs[0] for epochs in (s["epochs"] for s in seen)]
        _dealt(first, n, num_workers, case)
        again = [s["epochs"][1] for s in seen]
        if sorted(sum(again, [])) != list(range(n)):
            raise Difference("second epoch", f"The second epoch is not like the first ({case}).", f"{samples(n)} again", by_rank([some(a) for a in again]))
        reads = sum(s["reads"] for s in seen)
        if reads > 2 * n:
            raise Difference(
                "reads too much", f"Two epochs called `read` {reads} times ({case}): samples are read that are then thrown away.", f"{2 * n} times",
                by_rank([f"{s['reads']} reads" for s in seen]),
            )  # fmt: skip
    return [
        f"{len(STREAM_CASES)} cases of 1 or 2 ranks with 0 to 3 workers each: every sample once, in each epoch",
        "no rank has two samples more than another; none is read in vain",
    ]


def _dealt(shares: list[list[int]], n: int, num_workers: int, case: str) -> None:
    got = by_rank([some(share, 14) for share in shares])
    expected = f"each of {samples(n)} once, over all ranks and workers"
    counted = Counter(sum(shares, []))
    missing = [i for i in range(n) if i not in counted]
    for rank, share in enumerate(shares):
        if max(Counter(share).values(), default=0) > 1:
            often = max(Counter(share).values())
            raise Difference("workers repeat", f"On rank {rank} a sample comes {often} times, from its {num_workers} workers ({case}).", expected, got)
    if max(counted.values(), default=0) > 1:
        raise Difference("ranks repeat", f"A sample is handed out by {max(counted.values())} ranks ({case}).", expected, got)
    if missing or set(counted) - set(range(n)):
        raise Difference("missed", f"{len(missing)} of {samples(n)} come from nobody ({case}).", expected, got)
    sizes = [len(share) for share in shares]
    if max(sizes) - min(sizes) > 1:
        raise Difference("uneven ranks", f"One rank has {max(sizes)} samples and another {min(sizes)} ({case}).", "shares that differ by one at most", got)


# --- 02.4 -------------------------------------------------------------------------------------------------------------------


def judge_augmented(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "augmented", answer, ranks=1)[0]
    expected = "noise that depends on seed, epoch and index, and on nothing else"
    pairs = told["pairs"]
    across = [(a, b) for a, b in pairs if a[0] != b[0] and a[1] != b[1]]
    if len(pairs) > 2 and all(a[0] == b[0] for a, b in pairs[:3]):
        raise Difference("same for all", f"In epoch {pairs[0][0][0]} images {pairs[0][0][1]} and {pairs[0][1][1]} get the same noise.", expected)
    if any(a[1] == b[1] for a, b in pairs):
        raise Difference("same every epoch", "An image gets the same noise in epoch 0 and in a later one.", expected)
    if told["touched"]:
        raise Difference("global state", f"After loading, the global random state of {' and '.join(told['touched'])} is another one.",
                         "a generator of its own: dropout and the sampler use the global one")  # fmt: skip
    if told["workers"]:
        n = told["workers"][0]
        raise Difference("workers matter", f"With {n} worker{'s' * (n > 1)} the images get other noise than with none.", expected)
    if not told["order"]:
        raise Difference("order matters", "Asked for in another order, the images get other noise.", expected)
    if across:
        a, b = across[0]
        raise Difference(
            "sums collide", f"Image {a[1]} in epoch {a[0]} gets the noise of image {b[1]} in epoch {b[0]}; so do {len(across) - 1} others.", expected
        )
    if not told["seed"]:
        raise Difference("seed ignored", "seed=0 and seed=1 give the same noise.", expected)
    if abs(told["mean"]) > 0.05 or abs(told["std"] - 1) > 0.05:
        raise Difference("not normal", f"The noise has mean {told['mean']:.2f} and standard deviation {told['std']:.2f}.", "mean 0 and standard deviation 1")
    return [
        f"{EPOCHS} epochs with 0 to 3 workers, and in another order: each image gets the noise of its seed, epoch and index",
        "no two images or epochs share their noise; global random states and the images are left alone",
    ]


EXERCISES = {
    e.name: e
    for e in [
        Exercise("02.1", "choose workers for a step", judge_workers, hints_02.WORKERS, how=""),
        Exercise("02.2", "a collate that pads", judge_collate, hints_02.COLLATE, how="also in real workers"),
        Exercise("02.3", "a stream for ranks and workers", judge_stream, hints_02.STREAM, how="on real ranks, with real workers"),
        Exercise("02.4", "noise that can be repeated", judge_augmented, hints_02.AUGMENTED, how="in real workers"),
    ]
}
