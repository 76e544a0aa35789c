"""Lesson 07, exercise 2: how what a server answers differs from what it should."""

from __future__ import annotations

import random
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Got, differ, gap, require, some
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
            differ("shared", got, how="changed", trainer=told["changed"][0], case=words)


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
    facts = {"ahead": server.ahead, "made": _made(server), "case": words}
    if early := sorted(answered - said.answers.keys()):
        differ("too early", got, trainer=early[0], lead=server.lead(early[0]), **facts)
    if missing := sorted(said.answers.keys() - answered):
        kind, trainer = call[0], missing[0]
        symptom = "not at once" if kind == "r" else "left" if kind == "l" else "one of several" if answered else "never"
        differ("one too few" if strict else symptom, got, trainer=trainer, lead=server.lead(trainer), **facts)


def _made(server: Bounded) -> str:
    return some([f"{made} by trainer {trainer}" for trainer, made in server.made.items()])


def _what(
    version: int, found: list[float], newest: int, asked: int, weights: list[list[float]], words: str, got: list[Got]
) -> None:
    """The newest weights, whole, with their version."""
    right = gap(found, weights[newest]) == 0
    if right and version == newest:
        return
    facts = {"case": words, "newest": newest, "version": version, "asked": asked}
    require(all(value == value for value in found), "shared", got, how="nan", **facts)
    require(asked >= newest or gap(found, weights[asked]) != 0, "old weights", got, **facts)
    require(not right, "version", got, **facts)
    first = f"first weight: {found[0]:g}, expected {weights[newest][0]:g}, at the start {weights[0][0]:g}"
    differ("weights", [first], **facts)


def _age(right: int | None, age: int | None, found: int, versions: tuple[int, int], words: str, got: list[Got]) -> None:
    """`found` is the version that the update finds; `versions` the one that its trainer was given, and the one at which
    it had asked for it."""
    if right == age or right is None or age is None:
        return
    given, asked = versions
    symptom = "age of the question" if asked < given and age == found - asked else "age"
    if found == 0 and age == 1:
        symptom = "age with its own"
    differ(symptom, got, age=age, case=words, right=right, given=given)
