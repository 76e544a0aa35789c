"""The picture of a copy from pageable and from page-locked memory."""

from __future__ import annotations

import pytest

from course_utils import figures


def test_the_picture_says_both_ways_and_the_rates_that_were_measured() -> None:
    bare = figures.pages()
    assert "staging buffer" in bare.summary and "GB/s" not in bare.summary
    told = figures.pages(pageable_Bps=6.1e9, pinned_Bps=55e9)
    assert "pageable 6.1 GB/s" in told.summary and "pinned 55 GB/s" in told.summary
    drawn = [text.get_text() for text in told.mpl.axes[0].texts]
    assert "6.1 GB/s" in drawn and "55 GB/s" in drawn
    assert len(told.png(dpi=50)) > 1000


def test_no_text_of_the_picture_lies_on_another_or_outside() -> None:
    figure = figures.pages(pageable_Bps=6.1e9, pinned_Bps=55e9)
    figure.mpl.canvas.draw()
    boxes = {text.get_text(): text.get_window_extent() for text in figure.mpl.axes[0].texts if text.get_text()}
    assert len(boxes) > 12
    whole = figure.mpl.bbox
    for name, box in boxes.items():
        assert box.x0 >= whole.x0 and box.x1 <= whole.x1 and box.y0 >= whole.y0 and box.y1 <= whole.y1, name
        assert not [other for other in boxes if other != name and boxes[other].overlaps(box)], name


@pytest.mark.parametrize("rates", [{"pageable_Bps": 0}, {"pinned_Bps": -1.0}])
def test_a_rate_is_above_zero(rates: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        figures.pages(**rates)


def test_rows_of_a_timeline_may_be_the_workers_of_a_loader() -> None:
    spans = [(0, 0.0, 0.4, "waiting", ""), (0, 0.4, 1.0, "compute", "0"), (1, 0.1, 0.4, "loading", "0")]
    figure = figures.rank_timeline(spans, names={0: "the loop", 1: "worker 1"})
    assert [label.get_text() for label in figure.mpl.axes[0].get_yticklabels()] == ["the loop", "worker 1"]
    assert "The loop waits 40% of the time" in figure.summary and "worker 1 loading 30%" in figure.summary and "rank" not in figure.summary


def test_rows_of_who_has_what_may_be_workers() -> None:
    figure = figures.who_has_what([[[0, 1], [0, 1]]], n_samples=2, row="worker")
    assert "ome samples go to two workers" in figure.summary
    assert [label.get_text() for label in figure.mpl.axes[0].get_yticklabels()] == ["worker 0", "worker 1"]
