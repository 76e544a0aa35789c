"""Lesson 07, exercise 3: what a log of reads and writes says about lost updates, and what one may think it says."""

from __future__ import annotations

from .cases import Log


def contents(log: Log) -> list[set[int]]:
    """The updates that are in each version, from 0 on: whoever writes puts down what it read, and its own update."""
    held: list[set[int]] = [set()]
    for _, read, wrote in sorted(log, key=lambda line: line[2]):
        held.append(held[read] | {wrote})
    return held


def lost(log: Log) -> dict[int, int]:
    """The updates that the last version lacks, and the trainer whose write took each out for good."""
    held, trainers = contents(log), {wrote: trainer for trainer, _, wrote in log}
    return {
        update: trainers[max(version for version, there in enumerate(held) if update in there) + 1]
        for update in range(1, len(held))
        if update not in held[-1]
    }


def first_time(log: Log) -> dict[int, int]:
    """The same updates, and the trainer that was the first to take each out: it may have come back."""
    held, trainers = contents(log), {wrote: trainer for trainer, _, wrote in log}
    return {
        update: trainers[next(version for version in range(update, len(held)) if update not in held[version])]
        for update in lost(log)
    }


def overwritten_once(log: Log) -> set[int]:
    """Updates that some version after them lacks."""
    held = contents(log)
    return {update for update in range(1, len(held)) if any(update not in there for there in held[update:])}


def unread(log: Log) -> set[int]:
    """Updates that nobody built on, but for the last."""
    return {wrote for *_, wrote in log} - {read for _, read, _ in log} - {len(log)}


def old(log: Log) -> set[int]:
    """Updates that didn't read the version before them: they overwrote something."""
    return {wrote for _, read, wrote in log if read != wrote - 1}
