"""The model of remote calls and of a parameter server, compared with limits that you can work out by hand."""

from __future__ import annotations

import pytest

from course_utils import predict


def test_calls_one_after_the_other_and_at_once() -> None:
    assert predict.sync_calls(6, 0.1, 0.01) == pytest.approx(0.66)
    assert predict.async_calls(6, 0.1, 0.01, workers=3) == pytest.approx(0.11)
    assert predict.async_calls(6, 0.1, workers=3, threads=1) == pytest.approx(0.2)
    assert predict.async_calls(7, 0.1, workers=3, threads=1) == pytest.approx(0.3)


def test_a_latency_that_is_not_given_is_none() -> None:
    assert predict.sync_calls(6, 0.1) == pytest.approx(0.6) and predict.async_calls(6, 0.1, workers=3) == pytest.approx(
        0.1
    )


def test_one_trainer_makes_an_update_a_round() -> None:
    run = predict.parameter_server([8e-3], call_s=1e-3, serve_s=2e-3, updates=10)
    assert run.updates_per_s == pytest.approx(1 / 11e-3, rel=1e-9)
    assert run.staleness == (0,) * 9 and run.busy == pytest.approx(2 / 11, rel=1e-9)


def test_the_faster_of_two_trainers_comes_first_and_the_slower_is_two_behind() -> None:
    run = predict.parameter_server([2e-3, 5.1e-3], call_s=1e-3, updates=20)
    assert run.trainer[:4] == (1, 0, 0, 1), "after the first two, which are left out"
    assert run.of(1)[:2] == (2, 2)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_equal_trainers_reach_the_bound_of_the_queue(n: int) -> None:
    run = predict.parameter_server([8e-3] * n, call_s=1e-3, serve_s=2e-3)
    assert run.updates_per_s == pytest.approx(min(n / 11e-3, 1 / 2e-3), rel=0.02)
    assert set(run.staleness) == {n - 1}
    assert run.busy == pytest.approx(min(1.0, n * 2 / 11), rel=0.02)


def test_a_server_that_takes_no_time_never_saturates() -> None:
    assert predict.parameter_server([8e-3] * 64, call_s=1e-3, updates=2000).updates_per_s == pytest.approx(
        64 / 9e-3, rel=0.05
    )


def test_a_slow_trainer_holds_nobody_up_and_its_gradients_are_old() -> None:
    run = predict.parameter_server([8e-3] * 3 + [32e-3], call_s=1e-3, updates=800)
    assert run.updates_per_s == pytest.approx(3 / 9e-3 + 1 / 33e-3, rel=0.02)
    slow, fast = (sum(run.of(i)) / len(run.of(i)) for i in (3, 0))
    assert slow == pytest.approx(3 * 33 / 9, rel=0.1) and fast < 3
    assert sum(run.staleness) / len(run.staleness) == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize("staleness", [0, 1, 3, 7])
def test_above_the_largest_rate_stale_gradients_diverge(staleness: int) -> None:
    limit = predict.largest_rate(staleness)
    below, above = (max(map(abs, predict.delayed_sgd(limit * f, staleness, 3000)[-50:])) for f in (0.97, 1.03))
    assert below < 1e-2 and above > 1e2


def test_the_largest_rates_that_are_known_by_hand() -> None:
    assert [predict.largest_rate(s) for s in (0, 1)] == pytest.approx([2.0, 1.0])
    assert predict.delayed_sgd(1.0, 0, 3) == [1.0, 0.0, 0.0, 0.0]
    assert predict.delayed_sgd(0.5, 1, 3) == [1.0, 0.5, 0.0, -0.25]


@pytest.mark.parametrize(
    "call",
    [
        lambda: predict.parameter_server([], call_s=1e-3),
        lambda: predict.parameter_server([8e-3] * 4, call_s=1e-3, updates=4),
        lambda: predict.parameter_server([8e-3], call_s=0.0),
        lambda: predict.parameter_server([-1.0], call_s=1e-3),
        lambda: predict.async_calls(3, 0.1, workers=0),
        lambda: predict.largest_rate(-1),
        lambda: predict.delayed_sgd(0.0, 1, 10),
    ],
)
def test_wrong_arguments_are_named(call: object) -> None:
    with pytest.raises(ValueError):
        call()  # type: ignore[operator]
