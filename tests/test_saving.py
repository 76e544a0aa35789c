"""How often to save, what recomputing in segments holds, and the figure of many kills."""

from __future__ import annotations

import pytest

from course_utils import figures, predict


def test_the_interval_loses_less_than_its_neighbours_and_saving_and_repeating_cost_the_same_there():
    best = predict.save_interval(60, 11_135)
    lost = predict.lost_share(best, 60, 11_135)
    assert lost < predict.lost_share(0.9 * best, 60, 11_135) and lost < predict.lost_share(1.1 * best, 60, 11_135)
    assert 60 / best == pytest.approx(best / 2 / 11_135)
    assert predict.lost_share(2 * best, 60, 11_135) == pytest.approx(1.25 * lost)


def test_a_restart_adds_to_every_interval_and_nothing_loses_more_than_all():
    assert predict.lost_share(100, 1, 10_000, restart_s=50) == pytest.approx(predict.lost_share(100, 1, 10_000) + 50 / 10_000)
    assert predict.lost_share(1, 60, 600) == 1


@pytest.mark.parametrize("bad", [{"save_s": 0.0}, {"failure_s": -1.0}, {"save_s": float("nan")}])
def test_a_bad_number_is_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        predict.save_interval(**({"save_s": 1.0, "failure_s": 1.0} | bad))


def test_a_chain_of_layers_that_keep_more_than_their_input_wants_more_segments():
    as_published = [predict.checkpoint_chain(64, k).held for k in range(1, 65)]
    assert as_published == [predict.checkpoint_chain(64, k, input_share=1.0).held for k in range(1, 65)]
    assert 1 + as_published.index(min(as_published)) == 8  # the square root
    held = [predict.checkpoint_chain(64, k, input_share=1 / 16).held for k in range(1, 65)]
    assert 1 + held.index(min(held)) == 32
    with pytest.raises(ValueError, match="input_share"):
        predict.checkpoint_chain(8, 8, input_share=0)


KILLS = {"in place": [(0.001, "old"), (0.004, "neither"), (0.009, "new"), (0.006, "neither")], "renamed": [(0.003, "old"), (0.008, "new")]}


def test_each_kill_is_a_mark_in_the_lane_of_its_outcome_and_the_text_counts_them():
    figure = figures.outcomes(KILLS, xlabel="killed after")
    assert "in place: 1 old, 1 new and 2 neither" in figure.summary.replace("In place", "in place")
    assert "renamed: 1 old, 1 new and 0 neither" in figure.summary
    first, second = figure.mpl.axes
    marks = {label.get_text(): line.get_xdata() for label, line in zip(first.get_yticklabels(), first.lines, strict=True)}
    assert list(marks["neither (2)"]) == pytest.approx([4, 6])  # ms
    assert second.get_xlabel() == "killed after (ms)"
    markers = [(line.get_marker(), line.get_markerfacecolor()) for line in first.lines]
    assert len(set(markers)) == 3


def test_marks_of_a_later_way_are_inside_the_picture():
    figure = figures.outcomes({"soon": [(0.001, "neither")], "late": [(0.5, "new")]}, xlabel="killed after")
    for ax in figure.mpl.axes:
        assert ax.get_xlim()[0] == 0 and ax.get_xlim()[1] > 500  # ms


def test_an_outcome_keeps_its_mark_where_others_are_missing():
    alone = figures.outcomes({"renamed": [(0.1, "new")]}, xlabel="after")
    both = figures.outcomes(KILLS, xlabel="after")
    assert alone.mpl.axes[0].lines[0].get_markerfacecolor() == both.mpl.axes[0].lines[1].get_markerfacecolor()


@pytest.mark.parametrize("ways", [{}, {"a": []}, {"a": [(0.1, w) for w in "abcde"]}])
def test_what_cannot_be_drawn_is_refused(ways):
    with pytest.raises(ValueError):
        figures.outcomes(ways, xlabel="after")
