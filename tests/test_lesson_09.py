"""Lesson 09: the figure of many kills."""

import pytest

import lesson_09

KILLS = {
    "in place": [(0.001, "old"), (0.004, "neither"), (0.009, "new"), (0.006, "neither")],
    "renamed": [(0.003, "old"), (0.008, "new")],
}


def test_each_kill_is_a_mark_in_the_lane_of_its_outcome_and_the_text_counts_them():
    figure = lesson_09.outcomes(KILLS, xlabel="killed after")
    assert "in place: 1 old, 1 new and 2 neither" in figure.summary.replace("In place", "in place")
    assert "renamed: 1 old, 1 new and 0 neither" in figure.summary
    first, second = figure.mpl.axes
    marks = {
        label.get_text(): line.get_xdata() for label, line in zip(first.get_yticklabels(), first.lines, strict=True)
    }
    assert list(marks["neither (2)"]) == pytest.approx([4, 6])  # ms
    assert second.get_xlabel() == "killed after (ms)"
    markers = [(line.get_marker(), line.get_markerfacecolor()) for line in first.lines]
    assert len(set(markers)) == 3


def test_marks_of_a_later_way_are_inside_the_picture():
    figure = lesson_09.outcomes({"soon": [(0.001, "neither")], "late": [(0.5, "new")]}, xlabel="killed after")
    for ax in figure.mpl.axes:
        assert ax.get_xlim()[0] == 0 and ax.get_xlim()[1] > 500  # ms


def test_an_outcome_keeps_its_mark_where_others_are_missing():
    alone = lesson_09.outcomes({"renamed": [(0.1, "new")]}, xlabel="after")
    both = lesson_09.outcomes(KILLS, xlabel="after")
    assert alone.mpl.axes[0].lines[0].get_markerfacecolor() == both.mpl.axes[0].lines[1].get_markerfacecolor()


@pytest.mark.parametrize("ways", [{}, {"a": []}, {"a": [(0.1, w) for w in "abcde"]}])
def test_what_cannot_be_drawn_is_refused(ways):
    with pytest.raises(ValueError):
        lesson_09.outcomes(ways, xlabel="after")
