"""Lesson 07: what an answer is asked, known to both sides of a check. Some cases are drawn anew each time."""

from __future__ import annotations

import random

from .bounded import Bounded

# 07.1: (ranks, steps of each, steps of a round): whole rounds, a rest, one step each, a round that's never full
SgdCase = tuple[int, int, int]
SGD_CASES: list[SgdCase] = [(2, 6, 2), (2, 7, 3), (2, 3, 1), (3, 5, 4), (2, 3, 5)]
SAMPLES, FEATURES, CLASSES = 4, 6, 3
LR, MOMENTUM = 0.1, 0.9
SGD_MISTAKES = ("forgotten", "averaged", "no momentum")  # what can become of the momentum


def sgd_cases(draw: random.Random) -> list[SgdCase]:
    """The fixed ones, and one for three ranks with any rounds."""
    every = draw.randint(2, 4)
    return [*SGD_CASES, (3, every * draw.randint(1, 2) + draw.randint(0, every - 1), every)]


# 07.2: (trainers, how far ahead one may be, calls): "r0" is a read of trainer 0, "u0" its update, "l0" says it leaves
ServerCase = tuple[int, int, str]
SERVER_CASES: list[ServerCase] = [
    (1, 0, "r0 u0 r0 u0 l0"),
    (2, 0, "r0 r1 u0 r0 u1 u0 r1 r0 u1 u0"),
    (2, 1, "r0 u0 r0 u0 r0 r1 u1 r1 u1 u0 r0 u0 r0"),
    (3, 1, "r0 r1 r2 u0 u1 r0 r1 u0 r0 u1 r1 u2 u0 u1 r1 r0 r2 u2"),
    (3, 0, "r1 r2 u1 u2 r2 r1 l0 u1 u2 r1 r2"),
    (2, 2, "r1 u1 r1 u1 r1 u1 r1 l0 u1 r1 u1 l1"),
    (3, 1, "r0 u0 r0 u0 r0 r1 u1 r1 l2 u0 r0 l1 u0 r0 u0 l0"),
]
SHAPE = (2, 3)  # of the weights


def server_cases(draw: random.Random) -> list[ServerCase]:
    """The fixed ones, and some in which trainers take turns as chance has it."""
    more = [(draw.randint(2, 5), draw.randint(0, 3)) for _ in range(5)]
    return [*SERVER_CASES, *((trainers, ahead, calls(draw, trainers, ahead, 60)) for trainers, ahead in more)]


def calls(draw: random.Random, trainers: int, ahead: int, most: int) -> str:
    """Calls as real trainers could make them: no trainer updates before its read is answered. Some are slow."""
    speed = [draw.choice([1, 1, 4]) for _ in range(trainers)]
    server = Bounded(trainers, ahead)
    said: list[str] = []
    while len(said) < most and server.made:
        free = [t for t in server.made if t not in server.waiting]
        (trainer,) = draw.choices(free, [speed[t] for t in free])
        if trainer in server.read_at:
            said.append(f"u{trainer}")
        else:
            said.append(f"{'l' if draw.random() < 0.02 else 'r'}{trainer}")
        server.call(said[-1])
    return " ".join(said)


# 07.3: lines (trainer, read version, wrote version)
Log = list[tuple[int, int, int]]
LOGS: list[Log] = [
    [],
    [(0, 0, 1)],
    [(0, 0, 1), (1, 1, 2), (0, 2, 3)],
    [(0, 0, 1), (1, 0, 2)],
    [(0, 0, 1), (2, 1, 2), (1, 0, 3)],  # with an update everything is lost that's built on it
    [(0, 0, 1), (1, 0, 2), (2, 1, 3)],  # 1 comes back
    [(0, 0, 1), (1, 0, 2), (2, 1, 3), (1, 2, 4), (0, 4, 5), (2, 4, 6)],
    [(0, 0, 1), (1, 1, 2), (2, 0, 3), (0, 1, 4), (1, 3, 5), (1, 5, 6), (2, 3, 7)],
]


def logs(draw: random.Random) -> list[Log]:
    """The fixed ones, and some as racing trainers would leave them, all in the order of writing."""
    return [*LOGS, *(_race(draw, draw.randint(2, 6), draw.randint(5, 80)) for _ in range(6))]


def _race(draw: random.Random, trainers: int, writes: int) -> Log:
    read, log = [0] * trainers, []  # type: ignore[var-annotated]
    while len(log) < writes:
        trainer, slow = draw.randrange(trainers), draw.random() < 0.3
        log.append((trainer, read[trainer], len(log) + 1))
        read[trainer] = len(log)  # it reads its own at once, and again if others write in between
        if not slow:
            other = draw.randrange(trainers)
            read[other] = len(log)
    return log


# 07.4: additions of each of four processes
ADDITIONS = 25
