"""What DataParallel's first device sends, receives and holds."""

from __future__ import annotations

import pytest

from course_utils.predict import data_parallel_memory, data_parallel_traffic, ddp_traffic


def test_copies_count_every_other_device() -> None:
    t = data_parallel_traffic(4, 100.0, input_bytes=8.0, output_bytes=40.0, buffer_bytes=1.0)
    assert t.sent == {"parameters": 300.0, "buffers": 3.0, "inputs": 6.0, "gradients of outputs": 30.0}
    assert t.received == {"gradients of parameters": 300.0, "outputs": 30.0}
    assert t.total_bytes == t.sent_bytes + t.received_bytes == 669.0


def test_frozen_weights_travel_without_a_gradient() -> None:
    t = data_parallel_traffic(3, 100.0, gradient_bytes=10.0)
    assert (t.sent["parameters"], t.received["gradients of parameters"]) == (200.0, 20.0)


def test_outputs_that_are_only_handed_back_have_no_gradient() -> None:
    with_loss_outside, inside = (
        data_parallel_traffic(2, 100.0, output_bytes=40.0, output_gradients=g) for g in (True, False)
    )
    assert (with_loss_outside.sent_bytes, inside.sent_bytes) == (120.0, 100.0)
    assert with_loss_outside.received == inside.received


def test_a_ring_passes_the_first_device_once_whatever_n() -> None:
    assert [data_parallel_traffic(n, 100.0, by="ring").total_bytes for n in (1, 2, 8)] == [0.0, 200.0, 200.0]


def test_on_two_devices_data_parallel_moves_the_weights_as_often_as_ddp_and_on_more_it_grows() -> None:
    assert data_parallel_traffic(2, 100.0).total_bytes == ddp_traffic(2, 100.0).total_bytes == 200.0
    assert data_parallel_traffic(8, 100.0).total_bytes == 1400.0
    assert ddp_traffic(8, 100.0).total_bytes == pytest.approx(350.0)
    assert ddp_traffic(1, 100.0).total_bytes == data_parallel_traffic(1, 100.0, 5.0, 5.0).total_bytes == 0.0


def test_only_the_first_device_has_the_optimizer_and_the_outputs() -> None:
    first, other = data_parallel_memory(4, 100.0, 80.0, 30.0, at="forward")
    assert other == {"parameters": 100.0, "activations": 20.0}
    assert sum(first.values()) - sum(other.values()) == 200.0 + 60.0


def test_activations_are_gone_when_all_gradients_are_there() -> None:
    first, other = data_parallel_memory(4, 100.0, 80.0, 30.0, at="backward")
    assert other == {"parameters": 100.0, "gradients": 100.0}
    assert first == other | {"optimizer": 200.0}
    with pytest.raises(ValueError, match="at must be"):
        data_parallel_memory(4, 100.0, 80.0, 30.0, at="step")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"n": 0}, "n must be a whole number"),
        ({"parameter_bytes": -1.0}, "parameter_bytes"),
        ({"by": "tree"}, "by must be"),
    ],
)
def test_bad_arguments_are_named(bad: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        data_parallel_traffic(**{"n": 2, "parameter_bytes": 1.0, **bad})  # type: ignore[arg-type]
