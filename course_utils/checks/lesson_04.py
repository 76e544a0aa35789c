"""Lesson 04: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from . import hints_04
from .base import Difference, Exercise, by_rank, on_ranks, samples, some
from .cases_04 import ACCURACY_CASES, EPOCHS, N_TRAIN, PER_STEP, SHARD_CALLS, SHARD_CASES, SHARES

HERE = Path(__file__).resolve().parent
ADAPTER, CHECKPOINT_ADAPTER = HERE / "ranks_04.py", HERE / "ranks_04_checkpoint.py"


# --- 04.1 -------------------------------------------------------------------------------------------------------------------


def judge_shard(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "shard", answer, ranks=4)
    for i, (n, ranks, shuffle, drop_last) in enumerate(SHARD_CASES):
        calls = [[told[rank]["shards"][i][c] for rank in range(ranks)] for c in range(len(SHARD_CALLS))]  # calls[c][rank]
        case = f"{samples(n)} on {ranks} rank{'s' * (ranks > 1)}" + ", drop_last=True" * drop_last + (", shuffle=True" if shuffle else ", shuffle=False")
        for (epoch, _), shards in zip(SHARD_CALLS, calls, strict=True):
            _partition(shards, n, drop_last, shuffle, f"{case}, epoch {epoch}")
        if calls[0] != calls[-1]:
            got = [f"first {some(a)}; then {some(b)}" for a, b in zip(calls[0], calls[-1], strict=True)]
            raise Difference("not repeatable", f"Asked twice for the same epoch, a rank gives two orders ({case}).", "the same list", by_rank(got))
        if not shuffle:
            _in_order(calls, n, drop_last, case)
        elif n >= 12:
            _shuffled(calls, n, ranks, case)
    touched = sorted({name for t in told for name in t["touched"]})
    if touched:
        raise Difference(
            "global state",
            f"After `shard` the global random state of {' and '.join(touched)} is another one.",
            "a generator of its own: what else is random in the program must not depend on how data is dealt",
        )
    return [
        f"{len(SHARD_CASES)} cases of 1 to 1000 samples on 1 to 4 ranks: equal lengths, every sample seen, as little padding as possible",
        "another order in each epoch and for each seed, the same on all ranks though their random states differ",
        "drop_last repeats no sample; the global random state is left alone",
    ]


def _partition(shards: list[list[int]], n: int, drop_last: bool, shuffle: bool, case: str) -> None:
    """The shards of one epoch deal out n samples."""
    ranks = len(shards)
    out = next(((r, i) for r, shard in enumerate(shards) for i in shard if not 0 <= i < n), None)
    if out:
        raise Difference("out of range", f"Rank {out[0]} got index {out[1]}, which does not exist ({case}).", f"indices from 0 to {n - 1}")
    if len({len(shard) for shard in shards}) > 1:
        got = by_rank([samples(len(shard)) for shard in shards])
        raise Difference(
            "unequal lengths", f"The shards have different lengths ({case}): in training, the rank with more batches waits for ever.", "equal lengths", got
        )
    seen = Counter(i for shard in shards for i in shard)
    got = by_rank([some(shard) for shard in shards])
    length = n // ranks if drop_last else -(-n // ranks)
    if ranks > 1 and n > ranks and all(len(shard) == n and len(set(shard)) == n for shard in shards):
        raise Difference("everything", f"Every rank has all {n} samples ({case}): {ranks} ranks do the work of one, {ranks} times.", f"{length} each", got)
    if len(shards[0]) != length:
        raise Difference("length", f"A shard has {samples(len(shards[0]))} ({case}).", f"{length} each", got)
    missing, wanted = n - len(seen), max(0, n - ranks * length)
    if missing > wanted:
        twice = sum(count > 1 for count in seen.values())
        symptom = "permutations differ" if shuffle else "overlap"
        raise Difference(symptom, f"{missing} of {n} samples are on no rank, and {twice} more than once ({case}).", "all samples dealt, none missed", got)
    most, least = max(seen.values(), default=0), min(seen.values(), default=0)
    if most > (1 if drop_last else least + 1):
        often = next(i for i, count in seen.items() if count == most)
        raise Difference("uneven padding", f"Sample {often} is dealt {most} times, and another {least} time{'s' * (least > 1)} ({case}).",
                         "padding that repeats different samples, each once before any twice", got)  # fmt: skip


def _in_order(calls: list[list[list[int]]], n: int, drop_last: bool, case: str) -> None:
    got = by_rank([some(shard, 12) for shard in calls[0]])
    if any(call != calls[0] for call in calls):
        raise Difference("shuffled anyway", f"The order changes with epoch or seed ({case}).", "the same order in every epoch", got)
    for shard in calls[0]:
        rises = sum(b > a for a, b in zip(shard, shard[1:], strict=False))
        if rises < len(shard) - 2 + (n % len(calls[0]) == 0 or drop_last):  # where padding begins, the order may fall once
            raise Difference("not in order", f"Samples are not in the order of the data set ({case}).", "rising indices, apart from the padding", got)


def _shuffled(calls: list[list[list[int]]], n: int, ranks: int, case: str) -> None:
    first, second, third, other_seed, _ = calls
    if first == second or second == third or first == third:
        got = [f"epoch 0 begins {some(a)}; epoch 1 begins {some(b)}" for a, b in zip(first, second, strict=True)]
        raise Difference("same every epoch", f"The same samples come in the same order in every epoch ({case}).", "a new order each epoch", by_rank(got))
    if first == other_seed:
        raise Difference("seed ignored", f"seed=0 and seed=7 give the same order ({case}).", "another order for another seed")
    if n > 100 and ranks > 1:
        kept = [len(set(a) & set(b)) / len(set(a)) for a, b in zip(first, second, strict=True)]
        if min(kept) > 0.9:
            got = by_rank([f"{share:.0%} of its samples of epoch 0 are there again in epoch 1" for share in kept])
            raise Difference(
                "fixed shards", f"Each rank gets the same samples in every epoch, in another order ({case}).", f"about {1 / ranks:.0%} again, by chance", got
            )
    if n > 20:
        steps = Counter((b - a) % n for a, b in zip(first[0], first[0][1:], strict=False))
        if len(first[0]) > 10 and steps.most_common(1)[0][1] > len(first[0]) / 2:
            raise Difference("not shuffled", f"Neighbours stay neighbours: rank 0 gets {some(first[0])} ({case}).", "a random permutation")


# --- 04.2 -------------------------------------------------------------------------------------------------------------------

MOST_COLLECTIVES = 4


def judge_accuracy(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "accuracy", answer, ranks=4)
    most = 0
    for i, (n, ranks, batch_size) in enumerate(ACCURACY_CASES):
        seen = [told[rank]["cases"][i] for rank in range(ranks)]
        _same_and_exact(seen, n, f"{samples(n)} on {ranks} ranks, batches of {batch_size}")
        calls = [s["collectives"] for s in seen]
        most = max(most, *calls)
        if max(calls) > MOST_COLLECTIVES:
            raise Difference(
                "collectives", f"One evaluation of {seen[0]['batches']} batches a rank took {max(calls)} collectives.",
                f"at most {MOST_COLLECTIVES}, however many batches there are", by_rank([f"{c} collectives" for c in calls]),
            )  # fmt: skip
    return [
        f"{len(ACCURACY_CASES)} test sets of 1 to 101 samples on 2 to 4 ranks: the accuracy of one process, on every rank",
        "no padded sample counted, also where a rank holds nothing else",
        f"{most} collective{'s' * (most > 1)} at most for a whole evaluation",
    ]


def _same_and_exact(seen: list[dict[str, Any]], n: int, case: str) -> None:
    truth, values = seen[0]["truth"], [s["value"] for s in seen]
    expected = f"{truth:.6f} = {seen[0]['correct']} right of {n}, on every rank"
    got = by_rank([f"{v:.6f}" for v in values])

    def fits(key: str) -> bool:
        """Whether every rank's value is the one that a known mistake gives."""
        return all(s[key] is not None and abs(s["value"] - s[key]) < 1e-6 for s in seen)

    right = [abs(v - truth) < 1e-6 for v in values]
    if all(right) and len(set(values)) == 1:
        return
    if right[0] and not all(right):
        raise Difference("one rank", f"Only rank 0 knows the result ({case}).", expected, got)
    if fits("local") or fits("local_real"):
        raise Difference("local", f"Each rank returns the accuracy of its own part ({case}).", expected, got)
    if len(set(values)) > 1:
        raise Difference("ranks disagree", f"The ranks return different values ({case}).", expected, got)
    if fits("padded"):
        padded = len(seen) * -(-n // len(seen))
        raise Difference("padding", f"Padded samples are counted: {padded} samples were averaged, and there are {n} ({case}).", expected, got)
    if fits("mean_of_ranks"):
        raise Difference("mean of means", f"The ranks' accuracies are averaged, though they stand for different numbers of samples ({case}).", expected, got)
    if fits("mean_of_batches"):
        raise Difference("mean of means", f"The batches' accuracies are averaged, though the last batch is shorter ({case}).", expected, got)
    raise Difference("wrong value", f"The accuracy is not that of one process ({case}).", expected, got)


# --- 04.3 -------------------------------------------------------------------------------------------------------------------

ROUNDING = 1e-9  # in double precision right answers differ by 1e-16, and every mistake here by more than 1e-4


def judge_trainer(letter: str, answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "evaluating trainer" if letter == "e" else "trainer", answer, ranks=2)[0]
    steps = told["steps"]
    if min(steps) == 0:
        raise Difference(
            "no steps", "No optimizer took a step.", f"{N_TRAIN // PER_STEP} steps in each of {EPOCHS} epochs", by_rank([f"{n} steps" for n in steps])
        )
    _replicas(told)
    if set(steps) != {EPOCHS * N_TRAIN // PER_STEP}:
        raise Difference("steps", f"The training has {max(steps)} steps.", f"{EPOCHS * N_TRAIN // PER_STEP}: {PER_STEP} samples a step over both ranks",
                         by_rank([f"{n} steps" for n in steps]))  # fmt: skip
    _samples(told, letter)
    if letter == "c":
        _bias(told)
    if letter == "e":
        _accuracies(told)
    worst = max(max(gaps) for gaps in told["twin_gap"])
    return [
        f"{min(steps)} steps on 2 ranks that started from different weights: after each of them both hold the same weights",
        f"and those of one process that trains on the same samples (largest gap {worst:.0e})",
        f"all {N_TRAIN} samples in each epoch, in a new order",
        f"collectives in a step, from the third on: {', '.join(told['calls'][0][2])}",
    ]


def _replicas(told: dict[str, Any]) -> None:
    """Both ranks hold the same weights after each step, those of the twin, and by the means of DDP."""
    expected = "both ranks hold the weights of one process that trains on the samples of both"
    reduces = [[sum(name.startswith(("allreduce", "reduce_scatter")) for name in step) for step in rank] for rank in told["calls"]]
    if max(max(rank[2:], default=0) for rank in reduces) == 0 and told["rank_gap"][-1] > ROUNDING:
        raise Difference(
            "no exchange", "From the third step on not one gradient is exchanged: each rank trains a model of its own.", expected,
            by_rank([f"0 all-reduces a step; after step 5 the weights differ by {_at(told['rank_gap'], 4):.2g}"] * 2),
        )  # fmt: skip
    if told["start_gap"]:
        names = some([f"{name} (by {gap:.2g})" for name, gap in told["start_gap"].items()], 3)
        last = told["rank_gap"][-1]
        raise Difference("different start", f"Before the first step the ranks hold different weights: {names}. After the last they still differ by {last:.2g}.",
                         "the same weights everywhere before the first step; DDP keeps replicas equal, it does not make them equal")  # fmt: skip
    for step, gap in enumerate(told["rank_gap"][: max(5, len(told["rank_gap"]))], 1):
        if gap > ROUNDING:
            raise Difference("drift", f"After step {step} the two ranks hold different weights: they differ by {gap:.2g}.", expected)
    for step, gaps in enumerate(told["twin_gap"], 1):
        if max(gaps) > ROUNDING:
            counts = [len(told["samples"][rank][step - 1]) for rank in (0, 1)]
            raise Difference(
                "not the mean", f"After step {step} both ranks agree, and are off by {max(gaps):.2g} from one process on the same samples.", expected,
                by_rank([f"{samples(n)} in step {step}" for n in counts]),
            )  # fmt: skip
    most = max(max(rank[2:], default=0) for rank in reduces)
    if most > 2:
        raise Difference("too many", f"A step has {most} all-reduces.", "one for the gradients (they fit in one bucket), and at most one of your own")


def _at(values: list[float], index: int) -> float:
    return values[min(index, len(values) - 1)]


def _samples(told: dict[str, Any], letter: str) -> None:
    """Which samples were seen, epoch by epoch."""
    per_epoch = N_TRAIN // PER_STEP
    orders: list[list[list[int]]] = [[sum(rank[e * per_epoch : (e + 1) * per_epoch], []) for rank in told["samples"]] for e in range(EPOCHS)]
    for epoch, (one, other) in enumerate(orders):
        missing = N_TRAIN - len({*one, *other})
        if missing:
            raise Difference("samples missed", f"In epoch {epoch} {missing} of {N_TRAIN} samples were seen by no rank.", "every sample once an epoch")
    shares = {(len(a), len(b)) for a, b in zip(*told["samples"], strict=True)}
    wanted = SHARES if letter == "d" else (4, 4)
    if shares != {wanted}:
        raise Difference("shares", f"The ranks take {' or '.join(f'{a} and {b}' for a, b in sorted(shares))} samples a step.", f"{wanted[0]} and {wanted[1]}")
    if orders[0] == orders[1]:
        got = [f"epoch 0: {some(a)}; epoch 1: {some(b)}" for a, b in zip(*orders, strict=True)]
        raise Difference("same every epoch", "Both epochs go through the samples in the same order.", "a new order each epoch", by_rank(got))


def _bias(told: dict[str, Any]) -> None:
    wanted = told["log_frequency"]
    if any(abs(got - want) > ROUNDING for bias in told["bias"] for got, want in zip(bias, wanted, strict=True)):
        got = by_rank([some([f"{v:.3f}" for v in bias]) for bias in told["bias"]])
        raise Difference("bias", "Before the first step the bias of the head is not the log of the class frequencies.", some([f"{v:.3f}" for v in wanted]), got)


def _accuracies(told: dict[str, Any]) -> None:
    got, wanted = told["result"][0], told["accuracy"]
    if got is None or len(got) != len(wanted) or any(abs(a - b) > 1e-6 for a, b in zip(got, wanted, strict=True)):
        text = "nothing that is a list of numbers" if got is None else some([f"{v:.4f}" for v in got])
        raise Difference("accuracy", "Rank 0 does not return the accuracy after each epoch.", some([f"{v:.4f}" for v in wanted]), [f"rank 0: {text}"])


# --- 04.4 -------------------------------------------------------------------------------------------------------------------


def judge_checkpoint(answer: Path) -> list[str]:
    said = {
        r"key\(s\).*\bmodule\.": "keys",
        r"(Missing|Unexpected) key\(s\)": "model state",
        r"deserialize object on|Attempting to deserialize|device 'cuda|cuda:7": "location",
        r"has no attribute 'module'": "needs a wrapper",
        r"process group has not been initialized|init_process_group": "no group",
    }
    told = on_ranks(CHECKPOINT_ADAPTER, "checkpoint", answer, ranks=2, said=said)
    writers = [rank for rank, t in enumerate(told) if t["writes"]]
    if len(writers) > 1:
        raise Difference("all write", "All ranks write the checkpoint: into one file, at the same time.", "one rank writes",
                         by_rank([f"{t['writes']} files written" for t in told]))  # fmt: skip
    if not all(t["there"] for t in told):
        got = by_rank(["there" if t["there"] else "not there, or not whole" for t in told])
        if not any(t["there"] for t in told):
            raise Difference("no file", "After `save_checkpoint` there is no file that `torch.load` reads.", "a file at `path`", got)
        raise Difference("no wait", "A rank came back from `save_checkpoint` before the file was complete.", "when any rank returns, the file is whole", got)
    if told[0].get("survived") is False:
        raise Difference(
            "not atomic", "The disk was full in the middle of a write, and the last good checkpoint is gone.", "the file at `path` is old or new, never half"
        )
    for doing in told[0]["rounds"]:
        _round(doing, [t["rounds"][doing] for t in told if doing in t["rounds"]])
    return [
        "loaded from DDP into DDP and a plain model, and from a plain model into both; the next training step is equal to the last bit",
        "one rank writes, the others wait for it; a write that breaks off leaves the last good file",
        "a file dated from cuda:7 loads on the CPU",
    ]


def _round(doing: str, results: list[dict[str, Any]]) -> None:
    untouched = [r["untouched"] for r in results]
    if any(untouched) and not all(untouched):
        got = by_rank(["nothing was loaded" if u else "loaded" for u in untouched])
        raise Difference("one rank loads", f"While {doing}, one rank only got the checkpoint.", "the same state on every rank", got)
    for part in ("model", "optimizer"):
        wrong = [r[part] for r in results]
        if any(wrong):
            how = "nothing was loaded into the model" if part == "model" and all(untouched) else f"the state of the {part} is not what was saved"
            raise Difference(
                f"{part} state" if not (part == "model" and all(untouched)) else "nothing loaded", f"While {doing}: {how}.", "equal to the last bit",
                by_rank([f"{len(names)} entries differ or are missing: {some(names, 3)}" if names else "equal" for names in wrong]),
            )  # fmt: skip
    if any(r["epoch"] != r["wanted"] for r in results):
        raise Difference("epoch", f"While {doing}: `load_checkpoint` does not return the epoch.", f"{results[0]['wanted']} on every rank",
                         by_rank([r["epoch"] for r in results]))  # fmt: skip
    if any(r["next"] for r in results):
        raise Difference("next step", f"After {doing}, the next training step differs from one that was never interrupted.", "equal to the last bit",
                         by_rank([some(r["next"], 3) if r["next"] else "equal" for r in results]))  # fmt: skip


TRAINERS = {
    "a": "every epoch is like the last",
    "b": "each rank goes its own way",
    "c": "a head start for one rank",
    "d": "a fast and a slow rank",
    "e": "the first evaluation is the last",
}
# The faulty trainers as the notebook hands them out; a test compares these with it.
HANDED_OUT = {"a": "dd0c8838f0c8", "b": "6d1eed75ceea", "c": "81c1e3ac5c7f", "d": "e60bd7018e51", "e": "6edababb0a5d"}

EXERCISES = {
    e.name: e
    for e in [
        Exercise("04.1", "deal out a data set", judge_shard, hints_04.SHARD),
        Exercise("04.2", "measure a metric over padded shards", judge_accuracy, hints_04.ACCURACY),
        *(
            Exercise(f"04.3{k}", f"mend: {title}", partial(judge_trainer, k), hints_04.EVALUATING_TRAINER if k == "e" else hints_04.TRAINER, HANDED_OUT[k])
            for k, title in TRAINERS.items()
        ),
        Exercise("04.4", "a checkpoint that loads both ways", judge_checkpoint, hints_04.CHECKPOINT),
    ]
}
