"""Lesson 06, the figure of a pipeline's schedule: what it says of the bubble, and what it draws."""

from __future__ import annotations

import pytest

import lesson_06
from course_utils.figures import Figure
from course_utils.predict import simulate_pipeline
from lesson_06 import IDLE


def boxes(figure: Figure, panel: int = 0) -> list[str]:
    """The numbers of the micro-batches that are written into boxes."""
    return [text.get_text() for text in figure.mpl.axes[panel].texts]


def test_the_bubble_of_a_schedule_is_told_in_numbers() -> None:
    figure = lesson_06.schedule(simulate_pipeline("gpipe", [1e-3] * 4, 4).spans, kind="predicted")
    assert "43% of the stages' time is bubble" in figure.summary
    assert "21 ms" in figure.summary and "on 4 stages" in figure.summary and "redicted" in figure.summary
    assert boxes(figure) == ["0", "1", "2", "3", "3", "2", "1", "0"] * 4
    assert len(figure.png(dpi=50)) > 1000


def test_panels_share_one_scale_and_are_compared() -> None:
    runs = {
        "1F1B": simulate_pipeline("1f1b", [1.0] * 4, 8),
        "zero-bubble": simulate_pipeline("zero-bubble", [1.0] * 4, 8),
    }
    figure = lesson_06.schedule({name: run.spans for name, run in runs.items()})
    assert "Zero-bubble needs 82% of the time of 1F1B" in figure.summary
    first, second = figure.mpl.axes
    assert first.get_xlim() == second.get_xlim()
    assert [label.get_text() for label in first.get_yticklabels()] == [f"stage {i}" for i in range(4)]
    legend = [text.get_text() for text in figure.mpl.legends[0].get_texts()]
    assert legend == ["forward", "backward", "backward: input", "backward: weights", "bubble"]


def test_equal_schedules_are_said_to_take_the_same_time() -> None:
    runs = {name: simulate_pipeline(name, [1.0] * 3, 5).spans for name in ("gpipe", "1f1b")}
    assert "Gpipe and 1f1b take the same time" in lesson_06.schedule(runs).summary


def test_measured_spans_begin_at_their_own_first_start_and_other_work_is_left_out() -> None:
    spans = [
        (0, 100.0, 101.0, "compute", "F0"),
        (0, 101.0, 101.5, "communication", ""),
        (1, 101.0, 102.0, "compute", "F0"),
    ]
    figure = lesson_06.schedule(
        {"one": spans, "other": [(r, s + 50, e + 50, w, t) for r, s, e, w, t in spans]}, row="device"
    )
    assert "2 s, bubble 50% on 2 devices" in figure.summary
    assert figure.mpl.axes[1].get_xlim()[1] == pytest.approx(2.01)
    colors = {tuple(round(v, 3) for v in c.get_facecolor()[0]) for c in figure.mpl.axes[0].collections}
    assert len(colors) == 2 and IDLE == "#E4E4E4"


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_nothing_of_the_figure_lies_outside_of_it(panels: int) -> None:
    figure = lesson_06.schedule(
        {f"schedule {i}": simulate_pipeline("zero-bubble", [1e-3] * 8, 16).spans for i in range(panels)},
        kind="predicted",
    )
    figure.mpl.canvas.draw()
    whole = figure.mpl.bbox
    shown = [
        *figure.mpl.legends[0].get_texts(),
        *(ax.title for ax in figure.mpl.axes),
        *(label for ax in figure.mpl.axes for label in ax.get_yticklabels()),
    ]
    for text in shown:
        box = text.get_window_extent()
        assert (
            box.x0 >= whole.x0 - 1 and box.x1 <= whole.x1 + 1 and box.y0 >= whole.y0 - 1 and box.y1 <= whole.y1 + 1
        ), text.get_text()


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([], "at least one span"),
        ({}, "at least one span"),
        ({"a": [(0, 0.0, 1.0, "waiting", "")]}, "in 'a'"),
        ([(0, 0.0, 1.0, "compute", "forward")], "got 'forward'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(spans: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        lesson_06.schedule(spans)  # type: ignore[arg-type]
