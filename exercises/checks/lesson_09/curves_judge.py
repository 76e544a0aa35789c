"""Lesson 09, exercise 5: whether each curve is given to the program that made it, and what a wrong rule looked at."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import permutations

from ..judging import Answer, differ, require
from .cases import EACH, ONE, PLAIN, PROGRAMS, SECOND, CurveModel, curve_models

# Symptoms by (the program that made the curve, the answer), the first that occurs is told. Of few blocks alone there's
# another one.
SYMPTOMS = {
    (ONE, PLAIN): "mountain",
    (PLAIN, ONE): "mountain",
    (SECOND, PLAIN): "rises",
    (EACH, PLAIN): "rises",
    (PLAIN, EACH): "equal steps",
    (PLAIN, SECOND): "large and small",
    (EACH, SECOND): "large and small",
    (SECOND, EACH): "kept blocks",
    (EACH, ONE): "flat",
    (SECOND, ONE): "flat",
    (ONE, EACH): "flat",
    (ONE, SECOND): "flat",
}
FEW = 3


@dataclass(frozen=True)
class Curve:
    """A curve, the program that made it of a model, and the answer's name for it."""

    model: CurveModel
    program: str
    values: list[float]
    said: str

    @property
    def blocks(self) -> int:
        return len(self.values) // 3


def judge_curves(answer: Answer) -> list[str]:
    draw = random.Random()
    models = curve_models(draw)
    made = answer.on_ranks("curves.run", ranks=1, given=models)[0]["curves"]
    asked = [(i, program) for i in range(len(models)) for program in PROGRAMS]
    draw.shuffle(asked)
    said = answer.on_ranks("program", ranks=1, given=[made[i][program] for i, program in asked])[0]["programs"]
    decide([Curve(models[i], name, made[i][name], word) for (i, name), word in zip(asked, said, strict=True)])
    sizes = [len(insides) for _, _, insides in models]
    return [
        f"{len(asked)} curves: {len(models)} models of {min(sizes)} to {max(sizes)} blocks, run by all four programs",
        "the same answers where only the batch is larger",
    ]


def decide(curves: list[Curve]) -> None:
    """Raise for the first kind of mistake, with its shortest curve that isn't one of few blocks, if there is one."""

    def shown_first(curve: Curve) -> tuple[bool, int, int, int]:
        return curve.blocks <= FEW, curve.blocks, curve.model[0], PROGRAMS.index(curve.program)

    curves = sorted(curves, key=shown_first)
    for curve in curves:
        require(curve.said in PROGRAMS, "name", said=f"{curve.said!r:.60}", names=", ".join(map(repr, PROGRAMS)))
    wrong = [curve for curve in curves if curve.said != curve.program]
    if not wrong:
        return
    require(len({curve.said for curve in curves}) > 1, "always", said=wrong[0].said, curves=len(curves))
    _same_at_any_size(curves)
    found = {SYMPTOMS[curve.program, curve.said]: curve for curve in reversed(wrong)}
    symptom = next(name for name in SYMPTOMS.values() if name in found)
    if all(curve.blocks <= FEW for curve in wrong):
        symptom, found = "few blocks", {"few blocks": wrong[0]}
    curve = found[symptom]
    differ(symptom, _told(curve), said=curve.said, blocks=curve.blocks, program=curve.program)


def _same_at_any_size(curves: list[Curve]) -> None:
    """One model and program gets one answer, however large its batch is."""
    pairs = [
        (large.model[0] // small.model[0], small, large)
        for small, large in permutations(curves, 2)
        if (small.model[1:], small.program) == (large.model[1:], large.program)
        and small.model[0] < large.model[0]
        and small.said != large.said
    ]
    if not pairs:
        return
    times, small, large = max(pairs, key=lambda pair: pair[0])
    got = [*_told(small), *_told(large)]
    differ("scale", got, times=times, small=small.said, large=large.said, program=small.program)


def _told(curve: Curve) -> list[str]:
    numbers = [f"{value:.9g}" for value in curve.values]
    return [f"forward: {', '.join(numbers[: curve.blocks])}", f"backward: {', '.join(numbers[curve.blocks :])}"]
