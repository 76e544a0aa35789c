"""Lesson 07, exercise 2: how what a server answers differs from what it should."""

from __future__ import annotations

import random
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Difference, Got, gap, some
from .bounded import Bounded, Said
from .cases import SHAPE, ServerCase, server_cases

SHOWN = 9  # calls before the one that differs
LR = 0.25  # with whole numbers as gradients nothing is rounded
DOES = {"r": "reads", "u": "updates", "l": "leaves"}


def judge_bounded(answer: Answer) -> list[str]:
    draw = random.Random()
    cases = server_cases(draw)
    given = [_given(draw, case) for case in cases]
    told = answer.on_ranks("bounded", ranks=1, given=given)[0]["cases"]
    strict = _strict(cases, told)
    for case, asked, seen in zip(cases, given, told, strict=True):
        decide(case, asked, seen, strict)
    calls = sum(len(case[2].split()) for case in cases)
    return [
        f"{len(cases)} servers and {calls} calls: whoever is too far ahead waits, all others are answered at once",
        "those who waited get the newest weights, as soon as the slowest has caught up or left",
        "the age of each gradient, as many updates as were made since its read was answered",
    ]


def _given(draw: random.Random, case: ServerCase) -> dict[str, Any]:
    trainers, ahead, calls = case
    numbers = SHAPE[0] * SHAPE[1]
    return {
        "trainers": trainers,
        "ahead": ahead,
        "calls": calls,
        "lr": LR,
        "start": [draw.randint(-9, 9) for _ in range(numbers)],
        "gradients": [[draw.randint(1, 9) for _ in range(numbers)] for _ in range(calls.count("u"))],
    }


def decide(case: ServerCase, given: dict[str, Any], seen: list[dict[str, Any]], strict: bool = False) -> None:
    """`seen` has for each call the reads that it answered, (trainer, version, weights), the age that an update
    returned, and whose earlier answers have changed."""
    server, calls = Bounded(*case[:2]), case[2].split()
    weights = [[float(value) for value in given["start"]]]  # of each version
    lines: list[Got] = []
    asked: dict[int, int] = {}  # the version at which each trainer has read last
    for number, (call, told) in enumerate(zip(calls, seen, strict=False)):
        if call[0] == "r":
            asked[int(call[1:])] = server.version
        read_at = server.read_at.get(int(call[1:]), 0)
        said = server.call(call)
        if call[0] == "u":
            gradient = given["gradients"][len(weights) - 1]
            weights.append([w - LR * g for w, g in zip(weights[-1], gradient, strict=True)])
        lines.append((f"trainer {call[1:]} {DOES[call[0]]}", _line(told)))
        words = f"{counted(case[0], 'trainer')}, ahead={case[1]}, call {number + 1}"
        got = (["..."] if number > SHOWN else []) + lines[-SHOWN - 1 :]
        _who(server, call, said, told, strict, words, got)
        for trainer, version, found in told["answers"]:
            _what(version, found, server.version, asked[trainer], weights, f"trainer {trainer}, {words}", got)
        _age(said.age, told["age"], server.version - 1, (read_at, asked.get(int(call[1:]), 0)), words, got)
        if told["changed"]:
            raise Difference(
                "shared",
                f"The weights that trainer {told['changed'][0]} was given have changed in its hands ({words}).",
                "a copy of its own for everybody who reads",
                got,
            )


def _line(told: dict[str, Any]) -> str:
    words = [f"trainer {trainer} gets version {version}" for trainer, version, _ in told["answers"]]
    words += [f"age {told['age']}"] * (told["age"] is not None)
    return ", ".join(words) or "nobody is answered"


def _strict(cases: list[ServerCase], told: list[list[dict[str, Any]]]) -> bool:
    """Whether a server that allows one update less ahead would have answered all calls just so. (One that allows more
    can't be told from one where nobody waits: no trainer ever asks that's further ahead than by one too many.)"""
    return all(_like(Bounded(case[0], case[1] - 1), case, seen) for case, seen in zip(cases, told, strict=True))


def _like(server: Bounded, case: ServerCase, seen: list[dict[str, Any]]) -> bool:
    try:
        return all(
            sorted(server.call(call).answers) == sorted(trainer for trainer, *_ in told["answers"])
            for call, told in zip(case[2].split(), seen, strict=False)
        )
    except KeyError:  # it would have let a trainer wait that goes on here
        return False


def _who(
    server: Bounded, call: str, said: Said, told: dict[str, Any], strict: bool, words: str, got: list[Got]
) -> None:
    """The right trainers are answered."""
    answered = {trainer for trainer, *_ in told["answers"]}
    if early := sorted(answered - said.answers.keys()):
        raise Difference(
            "too early",
            f"Trainer {early[0]} is answered, and is {server.lead(early[0])} ahead of the slowest ({words}).",
            f"no answer until it's at most {server.ahead} ahead; updates so far: {_made(server)}",
            got,
        )
    if missing := sorted(said.answers.keys() - answered):
        kind, trainer = call[0], missing[0]
        symptom = "not at once" if kind == "r" else "left" if kind == "l" else "one of several" if answered else "never"
        raise Difference(
            "one too few" if strict else symptom,
            f"Trainer {trainer} waits, and is only {server.lead(trainer)} ahead of the slowest ({words}).",
            f"an answer as soon as it's at most {server.ahead} ahead; updates so far: {_made(server)}",
            got,
        )


def _made(server: Bounded) -> str:
    return some([f"{made} by trainer {trainer}" for trainer, made in server.made.items()])


def _what(
    version: int, found: list[float], newest: int, asked: int, weights: list[list[float]], words: str, got: list[Got]
) -> None:
    """The newest weights, whole, with their version."""
    right = gap(found, weights[newest]) == 0
    if right and version == newest:
        return
    if any(value != value for value in found):
        raise Difference(
            "shared",
            f"An answer holds NaN ({words}). The check wrote that into tensors that it had given, or been given.",
            "the server has a copy of the weights it was given, and each answer is a copy, too",
            got,
        )
    if asked < newest and gap(found, weights[asked]) == 0:
        raise Difference(
            "old weights",
            f"Somebody waits from version {asked} to version {newest}, and gets weights of version {asked} ({words}).",
            "the newest weights: those of the moment when it's answered",
            got,
        )
    if right:
        raise Difference(
            "version",
            f"The weights in an answer are those of version {newest}, and it says {version} ({words}).",
            f"{newest}: how many updates the weights have had",
            got,
        )
    raise Difference(
        "weights",
        f"The weights in an answer aren't those of version {newest} ({words}).",
        "after each update weights - lr * gradient",
        [f"first weight: {found[0]:g}, expected {weights[newest][0]:g}, at the start {weights[0][0]:g}"],
    )


def _age(right: int | None, age: int | None, found: int, versions: tuple[int, int], words: str, got: list[Got]) -> None:
    """`found` is the version that the update finds; `versions` the one that its trainer was given, and the one at which
    it had asked for it."""
    if right == age or right is None or age is None:
        return
    given, asked = versions
    symptom = "age of the question" if asked < given and age == found - asked else "age"
    if found == 0 and age == 1:
        symptom = "age with its own"
    raise Difference(
        symptom,
        f"An update returns an age of {age} ({words}).",
        f"{right}: the weights were read at version {given}, and have had {right} updates by others since",
        got,
    )
