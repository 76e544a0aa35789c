"""Lesson 07, exercise 2: a server as it should be, without weights: who is answered when, and how old gradients are."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Said:
    """What a call leads to: which reads it answers, and with which version; after an update also its age."""

    answers: dict[int, int] = field(default_factory=dict)
    age: int | None = None


class Bounded:
    """No trainer that has made over `ahead` updates more than the slowest gets an answer to its read.

    A trainer that has left isn't in `made`; one that waits for an answer is in `waiting`, with the version at which it
    asked; one that computes is in `read_at`.
    """

    def __init__(self, trainers: int, ahead: int):
        self.ahead, self.version = ahead, 0
        self.made = dict.fromkeys(range(trainers), 0)
        self.waiting: dict[int, int] = {}
        self.read_at: dict[int, int] = {}

    def call(self, call: str) -> Said:
        """One call, "r0", "u0" or "l0": trainer 0 reads, updates, or leaves."""
        kind, trainer, said = call[0], int(call[1:]), Said()
        if kind == "r":
            self.waiting[trainer] = self.version
        elif kind == "u":
            said.age = self.version - self.read_at.pop(trainer)
            self.version += 1
            self.made[trainer] += 1
        else:
            del self.made[trainer]
        for other in [t for t in self.waiting if self.lead(t) <= self.ahead]:
            del self.waiting[other]
            self.read_at[other] = said.answers[other] = self.version
        return said

    def lead(self, trainer: int) -> int:
        """How many updates a trainer has made more than the slowest that hasn't left."""
        return self.made[trainer] - min(self.made.values())
