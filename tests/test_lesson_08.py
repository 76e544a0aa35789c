"""Lesson 08: number formats and the figures about them: what a format holds, speed-ups in brackets, magnitudes in a
histogram, the life of a loss scale."""

import pytest
import torch

import lesson_08
from course_utils.predict import Bracket
from course_utils.predict.number_formats import FORMATS, Format
from course_utils.provenance import Provenance
from course_utils.samples import Samples
from lesson_08 import lost_shares

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8 e5m2": torch.float8_e5m2,
    "fp8 e4m3": torch.float8_e4m3fn,
}


@pytest.mark.parametrize("name", TORCH)
def test_bits_give_what_torch_says(name):
    info, counted = torch.finfo(TORCH[name]), FORMATS[name]
    assert (counted.bits, counted.max, counted.eps, counted.smallest_normal) == (
        info.bits,
        info.max,
        info.eps,
        info.smallest_normal,
    )
    kept = (
        torch.tensor([counted.smallest, counted.smallest * 0.49], dtype=torch.float64).float().to(TORCH[name]).double()
    )
    assert kept[0] == counted.smallest or name == "fp32", "it is a number of the format"
    assert kept[1] == 0


def test_tf32_has_the_range_of_fp32_and_the_precision_of_fp16():
    assert FORMATS["TF32"].eps == FORMATS["fp16"].eps
    assert FORMATS["TF32"].smallest_normal == FORMATS["fp32"].smallest_normal
    assert FORMATS["TF32"].bits == 19


@pytest.mark.parametrize(("exponent", "mantissa"), [(1, 3), (0, 3), (4, 0)])
def test_a_format_needs_bits(exponent, mantissa):
    with pytest.raises(ValueError, match="above zero|positive|mantissa|exponent"):
        Format("none", exponent, mantissa)


def test_brackets_count_what_lies_inside_and_name_sources():
    published = Samples([2.63], "ratio", Provenance("published", "an A100"))
    figure = lesson_08.brackets(
        {"MLP": Bracket(1.5, 3.0), "CNN": Bracket(2.0, 2.0)}, {"MLP": 2.0, "CNN": published}, guess={"MLP": 4.0}
    )
    assert figure.mpl.get_suptitle() == "1 of 2 speed-ups lie in their bracket"
    assert "MLP: 2, predicted 1.5 to 3, guessed 4" in figure.summary and "CNN: 2.63, predicted 2 to 2" in figure.summary
    assert figure.sources == ["CNN: an A100"]
    labels = figure.mpl.axes[0].get_legend_handles_labels()[1]
    assert sorted(labels) == ["measured", "predicted bracket", "published on an A100", "your guess"]


def test_brackets_need_what_they_compare():
    with pytest.raises(ValueError, match="at least one"):
        lesson_08.brackets({}, {})
    with pytest.raises(KeyError):
        lesson_08.brackets({"MLP": Bracket(1.0, 2.0)}, {})
    assert (
        "No guess was made." in lesson_08.brackets({"MLP": Bracket(1.0, 2.0)}, {"MLP": 1.5}, guess={"MLP": ...}).summary
    )


def test_a_histogram_tells_what_a_format_loses():
    fp16 = FORMATS["fp16"]
    counts = {-30: 1, -20: 2, 0: 1, 17: 4}
    assert lost_shares(counts, fp16) == (1 / 8, 4 / 8)
    figure = lesson_08.histogram({"as they are": counts, "times 2^10": {e + 10: n for e, n in counts.items()}}, fp16)
    assert "as they are: 12.50% become 0, 50.00% overflow" in figure.summary
    assert "times 2^10: 0.00% become 0, 50.00% overflow" in figure.summary
    for bad in ({}, {"empty": {}}, {"zero": {3: 0}}):
        with pytest.raises(ValueError, match="at least one row"):
            lesson_08.histogram(bad, fp16)


def test_the_edges_of_the_histogram_are_where_torch_rounds_to_zero_and_to_infinity():
    fp16 = FORMATS["fp16"]
    for e in range(-30, 20):
        half = torch.tensor(2.0 ** (e + 0.5)).half()
        assert lost_shares({e: 1}, fp16) == (float(half == 0), float(half.isinf())), e


def test_the_life_of_a_scale_names_the_skipped_steps():
    figure = lesson_08.loss_scale([4, 8, 4, 4], [False, True, False, False])
    assert figure.mpl.get_suptitle() == "1 of 4 steps skipped"
    assert figure.summary == "The loss scale goes from 4 to 4, at most 8. Skipped steps: 1."
    assert "none" in lesson_08.loss_scale([1.0], [False]).summary
    for scales, skipped in (([], []), ([1.0], [])):
        with pytest.raises(ValueError, match="as many marks as scales"):
            lesson_08.loss_scale(scales, skipped)
