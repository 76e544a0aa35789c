"""When compiling pays: the model, the measured crossing, and the two figures that lesson 01 draws."""

from __future__ import annotations

import math

import pytest

from course_utils import figures
from course_utils.predict import BreakEven, crossing
from course_utils.run import Samples


def curve(once_s: float, each_s: float, calls: range) -> list[tuple[float, float]]:
    return [(n, once_s + n * each_s) for n in calls]


def test_break_even_is_where_both_have_taken_equally_long():
    model = BreakEven(once_s=2.0, before_s=0.010, after_s=0.006)
    assert model.calls == pytest.approx(500)
    assert model.before(500) == pytest.approx(model.after(500)) == pytest.approx(5.0)
    assert model.after(0) == 2.0


@pytest.mark.parametrize("after_s", [0.010, 0.011])
def test_what_saves_nothing_is_never_paid_back(after_s):
    assert BreakEven(once_s=2.0, before_s=0.010, after_s=after_s).calls == math.inf


@pytest.mark.parametrize("wrong", [{"once_s": -1.0}, {"before_s": 0.0}, {"after_s": float("nan")}])
def test_times_that_cannot_be_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BreakEven(**({"once_s": 1.0, "before_s": 0.1, "after_s": 0.05} | wrong))


@pytest.mark.parametrize("stride", [1, 7, 50])
def test_the_measured_crossing_of_straight_lines_is_the_model_whatever_points_were_taken(stride):
    before, after = curve(0.0, 0.010, range(1, 1001, stride)), curve(2.0, 0.006, range(1, 1001, 13))
    assert crossing(before, after) == pytest.approx(500, rel=1e-6)


def test_a_crossing_that_lies_beyond_either_curve_is_not_invented():
    assert crossing(curve(0.0, 0.010, range(1, 400)), curve(2.0, 0.006, range(1, 1000))) == math.inf
    assert crossing(curve(0.0, 0.010, range(1, 1000)), curve(2.0, 0.006, range(1, 400))) == math.inf
    assert crossing([(1, 0.5), (10, 5.0)], [(1, 0.1), (10, 1.0)]) == 1, "ahead from the first call on"


def test_the_first_time_below_counts_when_curves_touch_again():
    assert crossing([(10, 1.0), (20, 2.0), (30, 3.0)], [(10, 1.5), (20, 1.9), (30, 3.2)]) == pytest.approx(10 + 10 * 0.5 / 0.6)


@pytest.mark.parametrize("wrong", [[], [(0.0, 0.0)], [(5, 1.0), (5, 2.0)], [(5, 1.0), (3, 2.0)]])
def test_curves_rise_in_calls(wrong):
    with pytest.raises(ValueError, match="rising numbers of calls"):
        crossing([(1, 1.0)], wrong)


def test_the_break_even_figure_tells_what_it_draws():
    model = BreakEven(once_s=2.2, before_s=0.010, after_s=0.006)
    after = [curve(once, 0.006, range(1, 1001, 20)) for once in (1.9, 2.0, 2.1)]
    figure = figures.break_even(curve(0.0, 0.010, range(1, 1001, 20)), after, model, guess=300)
    assert "after 500 calls; the model said 550" in figure.mpl.get_suptitle().replace("\n", " ")
    assert "paid back after 475, 500 and 525 calls" in figure.summary
    assert "predicted 550" in figure.summary and "guessed 300" in figure.summary
    labels = [text.get_text() for text in figure.mpl.axes[0].get_legend().get_texts()]
    assert labels == ["measured: eager", "measured: compiled, 3 repeats", "predicted", "your guess"]


def test_the_break_even_figure_says_when_it_was_not_reached_and_no_guess_made():
    figure = figures.break_even(curve(0.0, 0.010, range(1, 100)), [curve(2.0, 0.006, range(1, 100))], guess=...)
    assert figure.mpl.get_suptitle() == "Within 99 calls compiled has not caught up with eager"
    assert figure.summary.endswith("No guess was made.") and "paid back" not in figure.summary


def test_a_guess_far_out_is_told_and_does_not_squeeze_the_figure():
    figure = figures.break_even(curve(0.0, 0.010, range(1, 1001, 20)), [curve(2.0, 0.006, range(1, 1001, 20))], guess=50_000)
    ax = figure.mpl.axes[0]
    assert ax.get_xlim()[1] < 1100 and "guessed 50,000" in figure.summary
    assert "your guess: 50,000 →" in [text.get_text() for text in ax.texts]
    assert "your guess" not in [text.get_text() for text in ax.get_legend().get_texts()]


def test_ratios_lie_on_a_logarithmic_axis_and_are_counted_by_their_quartiles():
    values = {
        "dead code": {"script": Samples([9.8, 10.0, 10.2]), "compile": Samples([4.0])},
        "noise": {"script": Samples([0.9, 1.0, 1.1])},
        "integers": {"script": Samples([0.30, 0.31, 0.32])},
    }
    figure = figures.ratios(values, guess={"dead code": 3, "integers": ...})
    assert figure.mpl.axes[0].get_xscale() == "log"
    assert figure.mpl.get_suptitle() == "Script: 1 of 3 became faster, 1 slower"
    assert "dead code: script 10, compile 4, guessed 3" in figure.summary and "integers: script 0.31" in figure.summary
    assert [t.get_text() for t in figure.mpl.axes[0].get_yticklabels()] == list(values)


def test_ratios_refuse_what_they_cannot_draw():
    with pytest.raises(ValueError, match="at least one case"):
        figures.ratios({})
    with pytest.raises(ValueError, match="above zero"):
        figures.ratios({"x": {"script": 0.0}})
    with pytest.raises(KeyError, match="does not show"):
        figures.ratios({"x": {"script": 2.0}}, guess={"y": 1})
