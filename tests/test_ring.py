"""The ring of the cost model and its figure: every chunk goes where it must, and the figure says what is drawn."""

from __future__ import annotations

import pytest

from course_utils import figures, predict


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


def texts(figure: figures.Figure) -> list[list[str]]:
    """What is written in the cells of each panel."""
    return [[text.get_text() for text in ax.texts] for ax in figure.mpl.axes]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_figure_has_a_panel_for_each_step_and_frames_what_came(n: int) -> None:
    figure = figures.ring(predict.ring_held(n))
    drawn = [ax for ax in figure.mpl.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in drawn] == ["before", *(f"step {i}: {'add' if i < n else 'copy'}" for i in range(1, 2 * n - 1))]
    frames = [sum(patch.get_facecolor()[3] == 0 for patch in ax.patches) for ax in drawn]
    assert frames == [0, *[n] * (2 * (n - 1))]
    assert f"{n - 1} step" in figure.summary and "every rank holds the whole sum" in figure.summary
    assert len(figure.png(dpi=50)) > 1000


def test_cells_name_the_ranks_where_there_is_room_and_count_them_otherwise() -> None:
    assert set(sum(texts(figures.ring(predict.ring_held(2))), [])) == {"0", "1", "0+1"}
    assert "all" in texts(figures.ring(predict.ring_held(4)))[-2] and "0+1\n+2" in sum(texts(figures.ring(predict.ring_held(4))), [])
    assert set(sum(texts(figures.ring(predict.ring_held(8))), [])) == {str(k) for k in range(1, 9)}


def test_a_ring_that_stops_early_is_said_to_be_incomplete() -> None:
    assert "not every rank holds the whole sum" in figures.ring(predict.ring_held(4)[:4]).summary


def test_ranks_that_differ_from_step_to_step_are_refused() -> None:
    held = predict.ring_held(3)
    with pytest.raises(ValueError, match="same ranks and chunks"):
        figures.ring([*held, predict.ring_held(2)[0]])
    with pytest.raises(ValueError, match="same ranks and chunks"):
        figures.ring([])


def test_collectives_show_both_sides_and_frame_what_changed() -> None:
    figure = figures.collectives({"broadcast": ([[1], [2]], [[1], [1]]), "all_gather": ([[1], [2]], [[1, 2], [1, 2]])})
    first, second = figure.mpl.axes[:2]
    assert [t.get_text() for t in first.texts if t.get_text()] == ["1", "1", "2", "1"]
    assert sum(patch.get_facecolor()[3] == 0 for patch in first.patches) == 1, "only rank 1 holds something else than before"
    assert sum(patch.get_facecolor()[3] == 0 for patch in second.patches) == 4
    assert "rank 1 [2] becomes [1, 2]" in figure.summary


def test_collectives_without_an_exchange_or_with_missing_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        figures.collectives({})
    with pytest.raises(ValueError, match="2 ranks before and 1 after"):
        figures.collectives({"reduce": ([[1], [2]], [[3]])})
