"""Lesson 05: its figures of a ring all-reduce and of collectives say what is drawn."""

from __future__ import annotations

import pytest

import lesson_05
from course_utils import predict
from course_utils.figures import Figure


def texts(figure: Figure) -> list[list[str]]:
    """What is written in the cells of each panel."""
    return [[text.get_text() for text in ax.texts] for ax in figure.mpl.axes]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_figure_has_a_panel_for_each_step_and_frames_what_came(n: int) -> None:
    figure = lesson_05.ring(predict.ring_held(n))
    drawn = [ax for ax in figure.mpl.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in drawn] == [
        "before",
        *(f"step {i}: {'add' if i < n else 'copy'}" for i in range(1, 2 * n - 1)),
    ]
    frames = [sum(patch.get_facecolor()[3] == 0 for patch in ax.patches) for ax in drawn]
    assert frames == [0, *[n] * (2 * (n - 1))]
    assert f"{n - 1} step" in figure.summary and "every rank holds the whole sum" in figure.summary
    assert len(figure.png(dpi=50)) > 1000


def test_cells_name_the_ranks_where_there_is_room_and_count_them_otherwise() -> None:
    assert set(sum(texts(lesson_05.ring(predict.ring_held(2))), [])) == {"0", "1", "0+1"}
    assert "all" in texts(lesson_05.ring(predict.ring_held(4)))[-2] and "0+1\n+2" in sum(
        texts(lesson_05.ring(predict.ring_held(4))), []
    )
    assert set(sum(texts(lesson_05.ring(predict.ring_held(8))), [])) == {str(k) for k in range(1, 9)}


def test_a_ring_that_stops_early_is_said_to_be_incomplete() -> None:
    assert "not every rank holds the whole sum" in lesson_05.ring(predict.ring_held(4)[:4]).summary


def test_ranks_that_differ_from_step_to_step_are_refused() -> None:
    held = predict.ring_held(3)
    with pytest.raises(ValueError, match="same ranks and chunks"):
        lesson_05.ring([*held, predict.ring_held(2)[0]])
    with pytest.raises(ValueError, match="same ranks and chunks"):
        lesson_05.ring([])


def test_collectives_show_both_sides_and_frame_what_changed() -> None:
    figure = lesson_05.collectives(
        {"broadcast": ([[1], [2]], [[1], [1]]), "all_gather": ([[1], [2]], [[1, 2], [1, 2]])}
    )
    first, second = figure.mpl.axes[:2]
    assert [t.get_text() for t in first.texts if t.get_text()] == ["1", "1", "2", "1"]
    assert sum(patch.get_facecolor()[3] == 0 for patch in first.patches) == 1, (
        "only rank 1 holds something else than before"
    )
    assert sum(patch.get_facecolor()[3] == 0 for patch in second.patches) == 4
    assert "rank 1 [2] becomes [1, 2]" in figure.summary


def test_collectives_without_an_exchange_or_with_missing_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        lesson_05.collectives({})
    with pytest.raises(ValueError, match="2 ranks before and 1 after"):
        lesson_05.collectives({"reduce": ([[1], [2]], [[3]])})
