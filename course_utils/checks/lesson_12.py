"""Lesson 12: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import hints_12
from .base import Difference, Exercise, by_rank, on_ranks, some
from .cases_12 import LIGHTNING_CASES, LIGHTNING_ERRORS, LOSS_CASES, PORT_RANKS, SAMPLER_CASES, TENSORFLOW_CASES, TENSORFLOW_ERRORS

ADAPTER = Path(__file__).resolve().parent / "ranks_12.py"
ROUNDING = 1e-9  # in double precision


# --- 12.1 -------------------------------------------------------------------------------------------------------------------


def judge_port(answer: Path) -> list[str]:
    said = {"No inf checks|GradScaler": "precision", "no parameters|empty parameter list": "no parameters", "second time": "own backward"}
    told = on_ranks(ADAPTER, "port", answer, ranks=PORT_RANKS, said=said)
    mine = told[0]
    if abs(mine["said"] - mine["loss"]) > ROUNDING:
        raise Difference(
            "loss", "`training_step` does not return the loss of the batch.", f"{mine['loss']:.6f}, the mean over its images", [f"{mine['said']:.6f}"]
        )
    if mine["steps"] != len(mine["wanted"]):
        got = by_rank([f"{t['steps']} steps" for t in told])
        raise Difference("accumulation", "The number of optimizer steps is another one.", f"{len(mine['wanted'])} steps for 8 batches", got)
    if any(abs(a - b) > ROUNDING for a, b in zip(mine["rates"], mine["wanted"], strict=True)):
        got = [some([f"{rate:g}" for rate in mine["rates"]])]
        symptom = "no schedule" if min(mine["rates"]) == max(mine["rates"]) >= 0.99e-2 else "once an epoch" if len(set(mine["rates"])) == 1 else "rates"
        raise Difference(symptom, "The learning rates of the steps are others.", some([f"{rate:g}" for rate in mine["wanted"]]), got)
    gaps = mine["gaps"]
    if gaps["norm"] > ROUNDING:
        symptom, sentence = "weights", "The weights after training are others than those of the loop."
        if gaps["none"] < ROUNDING:
            symptom, sentence = "clipping", "The norm of the gradients is not clipped."
        raise Difference(symptom, sentence, "the weights of the loop with the whole batch", by_rank([f"off by {t['gaps']['norm']:.2g}" for t in told]))
    return ["2 ranks, 8 batches, 4 optimizer steps: every weight as after the loop with the whole batch", "the learning rate of each step is that of the loop"]


# --- 12.2 -------------------------------------------------------------------------------------------------------------------


def judge_sampler(answer: Path) -> list[str]:
    from .ranks_12 import answers

    told = on_ranks(ADAPTER, "sampler", answer, ranks=1)[0]
    for (n, ranks), seen, true in zip(SAMPLER_CASES, told["seen"], told["true"], strict=True):
        if seen == true:
            continue
        case = f"{n} image{'s' * (n > 1)} on {ranks} rank{'s' * (ranks > 1)}"
        got, expected = by_rank([some(s, 8) for s in seen[:4]]), "; ".join(by_rank([some(t, 8) for t in true[:4]]))
        if len({len(s) for s in seen}) > 1:
            raise Difference("uneven", f"The ranks see different numbers of images ({case}).", expected, got)
        if any(i >= n or i < 0 for s in seen for i in s):
            raise Difference("out of range", f"An index is not one of an image ({case}).", expected, got)
        if len(seen[0]) < len(true[0]):
            raise Difference("dropped", f"Some images are seen by nobody ({case}).", expected, got)
        each = len(true[0])
        blocks = [[i % n for i in range(rank * each, (rank + 1) * each)] for rank in range(ranks)]
        symptom = "blocks" if seen == blocks else "other images"
        raise Difference(symptom, f"A rank sees other images ({case}).", expected, got)
    for (n, ranks), share, true in zip(SAMPLER_CASES, told["shares"], told["true"], strict=True):
        found = answers(n)
        right = sum(found) / n
        if abs(share - right) < ROUNDING:
            continue
        correct = [[found[i] for i in indices] for indices in true]
        total, size = sum(map(sum, correct)), sum(map(len, correct))
        known = {"counted twice": total / size, "over n": total / n, "a count": float(sum(found))}
        symptom = next((name for name, value in known.items() if abs(value - share) < ROUNDING), "accuracy")
        raise Difference(symptom, f"The accuracy is another one ({n} images on {ranks} ranks).", f"{right:.4f}", [f"{share:.4f}"])
    return [
        f"{len(SAMPLER_CASES)} sets of 1 to 1000 images on 1 to 8 ranks: the images of each rank, as torch's sampler gives them",
        f"{len(SAMPLER_CASES)} accuracies, each image counted once",
    ]


# --- 12.3 -------------------------------------------------------------------------------------------------------------------


def judge_batches(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "batches", answer, ranks=1)[0]
    for case, pair in zip(LIGHTNING_CASES, told["lightning"], strict=True):
        _lightning(case, pair)
    for case, pair in zip(LIGHTNING_ERRORS, told["lightning_errors"], strict=True):
        if pair != "ValueError":
            ranks = case[1] * case[2]
            raise Difference("no error", f"{case[0]} images on {ranks} ranks make no step of exactly {case[0]}.", "ValueError", [str(tuple(pair))])
    for (batch, workers, replicas), pair in zip(TENSORFLOW_CASES, told["tensorflow"], strict=True):
        right = [batch, batch // (workers * replicas)]
        if pair != right:
            known = {"local batch": right[1], "batch of a worker": batch // workers}
            symptom = next((name for name, value in known.items() if pair != "ValueError" and pair[0] == value != batch), "tensorflow")
            case_ = f"global batch {batch}, {workers} workers with {replicas} replicas each"
            raise Difference(symptom, f"TensorFlow would take another step ({case_}).", str(tuple(right)), [str(pair)])
    for (batch, workers, replicas), pair in zip(TENSORFLOW_ERRORS, told["tensorflow_errors"], strict=True):
        if pair != "ValueError":
            raise Difference("no error", f"{batch} images do not divide by {workers * replicas} replicas.", "ValueError", [str(tuple(pair))])
    return [
        f"{len(LIGHTNING_CASES)} clusters: batch size and accumulation make the global batch, with as few parts as fit",
        f"{len(TENSORFLOW_CASES)} times TensorFlow's global batch and its replicas' part",
        "what does not divide raises ValueError",
    ]


def _lightning(case: tuple[int, int, int, int], pair: Any) -> None:
    batch, nodes, devices, fits = case
    ranks = nodes * devices
    share = batch // ranks
    parts = next(k for k in range(1, share + 1) if share % k == 0 and share // k <= fits)
    words = f"global batch {batch}, {nodes} nodes with {devices} devices, {fits} fit"
    expected = f"({share // parts}, {parts})"
    if pair == "ValueError":
        raise Difference("error", f"ValueError is raised for what can be done ({words}).", expected)
    size, accumulate = pair
    got = [f"({size}, {accumulate}): steps of {size * accumulate * ranks} images"]
    if size < 1 or accumulate < 1:
        raise Difference("none", f"Nothing is left of the batch ({words}).", expected, got)
    if size > fits:
        raise Difference("does not fit", f"A batch of {size} does not fit on a device ({words}).", expected, got)
    if size * accumulate * ranks != batch:
        makes = size * accumulate
        symptom = "global in the loader" if makes == batch else "nodes left out" if makes * devices == batch else "another step"
        raise Difference(symptom, f"A step has another number of images ({words}).", f"{expected}: steps of {batch} images", got)
    if accumulate != parts:
        raise Difference("too many parts", f"Fewer parts are enough ({words}).", expected, got)


# --- 12.4 -------------------------------------------------------------------------------------------------------------------


def judge_loss(answer: Path) -> list[str]:
    cases = on_ranks(ADAPTER, "loss", answer, ranks=1)[0]["cases"]

    def near(a: float, b: float) -> bool:
        return abs(a - b) <= ROUNDING * max(1.0, abs(b))

    def replicas(i: int) -> int:
        return len(LOSS_CASES[i][0])

    known = {
        "local mean": lambda i, c: c["local means"] + c["penalty"],
        "local mean, penalty twice": lambda i, c: c["local means"] + replicas(i) * c["penalty"],
        "mean of means": lambda i, c: (c["local means"]) / replicas(i) + c["penalty"],
        "penalty twice": lambda i, c: c["images"] + replicas(i) * c["penalty"],
        "no penalty": lambda i, c: c["images"],
        "sum": lambda i, c: c["sum"] + c["penalty"],
        "divided twice": lambda i, c: c["images"] / replicas(i) + c["penalty"],
        "two replicas": lambda i, c: c["images"] + replicas(i) * c["penalty"] / 2,
        "penalty over images": lambda i, c: c["images"] + replicas(i) * c["penalty"] / LOSS_CASES[i][1],
    }
    for i, case in enumerate(cases):
        right = case["images"] + case["penalty"]
        parts, global_batch = LOSS_CASES[i]
        words = f"{' and '.join(map(str, parts))} images on {len(parts)} replica{'s' * (len(parts) > 1)}, global batch {global_batch}"
        if not near(case["value"], right):
            symptom = next((name for name, value in known.items() if all(near(c["value"], value(j, c)) for j, c in enumerate(cases))), "another loss")
            got = [f"{case['value']:.4f}, of which the images should be {case['images']:.4f} and the penalty {case['penalty']:.4f}"]
            raise Difference(symptom, f"The replicas' losses add up to another loss of the step ({words}).", f"{right:.4f}", got)
        if case["gap"] > ROUNDING:
            raise Difference("gradient", f"The loss is right, and the update is not ({words}).", "the gradient of that loss", [f"off by {case['gap']:.2g}"])
    return ["3 global batches, one of them not full: the loss and the update of one device with the whole batch", "the same function on one device"]


EXERCISES = {
    e.name: e
    for e in [
        Exercise("12.1", "port a loop", judge_port, hints_12.PORT, needs="lightning"),
        Exercise("12.2", "what Lightning did with your sampler", judge_sampler, hints_12.SAMPLER, how=""),
        Exercise("12.3", "one batch size, three dialects", judge_batches, hints_12.BATCHES, how=""),
        Exercise("12.4", "scale a loss for replicas", judge_loss, hints_12.LOSS, how="under MirroredStrategy on two logical devices", needs="tensorflow"),
    ]
}
