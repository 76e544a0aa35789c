"""A rank that skips a backward: whose gradients were summed with whose, from what the ranks reported."""

from __future__ import annotations

from types import EllipsisType

from course_utils import Run, claim, more_checks
from course_utils.for_lessons import Cell, Table, bet, say

Guess = float | int | str | EllipsisType | None


def show_skipped(run: Run, guess: Guess = ...) -> Table:
    """The sums of both ranks side by side: which step's gradients each of them brought."""
    steps = [_steps(run, rank) for rank in range(run.world_size)]
    stuck = len(run.ranks[0].values("step"))  # rank 0 finished this many steps, and waits in the next
    answer = bet(
        guess,
        float(stuck),
        close="you've met one before.",
        over="There's no such step.",
        under="Rank 1 was one sum behind by then, and nobody could tell: a sum is a sum.",
        within=0.01,
        traps={
            2: "That's where the fault is, and nothing stood still there: the next sum that came was as good as any."
        },
        kind="a number from 0 to 5",
    )
    pairs = list(zip(*steps, strict=False))
    mixed = [pair for pair in pairs if pair[0] != pair[1]]
    say(f"Rank 0 waits in step {stuck}, the last one. {answer} Look at the sums that did end:")
    claim("the ranks summed gradients of different steps, and nothing told you", bool(mixed))
    more_checks({"rank 0 waits in backward": not run.ranks[0].ok and "backward" in (run.ranks[0].stack or "")})
    rows: list[list[str | Cell]] = []
    for i in range(max(map(len, steps))):
        here = [own[i] if i < len(own) else None for own in steps]
        words = ["waits" if step is None else f"step {step}" for step in here]
        same = len(set(here)) == 1
        rows.append(
            [str(i + 1), *words, "" if same else Cell("nobody joins in" if None in here else "mixed", bold=True)]
        )
    return Table(
        ("sum", *(f"rank {rank}" for rank in range(run.world_size)), ""), rows, "r" + "l" * (run.world_size + 1)
    )


def _steps(run: Run, rank: int) -> list[int]:
    """The steps whose gradients a rank has handed to a sum, in their order: those that it finished, and the one that it
    stands in."""
    done = [int(step) for step in run.ranks[rank].values("step")]
    begun = [int(step) for step in run.ranks[rank].values("backward")]
    return begun if len(begun) > len(done) else done
