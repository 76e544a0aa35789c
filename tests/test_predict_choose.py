"""Choosing a strategy, in cases that you can work out by hand."""

from __future__ import annotations

import pytest

from course_utils import predict
from course_utils.predict import Strategy, Training

FREE = predict.Link(0.0, 1e18)
SMALL = Training(1e9, 10, 0.1, 0.2, 10e9, 1e6)


def options(training: Training = SMALL, ranks: int = 4, bandwidth: float = 1e18, **more: float) -> dict[str, Strategy]:
    link = predict.Link(0.0, bandwidth)
    found = predict.strategies(
        training,
        ranks,
        lambda b: predict.ring_all_reduce(ranks, b, link),
        lambda b: predict.all_gather(ranks, b, link),
        link.send_s,
        **more,
    )
    return {o.name: o for o in found}


def test_memory_of_each_strategy() -> None:
    o = options()
    states = {name: s.states.total / 1e9 for name, s in o.items()}
    assert states["DDP"] == states["DDP, recompute"] == 16
    assert states["ZeRO-1"] == 4 + 4 + 2 and states["FSDP, weights kept"] == 4 + 1 + 2
    assert states["FSDP"] == states["pipeline"] == 4
    assert o["FSDP"].gathered_bytes == pytest.approx((8e9 + 4e9) / 10)
    assert o["FSDP, recompute"].activation_bytes == pytest.approx(10e9 * 7 / 10)  # 3 segments of at most 4 layers
    assert o["pipeline"].activation_bytes == pytest.approx(10e9 * 4 / 8)
    assert o["DDP"].memory_bytes == pytest.approx(26e9)


def test_without_a_cost_of_communication_only_recomputation_and_the_bubble_take_time() -> None:
    step = {name: o.step_s for name, o in options().items()}
    assert [step[name] for name in ("DDP", "ZeRO-1", "FSDP, weights kept", "FSDP")] == pytest.approx([0.3] * 4)
    assert [step[name] for name in ("DDP, recompute", "FSDP, recompute")] == pytest.approx([0.4] * 2)
    assert step["pipeline"] == pytest.approx(0.3 * (8 + 3) / 8)


def test_on_a_slow_link_sharding_costs_more_and_the_pipeline_wins() -> None:
    step = {name: o.step_s for name, o in options(bandwidth=1e9).items()}
    assert step["pipeline"] < step["DDP"] < step["FSDP"] <= step["FSDP, recompute"]
    assert step["FSDP"] / step["DDP"] == pytest.approx(
        1.5, rel=0.05
    )  # all is communication, three times the weights against two


def test_one_rank_divides_nothing() -> None:
    o = options(ranks=1)
    assert {s.states.total for s in o.values()} == {16e9}
    assert o["pipeline"].step_s == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("memory", "name"),
    [
        (30e9, "DDP"),
        (24e9, "DDP, recompute"),
        (20.5e9, "ZeRO-1"),
        (18e9, "FSDP, weights kept"),
        (16e9, "FSDP"),
        (13e9, "FSDP, recompute"),
    ],
)
def test_the_simplest_of_the_fastest_that_fit(memory: float, name: str) -> None:
    # Recomputation costs time, so it's only taken when nothing else of the same kind fits.
    o = options()
    order = [o[name]] if name == "DDP, recompute" else [s for s in o.values() if s.name != "pipeline"]
    choice = predict.choose(order, memory)
    assert choice.best is not None and choice.best.name == name and name in choice.reason


def test_none_fits() -> None:
    choice = predict.choose(list(options().values()), 1e9)
    assert choice.best is None and "even pipeline needs" in choice.reason


def test_alike_steps_leave_the_simpler_one() -> None:
    states = predict.zero_memory(1e6, 1, 0)
    a, b = Strategy("a", states, 0, 0, 1.01), Strategy("b", states, 0, 0, 1.0)
    assert predict.choose([a, b], 1e9).best is a
    assert predict.choose([b, Strategy("c", states, 0, 0, 0.9)], 1e9).reason.startswith("c needs")


def test_bad_numbers() -> None:
    with pytest.raises(ValueError, match="params"):
        Training(0, 1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="forward_s"):
        Training(1, 1, -1, 1, 1, 1)
    with pytest.raises(ValueError, match="at least one strategy"):
        predict.choose([], 1)
    with pytest.raises(ValueError, match="memory_bytes"):
        predict.choose(list(options().values()), 0)
