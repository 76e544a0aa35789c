"""Lesson 03, exercise 5: what shows that a script doesn't share its batches yet, or trains something else."""

from __future__ import annotations

import random
import tempfile
from typing import Any

from ..judging import Answer, Difference, some
from .cases import BATCH, EPOCHS, SAMPLES

ROUNDING = 1e-9


def judge_convert(answer: Answer) -> list[str]:
    said = {r"grad can be implicitly created only for scalar outputs": "vector"}
    with tempfile.TemporaryDirectory(prefix="course-convert-") as folder:
        given = {"folder": folder, "seed": random.randrange(10**6)}
        (told,) = answer.on_ranks("convert.script", ranks=1, said=said, given=given)
        (twin,) = answer.on_ranks("twins.trainings", ranks=1, given=given)
    _shared(told["seen"])
    _trained(told["weights"], twin)
    _file(told["weights"], twin["file"])
    steps = EPOCHS * -(-SAMPLES // BATCH)
    return [
        f"{steps} steps: every sample went through a replica, {max(told['seen']['replica'])} at most through each",
        "in the end the weights of one device, though the last chunks are uneven",
        "the file loads into the plain model",
    ]


def _shared(seen: dict[str, list[int]]) -> None:
    rows = EPOCHS * SAMPLES
    through = sum(seen["replica"])
    if not through:
        raise Difference(
            "not split",
            "No replica ever ran: one device does all the work.",
            "each batch goes through `nn.DataParallel`",
            [f"{sum(seen['alone'])} samples through the model itself"],
        )
    if seen["alone"]:
        raise Difference(
            "past the wrapper",
            "Some samples go past the wrapper, through the model itself.",
            "each batch goes through `nn.DataParallel`, and only through it",
            [f"{sum(seen['alone'])} samples through the model itself, {through} through replicas"],
        )
    if max(seen["replica"]) > -(-BATCH // 4):
        raise Difference(
            "one place",
            "A replica gets more samples than with four devices and batches of the same size as before.",
            f"batches of {BATCH} in chunks of {BATCH // 4}",
            [f"chunks of {some(seen['replica'], 4)} samples"],
        )
    if through != rows:
        raise Difference(
            "samples",
            f"{EPOCHS} epochs of {SAMPLES} samples, and the replicas saw another number.",
            f"{rows} samples through the replicas",
            [f"{through} samples"],
        )


def _trained(weights: dict[str, list[float]], twin: dict[str, Any]) -> None:
    if _gap(weights, twin["right"]) < ROUNDING:
        return
    for how, words in (
        ("sum of means", "They're those of a learning rate that is four times too high."),
        ("mean of means", "They're those of a mean of the replicas' means."),
    ):
        if _gap(weights, twin[how]) < ROUNDING:
            raise Difference(how, f"The weights in the end aren't those of one device. {words}", "those of one device")
    raise Difference(
        "wrong",
        "The weights in the end aren't those of one device.",
        "those of one device, with the same batches and the same learning rate",
        [f"off by {_gap(weights, twin['right']):.1g}"],
    )


def _file(weights: dict[str, list[float]], file: dict[str, list[float]] | None) -> None:
    if file is None:
        raise Difference("no file", "There is no file that `torch.load` reads.", "`model.state_dict()` in it")
    if list(file) != list(weights):
        raise Difference("keys", "A plain model can't load the file.", some(list(weights), 3), [some(list(file), 3)])
    if _gap(weights, file) > 0:
        raise Difference("other weights", "The file doesn't hold the weights after the last step.", "the trained model")


def _gap(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    return max(abs(a - b) for name in one for a, b in zip(one[name], other[name], strict=True))
