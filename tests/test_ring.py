"""The ring of the cost model: every chunk goes where it must."""

from __future__ import annotations

import pytest

from course_utils import predict


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_after_all_steps_every_rank_holds_every_sum(n: int) -> None:
    held = predict.ring_held(n)
    assert len(held) == 2 * (n - 1) + 1
    assert held[0] == [[frozenset({rank})] * n for rank in range(n)]
    assert held[-1] == [[frozenset(range(n))] * n for _ in range(n)]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_each_step_changes_one_chunk_on_each_rank_and_each_phase_does_its_part(n: int) -> None:
    held = predict.ring_held(n)
    for before, after in zip(held, held[1:], strict=False):
        assert [sum(a != b for a, b in zip(x, y, strict=True)) for x, y in zip(before, after, strict=True)] == [1] * n
    complete = [sum(len(chunk) == n for rank in step for chunk in rank) for step in held]
    assert complete[: n - 1] == [0] * (n - 1), "nothing is complete before the end of the adding"
    assert complete[n - 1 :] == [n * (k + 1) for k in range(n)], "then each step completes one chunk on every rank"


def test_no_rank_sends_a_chunk_that_it_has_not_received_in_the_step_before() -> None:
    n = 5
    for step in range(2, 2 * (n - 1) + 1):
        for rank in range(n):
            assert predict.ring_chunk(n, rank, step) == predict.ring_chunk(n, (rank - 1) % n, step - 1)


def test_every_rank_begins_with_the_chunk_of_its_own_number() -> None:
    assert [predict.ring_chunk(4, rank, 1) for rank in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(("rank", "step"), [(-1, 1), (4, 1), (0, 0), (0, 7)])
def test_a_rank_or_step_that_is_not_there(rank: int, step: int) -> None:
    with pytest.raises(ValueError, match="steps 1 to 6"):
        predict.ring_chunk(4, rank, step)
