"""The figure of what a time is made of, and the sentence that names a bottleneck."""

from __future__ import annotations

import math

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from course_utils import figures, predict
from course_utils.results.samples import Samples

STEP = {
    "load": 0.01,
    "move": 0.0,
    "forward": 0.03,
    "backward": Samples([0.05, 0.06, 0.9], "backward_s"),
    "optimizer": 0.002,
}
JOB = {
    "1 rank": {"train": 2.0, "test": 0.5},
    "2 ranks, predicted": {"train": 1.0, "test": 0.5},
    "2 ranks": {"train": 1.1, "test": 0.5},
}


def bars(figure: figures.Figure) -> list[Rectangle]:
    """The parts of all rows, in the order of drawing."""
    return [patch for container in figure.mpl.axes[0].containers for patch in container]


def words(figure: figures.Figure) -> list[str]:
    return [t.get_text() for t in figure.mpl.axes[0].texts]


def test_a_row_is_made_of_its_parts_one_after_the_other_in_a_readable_unit() -> None:
    drawn = bars(figures.parts({"one step": STEP}))
    assert [round(b.get_width(), 6) for b in drawn] == [10, 0, 30, 60, 2], "milliseconds, of samples the median"
    assert [round(b.get_x(), 6) for b in drawn] == [0, 10, 10, 40, 100]
    assert all(math.isclose(b.get_y(), drawn[0].get_y()) for b in drawn)


def test_the_title_of_one_row_names_its_largest_part_and_the_text_names_all() -> None:
    figure = figures.parts({"one step": STEP})
    assert figure.mpl.get_suptitle() == "Backward takes 59% of one step"
    assert "One step: 102 ms (load 10, move 0, forward 30, backward 60, optimizer 2)" in figure.summary
    labels = [t.get_text() for t in figure.mpl.axes[0].get_legend().get_texts()]
    assert labels == ["load 10 ms", "move 0 ms", "forward 30 ms", "backward 60 ms", "optimizer 2 ms"], (
        "a sliver has no room for its number"
    )


def test_rows_are_told_apart_by_their_totals_and_a_prediction_is_no_finding() -> None:
    figure = figures.parts(JOB, predicted=["2 ranks, predicted"])
    assert figure.mpl.get_suptitle() == "1 rank 2.5 s; 2 ranks 1.6 s"
    assert "2 ranks, predicted: predicted 1.5 s (train 1, test 0.5)" in figure.summary
    assert "predicted" in [t.get_text() for t in figure.mpl.axes[0].get_legend().get_texts()]


def test_a_part_keeps_its_colour_and_hatching_in_all_rows_and_differs_from_its_neighbour() -> None:
    drawn = bars(figures.parts(JOB))
    looks = [(to_hex(b.get_facecolor()), b.get_hatch()) for b in drawn]
    assert looks[0] == looks[2] == looks[4] and looks[1] == looks[3] == looks[5] and looks[0] != looks[1]
    step = [(to_hex(b.get_facecolor()), b.get_hatch()) for b in bars(figures.parts({"one step": STEP}))]
    assert len(set(step)) == len(step)


def test_a_predicted_row_is_pale_in_a_dashed_frame() -> None:
    figure = figures.parts(JOB, predicted=["2 ranks, predicted"])
    alphas = [b.get_alpha() for b in bars(figure)]
    assert alphas[2] == alphas[3] == 0.4 and {alphas[0], alphas[1], alphas[4], alphas[5]} == {1.0}
    in_bars = {id(b) for b in bars(figure)}
    frames = [p for p in figure.mpl.axes[0].patches if id(p) not in in_bars]
    assert [(f.get_width(), f.get_linestyle()) for f in frames] == [(1.5, "--")]


def test_other_units_are_kept_and_other_parts_get_a_look_of_their_own() -> None:
    figure = figures.parts({"8 GPUs": {"queue": 10.0, "run": 3.5, "copying back": 0.5, "mail": 0.25}}, unit="hours")
    assert "14.2 hours (queue 10, run 3.5, copying back 0.5, mail 0.25)" in figure.summary
    assert len({(to_hex(b.get_facecolor()), b.get_hatch()) for b in bars(figure)}) == 4
    assert "14.2 hours" in words(figure)


def test_texts_stay_inside_the_figure() -> None:
    figure = figures.parts({"2 ranks, the test on rank 0 alone": JOB["1 rank"], "2 ranks": JOB["2 ranks"]})
    figure.mpl.canvas.draw()
    width = figure.mpl.bbox.width
    boxes = [t.get_window_extent() for t in [*figure.mpl.axes[0].texts, *figure.mpl.axes[0].get_yticklabels()]]
    assert all(box.x0 >= 0 and box.x1 <= width for box in boxes)


@pytest.mark.parametrize("rows", [{}, {"a": {}}, {"a": {"load": -1.0}}, {"a": {"load": float("nan")}}])
def test_parts_that_cannot_be_drawn_are_refused(rows: dict) -> None:
    with pytest.raises(ValueError):
        figures.parts(rows)


def test_a_predicted_row_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError, match="'3 ranks'"):
        figures.parts(JOB, predicted=["3 ranks"])


# --- the bottleneck ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts_s", "kind", "at_most"),
    [
        ({"load": 1.0, "move": 1.0, "forward": 3.0, "backward": 4.0, "optimizer": 1.0}, "compute", 10 / 3),
        ({"load": 3.0, "move": 3.0, "forward": 2.0, "backward": 3.0, "optimizer": 1.0}, "input", 2.0),
        ({"forward": 1.0, "backward": 1.0, "optimizer": 3.0}, "update", 2.5),
    ],
)
def test_the_bottleneck_is_the_kind_of_work_that_takes_most(
    parts_s: dict[str, float], kind: str, at_most: float
) -> None:
    found = predict.bottleneck(parts_s)
    assert found.kind == kind and found.at_most == pytest.approx(at_most)
    assert found.share == pytest.approx(1 - 1 / at_most), "what is left when that kind costs nothing"
    assert f"{found.share:.0%} of a step" in str(found)


def test_what_helps_depends_on_the_bottleneck() -> None:
    told = [str(predict.bottleneck(p)) for p in ({"load": 1.0}, {"forward": 1.0}, {"optimizer": 1.0})]
    assert "lesson 02" in told[0] and "more devices" in told[1] and "lesson 10" in told[2]


def test_the_most_that_a_part_can_give() -> None:
    assert predict.speedup_without({"a": 3.0, "b": 1.0}, "a") == pytest.approx(4.0)
    assert predict.speedup_without({"a": 3.0, "b": 1.0}, "a", "b") == float("inf")
    assert predict.speedup_without({"a": 3.0, "b": 1.0}) == 1.0
    # Amdahl's law for very many ranks, when everything but "serial" is split.
    assert predict.speedup_without({"serial": 2.0, "split": 8.0}, "split") == pytest.approx(
        predict.amdahl(10**9, 0.2), rel=1e-6
    )
    with pytest.raises(KeyError, match="no part 'c'"):
        predict.speedup_without({"a": 3.0}, "c")


@pytest.mark.parametrize("parts_s", [{}, {"load": 0.0}, {"sleep": 1.0}, {"load": -1.0, "forward": 2.0}])
def test_a_step_that_says_nothing_is_refused(parts_s: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        predict.bottleneck(parts_s)
