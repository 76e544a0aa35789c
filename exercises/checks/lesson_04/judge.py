"""Lesson 04: what its exercises ask for, and what shows that an answer doesn't do it."""

from __future__ import annotations

from collections import Counter
from functools import partial

from course_utils.show.units import counted

from ..judging import Answer, Exercise, by_rank, differ, require, samples, some
from .accuracy_judge import judge_accuracy
from .cases import SHARD_CALLS, shard_cases
from .checkpoint_judge import judge_checkpoint
from .convert_judge import judge_convert
from .trainer_judge import judge_trainer

# --- 04.1 -------------------------------------------------------------------------------------------------------------


def judge_shard(answer: Answer) -> list[str]:
    told = answer.on_ranks("shard", ranks=4)
    cases = shard_cases(told[0]["seed"])
    for i, (n, ranks, shuffle, drop_last) in enumerate(cases):
        # calls[c][rank]
        calls = [[told[rank]["shards"][i][c] for rank in range(ranks)] for c in range(len(SHARD_CALLS))]
        case = f"{samples(n)} on {counted(ranks, 'rank')}{', drop_last=True' * drop_last}, shuffle={shuffle}"
        for (epoch, _), shards in zip(SHARD_CALLS, calls, strict=True):
            _partition(shards, n, drop_last, shuffle, f"{case}, epoch {epoch}")
        got = [f"first {some(a)}; then {some(b)}" for a, b in zip(calls[0], calls[-1], strict=True)]
        require(calls[0] == calls[-1], "not repeatable", by_rank(got), case=case)
        for rank in range(ranks):
            other, asked = (rank + 1) % ranks, told[rank]["neighbours"][i]
            right, asker = calls[0][other], [(f"rank {rank}", some(asked))]
            require(asked == right, "whose shard", asker, rank=rank, other=other, case=case, right=some(right))
        if not shuffle:
            _in_order(calls, n, drop_last, case)
        elif n >= 12:
            _shuffled(calls, n, ranks, case)
    require(told[0]["elsewhere"], "another process")
    return [
        (
            f"{len(cases)} cases of 1 to 1000 samples on 1 to 4 ranks: equal lengths, every sample seen, as"
            " little padding as possible"
        ),
        "another order in each epoch and for each seed, the same on all ranks though their random states differ",
        "drop_last repeats no sample; the global random state is left alone",
    ]


def _partition(shards: list[list[int]], n: int, drop_last: bool, shuffle: bool, case: str) -> None:
    """The shards of one epoch deal out n samples."""
    ranks = len(shards)
    if out := next(((r, i) for r, shard in enumerate(shards) for i in shard if not 0 <= i < n), None):
        differ("out of range", rank=out[0], index=out[1], last=n - 1, case=case)
    lengths = [len(shard) for shard in shards]
    require(len(set(lengths)) == 1, "unequal lengths", by_rank([samples(length) for length in lengths]), case=case)
    seen = Counter(i for shard in shards for i in shard)
    got = by_rank([some(shard) for shard in shards])
    length = n // ranks if drop_last else -(-n // ranks)
    everything = ranks > 1 and n > ranks and all(len(shard) == n and len(set(shard)) == n for shard in shards)
    require(not everything, "everything", got, n=n, ranks=ranks, length=length, case=case)
    require(lengths[0] == length, "length", got, found=lengths[0], length=length, case=case)
    missing, wanted = n - len(seen), max(0, n - ranks * length)
    twice = sum(count > 1 for count in seen.values())
    symptom = "permutations differ" if shuffle else "overlap"
    require(missing <= wanted, symptom, got, missing=missing, n=n, twice=twice, case=case)
    most, least = max(seen.values(), default=0), min(seen.values(), default=0)
    if most > (1 if drop_last else least + 1):
        often = next(i for i, count in seen.items() if count == most)
        differ("uneven padding", got, often=often, most=most, least=least, case=case)


def _in_order(calls: list[list[list[int]]], n: int, drop_last: bool, case: str) -> None:
    got = by_rank([some(shard, 12) for shard in calls[0]])
    require(all(call == calls[0] for call in calls), "shuffled anyway", got, case=case)
    for shard in calls[0]:
        rises = sum(b > a for a, b in zip(shard, shard[1:], strict=False))
        falls = not (n % len(calls[0]) == 0 or drop_last)  # where padding begins, the order may fall once
        require(rises >= len(shard) - 1 - falls, "not in order", got, case=case)


def _shuffled(calls: list[list[list[int]]], n: int, ranks: int, case: str) -> None:
    first, second = calls[:2]
    by_epoch = {epoch: call for (epoch, seed), call in zip(SHARD_CALLS, calls, strict=True) if seed == 0}
    by_seed = {seed: call for (epoch, seed), call in zip(SHARD_CALLS, calls, strict=True) if epoch == 0}
    if pair := _alike(by_epoch):
        a, b = pair
        begins = [
            f"epoch {a} begins {some(x)}; epoch {b} begins {some(y)}"
            for x, y in zip(by_epoch[a], by_epoch[b], strict=True)
        ]
        how = "all" if len(by_epoch) > 1 and all(call == first for call in by_epoch.values()) else "two"
        differ("same every epoch", by_rank(begins), how=how, a=a, b=b, case=case)
    if pair := _alike(by_seed):
        differ("seed ignored", a=pair[0], b=pair[1], case=case)
    if n > 100 and ranks > 1:
        kept = [len(set(a) & set(b)) / len(set(a)) for a, b in zip(first, second, strict=True)]
        got = by_rank([f"{share:.0%} of its samples of epoch 0 are there again in epoch 1" for share in kept])
        require(min(kept) <= 0.9, "fixed shards", got, chance=1 / ranks, case=case)
    if n > 20 and len(first[0]) > 10:
        steps = Counter((b - a) % n for a, b in zip(first[0], first[0][1:], strict=False))
        most = steps.most_common(1)[0][1]
        require(most <= len(first[0]) / 2, "not shuffled", begins=some(first[0]), case=case)


def _alike(calls: dict[int, list[list[int]]]) -> tuple[int, int] | None:
    """Two keys whose values are equal."""
    keys = list(calls)
    return next(((a, b) for i, a in enumerate(keys) for b in keys[i + 1 :] if calls[a] == calls[b]), None)


TRAINERS = {
    "a": "every epoch is like the last",
    "b": "each rank goes its own way",
    "c": "a head start for one rank",
    "d": "a fast and a slow rank",
    "e": "the last evaluation never ends",
}
# The faulty trainers as the notebook hands them out; a test compares these with it.
HANDED_OUT = {"a": "dd0c8838f0c8", "b": "6d1eed75ceea", "c": "81c1e3ac5c7f", "d": "e60bd7018e51", "e": "6edababb0a5d"}
SCRIPT = "5c7245f81088"  # and the script of 04.5, which is for one process

EXERCISES = {
    e.name: e
    for e in [
        Exercise("04.1", "deal out a data set", judge_shard),
        Exercise("04.2", "measure a metric over padded shards", judge_accuracy),
        *(
            Exercise(f"04.3{k}", f"mend: {title}", partial(judge_trainer, k), HANDED_OUT[k])
            for k, title in TRAINERS.items()
        ),
        Exercise("04.4", "a checkpoint that loads both ways", judge_checkpoint),
        Exercise("04.5", "convert a script", judge_convert, SCRIPT),
    ]
}
