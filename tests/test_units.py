"""Numbers are written for people."""

import pytest

from course_utils.results.samples import Samples
from course_utils.show import units


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("step_s", [0.0046, 0.0047, 0.0048], "4.7 (4.65 to 4.75) ms"),
        ("double_s", [9.3e-7, 9.5e-7, 9.7e-7], "0.95 (0.94 to 0.96) µs"),
        ("images_per_s", [2150.0, 2180.0, 2190.0], "2,180 (2,160 to 2,180) images/s"),
        ("copy_Bps", [5.5e10], "55 (55 to 55) GB/s"),
        ("saved_bytes", [3 * 2**20], "3 (3 to 3) MiB"),
        ("loss", [1.25], "1.25 (1.25 to 1.25)"),
    ],
)
def test_a_comparison_reads_in_units(name: str, values: list[float], shown: str) -> None:
    samples = Samples(values, name)
    assert samples.not_slower_than(samples).detail == f"{shown} against {shown}"
    assert repr(samples) == f"<{name}: {shown}, {len(values)} values, measured>"


def test_an_expected_value_has_the_unit_of_the_samples() -> None:
    assert (
        Samples([0.010, 0.011, 0.012], "step_s").near(0.0105, within=0.1).detail
        == "11 (10.5 to 11.5) ms against 10.5 ms, 5% apart"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1,230"), (0.04628, "0.0463"), (1e-5, "1.00e-05"), (float("inf"), "inf"), (100, "100")],
)
def test_three_digits(value: float, text: str) -> None:
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("s", 1.0, "1 s"), ("s", 0.999, "999 ms"), ("s", 1e-3, "1 ms"), ("s", 0.00099, "990 µs"),
        ("s", -0.5, "-500 ms"),
        ("bytes", 1023, "1,020 bytes"), ("bytes", 1024, "1 KiB"), ("bytes", 2**20, "1 MiB"),
        ("bytes", 1.5 * 2**30, "1.5 GiB"),
        ("B/s", 999, "0.999 kB/s"), ("B/s", 1e6, "1 MB/s"), ("B/s", 9.9e8, "990 MB/s"), ("B/s", 1e9, "1 GB/s"),
        ("images/s", 0.5, "0.5 images/s"), ("", 2.0, "2"),
    ],
)  # fmt: skip
def test_a_value_takes_the_unit_in_which_it_is_at_least_one(unit: str, value: float, text: str) -> None:
    assert units.readable(unit, value) == text
