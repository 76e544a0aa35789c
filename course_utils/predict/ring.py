"""A ring all-reduce, message by message: which chunk each rank sends in each step, and what every rank holds then."""

from __future__ import annotations

from .validation import count

Held = list[list[list[frozenset[int]]]]  # held[step][rank][chunk]: the ranks whose numbers are added up in that chunk


def ring_chunk(n: int, rank: int, step: int) -> int:
    """The chunk that `rank` sends to rank + 1 in `step` (1 to 2 (n-1)). It receives the chunk before that one, modulo
    n.

    In the first n-1 steps, the reduce-scatter, the receiver adds the chunk to its own. After that, in the all-gather,
    the chunk replaces its own. Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009. Raises ValueError for a step
    or a rank that doesn't exist.
    """
    count(n=n)
    if not 0 <= rank < n or not 1 <= step <= 2 * (n - 1):
        raise ValueError(f"{n} ranks go through steps 1 to {2 * (n - 1)}; got rank {rank}, step {step}")
    return (rank - step + 1) % n


def ring_held(n: int) -> Held:
    """What every rank holds before the first of the 2 (n-1) steps, and after each of them: `held[step][rank][chunk]` is
    the set of ranks added up there."""
    count(n=n)
    held: Held = [[[frozenset({rank})] * n for rank in range(n)]]
    for step in range(1, 2 * (n - 1) + 1):
        before = held[-1]
        after = [list(chunks) for chunks in before]
        for rank in range(n):
            chunk, right = ring_chunk(n, rank, step), (rank + 1) % n
            after[right][chunk] = before[rank][chunk] | (before[right][chunk] if step < n else frozenset())
        held.append(after)
    return held
