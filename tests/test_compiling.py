"""When compiling pays: the model, and the measured crossing."""

from __future__ import annotations

import math

import pytest

from course_utils.predict import BreakEven, crossing


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
    assert crossing([(10, 1.0), (20, 2.0), (30, 3.0)], [(10, 1.5), (20, 1.9), (30, 3.2)]) == pytest.approx(
        10 + 10 * 0.5 / 0.6
    )


@pytest.mark.parametrize("wrong", [[], [(0.0, 0.0)], [(5, 1.0), (5, 2.0)], [(5, 1.0), (3, 2.0)]])
def test_curves_rise_in_calls(wrong):
    with pytest.raises(ValueError, match="rising numbers of calls"):
        crossing([(1, 1.0)], wrong)
