"""Explorers of lessons 04, 07, 08 and 09: what they say follows from the recordings, from torch and from the papers."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from conftest import ROOT, load_tool
from test_explore import Widgets

from course_utils import explore, predict, recorded
from course_utils.explore import accuracy_time, gradient_scale, save_interval, segment_memory, trainer_ages
from course_utils.explore.number_bits import STORED

NAMES = ("04_time_to_accuracy", "07_staleness", "08_gradients")


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_whole_and_says_of_which_commit_it_is(name: str) -> None:
    tool = load_tool("record_explorers")
    (path,) = recorded.FOLDER.glob(f"{name}.*.json")
    assert load_tool("record").faults(path) == []
    (sweep,) = recorded.sweeps(name)
    program, grid = tool.GRIDS[name]
    assert sweep.runs[0][0].provenance.versions["course"].isalnum(), "recorded with programs of a commit"
    seeds = {point.get("seed", 0) for point in sweep.points}
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    assert sweep.points == [point for point in combinations if point.get("seed", 0) in seeds], "whole rounds of seeds"
    assert (ROOT / "course_utils" / "explore" / "programs" / program).is_file()


def test_images_until_an_accuracy_are_read_off_between_two_tests() -> None:
    assert accuracy_time.crossing([(500, 0.2), (1000, 0.4), (1500, 0.3)], 0.3) == pytest.approx(750)
    assert accuracy_time.crossing([(500, 0.2)], 0.1) == pytest.approx(250)
    assert accuracy_time.crossing([(500, 0.2)], 0.3) == math.inf
    images, seeds, where = accuracy_time.reached()
    assert seeds >= 2 and where.startswith("recorded on ")
    for batch, rate in itertools.product(accuracy_time.BATCHES, accuracy_time.RATES):
        known = [images[batch, rate, p] for p in accuracy_time.PERCENTS if (batch, rate, p) in images]
        assert known == sorted(known), "more is reached later"
    steps = [accuracy_time.best(batch, 60)[0] / batch for batch in accuracy_time.BATCHES]  # type: ignore[index]
    assert steps == sorted(steps, reverse=True), "a larger batch needs fewer steps ..."
    assert 512 * steps[-1] > 3 * 8 * steps[0], "... and more images"


def test_the_predicted_time_of_a_step_is_that_of_the_cost_model() -> None:
    compute, talk = accuracy_time.step_parts(512, 64)
    assert compute == pytest.approx(3e-3 + 8 * 0.4e-3)
    assert talk == predict.ring_all_reduce(64, accuracy_time.NBYTES, accuracy_time.LINK)
    assert accuracy_time.step_parts(512, 1)[1] == 0


def test_old_gradients_diverge_at_the_largest_rate_only() -> None:
    for trainers, rate in itertools.product((1, 2, 4, 8), (0.01, 0.02, 0.05, 0.1)):
        training = trainer_ages.middle(trainers, rate)
        assert training.diverged == (rate == 0.1 and trainers > 1)
        assert (training.stale == 0) == (trainers == 1)
    seed = trainer_ages.AsyncTraining
    assert seed([(0, 4.0), (100, None)], 0.01, 1.0).diverged and not seed([(0, 4.0)], 0.01, 1.0).diverged


def test_shares_that_fp16_loses_are_those_of_torch() -> None:
    """The bins are powers of two, and so are the ends of fp16: numbers of the same bins, rounded by torch."""
    import torch

    row = gradient_scale.counts()[0][480, "activations"]
    dice = torch.Generator().manual_seed(0)
    some = [2.0**e * (1 + torch.rand(max(1, n // 50), generator=dice, dtype=torch.float64)) for e, n in row.items()]
    numbers = torch.cat(some)
    counted = {e: len(values) for e, values in zip(row, some, strict=True)}
    for scale in (0, 8, 24, 33, 40):
        half = (numbers * 2.0**scale).half()
        zero, fewer, over = gradient_scale.shares(counted, scale, STORED["fp16"])
        assert zero == pytest.approx((half == 0).double().mean().item(), abs=1e-4)
        assert over == pytest.approx(half.isinf().double().mean().item(), abs=1e-4)
        small = (half != 0) & (numbers * 2.0**scale < 2.0**-14)
        assert fewer == pytest.approx(small.double().mean().item(), abs=1e-4)


@pytest.mark.parametrize("layers", [1, 7, 48, 96])
def test_what_is_held_at_most_is_what_the_model_says(layers: int) -> None:
    for segments, keeps in itertools.product({1, 2, 5, 7, layers} & set(range(1, layers + 1)), (1, 17)):
        spans = segment_memory.step(layers, segments, 1 / keeps)
        assert sum(segment_memory.parts(layers, segments)) == layers
        chain = predict.checkpoint_chain(layers, segments, input_share=1 / keeps)
        assert max(max(first, last) for *_, first, last in spans) == pytest.approx(chain.held)
        assert spans[-1][1] == pytest.approx(3 * layers * chain.time) and spans[-1][3] == pytest.approx(0, abs=1e-9)
        assert (
            chain.held
            >= predict.checkpoint_chain(layers, segment_memory.best(layers, 1 / keeps), input_share=1 / keeps).held
        )


def test_a_square_root_of_segments_is_best_where_a_layer_keeps_its_input_only() -> None:
    assert segment_memory.best(49, 1.0) == 7  # Chen et al.
    assert segment_memory.best(48, 1 / 17) == 24


@pytest.mark.parametrize(("save_s", "failure_s"), [(60, 11_000), (600, 3600), (5, 1e6), (1800, 432)])
def test_daly_finds_the_least_loss_and_young_is_near_it(save_s: float, failure_s: float) -> None:
    daly, young = predict.daly_interval(save_s, failure_s), predict.save_interval(save_s, failure_s)
    least = predict.lost_to_failures(daly, save_s, failure_s)
    assert all(predict.lost_to_failures(daly * f, save_s, failure_s) >= least - 1e-9 for f in (0.5, 0.8, 1.25, 2))
    if save_s < failure_s / 100:
        assert daly == pytest.approx(young, rel=0.1)
        assert least == pytest.approx(predict.lost_share(daly, save_s, failure_s), rel=0.06), "its first order"
    assert predict.lost_to_failures(1e9, save_s, failure_s) == 1.0


def test_the_drawn_job_loses_what_the_formula_says() -> None:
    job = (1200.0, 60.0, 11_000.0, 600.0)
    spans = save_interval.stretch(*job, length=4e7)
    assert all(a[2] == pytest.approx(b[1]) for a, b in itertools.pairwise(spans)), "no gap"
    done = sum(end - start for what, start, end in spans if what == "work that counts")
    assert 1 - done / 4e7 == pytest.approx(predict.lost_to_failures(*job), abs=0.01)


def test_a_flipped_bit_is_the_number_and_a_typed_number_the_bits() -> None:
    explorer = explore.bits(format="fp16", number=1.0)
    widgets = Widgets(explorer)
    text, bits = widgets.page.inputs[1], widgets.page.inputs[2:]

    def shown() -> str:
        return "".join(bit.description for bit in bits if bit.layout.display != "none")

    assert text.value == "1.0" and shown() == "0011110000000000"
    bits[0].value = True
    assert text.value == "-1.0" and explorer.values["number"] == -1.0
    bits[15].value = True  # the last one: the next number
    assert explorer.values["number"] == -1.0009765625 and "1.00097656 exactly" in widgets.page.picture.value
    text.value = "2^-24"
    assert shown() == "0000000000000001"
    text.value = "what"
    assert "something like 70000" in widgets.page.said.value and shown() == "0000000000000001"
    text.value = "inf"
    bits[15].value = True
    assert explorer.values["number"] == "0b0111110000000001" and "NaN" in widgets.page.picture.value
    widgets.of("format").value = "bf16"
    assert shown() == "0111110000000001" and "exactly" in widgets.page.picture.value, "the same bits, read as bf16"
    text.value = "1e-8"
    widgets.of("format").value = "fp8 e4m3"
    assert shown() == "00000000" and text.value == "1e-08", "what was asked for stays"


def test_patterns_are_those_of_torch() -> None:
    import torch

    kinds: dict[str, tuple[Any, Any]] = {
        "fp32": (torch.float32, torch.int32), "bf16": (torch.bfloat16, torch.int16),
        "fp16": (torch.float16, torch.int16), "fp8 e5m2": (torch.float8_e5m2, torch.uint8),
        "fp8 e4m3": (torch.float8_e4m3fn, torch.uint8),
    }  # fmt: skip
    dice = random.Random(0)
    numbers = [0.0, -0.0, 1.003, 257, 1e-8, 7e4, 464, 448, 57344, 65519, 65520, 1e-42, 3.4028235e38, 2**-25, math.inf]
    numbers += [dice.uniform(-1, 1) * 2.0 ** dice.uniform(-150, 127) for _ in range(3000)]
    numbers += [dice.uniform(-1, 1) * 2.0 ** dice.uniform(-30, 20) for _ in range(3000)]
    given = torch.tensor(numbers, dtype=torch.float32)
    for name, held in STORED.items():
        dtype, whole = kinds[name]
        for number, bits in zip(given.tolist(), given.to(dtype).view(whole).tolist(), strict=True):
            if not (held.finite and abs(number) > 464):  # where versions of torch differ
                assert held.pattern(number) == bits % 2**held.bits, (name, number)
        patterns = torch.tensor([dice.randrange(2 ** (held.bits - 1)) for _ in range(1000)]).to(whole)
        for bits, number in zip(patterns.tolist(), patterns.view(dtype).double().tolist(), strict=True):
            found = held.value(bits)
            assert found == number or (math.isnan(found) and math.isnan(number)), (name, bits)
        with pytest.raises(ValueError, match="has .* bits"):
            held.value(2**held.bits)
    assert STORED["fp8 e4m3"].pattern(1e9) == 0x7E
    assert math.isnan(STORED["fp16"].value(STORED["fp16"].pattern(math.nan)))
