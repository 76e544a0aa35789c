"""Figures that compare the cost model with measurements: sizes, residuals, memory, and the timeline they share."""

import re

import pytest
from matplotlib.colors import to_hex

from course_utils import figures, predict
from course_utils.results.provenance import Provenance
from course_utils.results.samples import Samples

MiB = 2**20
RECORDED = Provenance("recorded", "8 x H100")
PUBLISHED = Provenance("published", "8 x V100")


def around(median, name="sum_s", provenance=None):
    return Samples([0.96 * median, 0.98 * median, median, 1.02 * median, 1.04 * median], name, provenance)


def title(figure):
    return figure.mpl.get_suptitle().replace("\n", " ")


def drawn(figure, label, axes=0):
    handles, labels = figure.mpl.axes[axes].get_legend_handles_labels()
    handle = next(h for h, text in zip(handles, labels, strict=True) if text.startswith(label))
    return handle[0] if isinstance(handle, tuple) else handle


# sizes

SWEEP = {4096: 1e-4, 65536: 4e-4, MiB: 2e-3, 16 * MiB: 1.6e-2, 64 * MiB: 6.4e-2}
MEASURED = [(nbytes, around(seconds)) for nbytes, seconds in SWEEP.items()]


def test_the_worst_size_of_the_worst_prediction_is_named():
    sweep = predict.SizeSweep(SWEEP.items())
    figure = figures.sizes({"2 ranks": MEASURED}, {"alpha-beta": sweep.alpha_beta().send_s, "sweep": sweep})
    line = sweep.alpha_beta().send_s
    error = line(65536) / 4e-4 - 1
    assert error < -0.5  # latency 0.1 ms and 1 GB/s say 0.16 ms
    errors = sorted(abs(line(b) / seconds - 1) for b, seconds in SWEEP.items())
    factor = f"{1 / (1 + error):.1f} times too little at 64 KiB"
    assert title(figure) == f"Alpha-beta predicts {factor}; sweep fits every size"
    assert f"Predicted by alpha-beta: median error {errors[2]:.0%}, the worst time is {factor}." in figure.summary
    assert figure.summary.endswith("Predicted by sweep: within 1% at every size.")
    top, below = figure.mpl.axes
    assert (top.get_xscale(), top.get_yscale()) == ("log", "log")
    assert below.texts[0].get_text() == f"{error:+.0%} at 64 KiB".replace("-", "−")
    line = next(line for line in below.lines if len(line.get_xdata()) == len(SWEEP))
    assert list(line.get_ydata()) == pytest.approx([sweep.alpha_beta().send_s(b) / s - 1 for b, s in SWEEP.items()])
    figure.mpl.canvas.draw()
    assert "64 KiB" in [tick.get_text() for tick in below.get_xticklabels()]
    assert "1 ms" in [tick.get_text() for tick in top.get_yticklabels()]


def test_predictions_differ_in_dashes_and_keep_the_look_of_their_kind():
    figure = figures.sizes(
        {"2 ranks": MEASURED}, {name: lambda nbytes, k=k: k * 1e-9 * nbytes + 1e-4 for k, name in enumerate("abc", 1)}
    )
    lines = [drawn(figure, f"predicted: {name}") for name in "abc"]
    assert len({str(line._dash_pattern) for line in lines}) == 3
    assert lines[0].get_color() == "#E69F00" and {line.get_marker() for line in lines} == {"None"}
    assert drawn(figure, "measured: 2 ranks").get_marker() == "o"


def test_bus_bandwidth_is_that_of_nccl_tests():
    figure = figures.sizes(
        {"2 ranks": MEASURED, "4 ranks": MEASURED}, ranks={"2 ranks": 2, "4 ranks": 4}, quantity="bus bandwidth"
    )
    assert list(drawn(figure, "measured: 2 ranks").get_ydata()) == pytest.approx([b / s for b, s in SWEEP.items()])
    assert list(drawn(figure, "measured: 4 ranks").get_ydata()) == pytest.approx(
        [1.5 * b / s for b, s in SWEEP.items()]
    )
    assert "64 MiB 1.05 GB/s" in figure.summary
    with pytest.raises(ValueError, match="needs its number of ranks"):
        figures.sizes({"2 ranks": MEASURED}, quantity="bus bandwidth")
    with pytest.raises(ValueError, match="needs its number of ranks"):
        figures.sizes({"a": MEASURED, "b": MEASURED}, ranks={"a": 2}, quantity="bus bandwidth")


def test_a_prediction_meets_the_measurement_of_its_own_label():
    slow = [(nbytes, 2 * seconds) for nbytes, seconds in SWEEP.items()]
    figure = figures.sizes({"2 ranks": list(SWEEP.items()), "4 ranks": slow}, {"4 ranks": slow})
    assert title(figure) == "Every prediction stays within 10% of the measurement"
    assert (
        title(figures.sizes({"2 ranks": list(SWEEP.items())}, {"twice": slow}))
        == "Twice predicts 100% too much at 4 KiB"
    )


def test_every_kind_has_its_look_and_a_guess_its_sentence():
    published = [(MiB, 4e-5), (16 * MiB, 2e-4)]
    figure = figures.sizes(
        {
            "published: A100": published,
            "2 ranks": MEASURED,
            "8 ranks": [(b, around(s / 50, provenance=RECORDED)) for b, s in SWEEP.items()],
        },
        guess={64 * MiB: 0.05, MiB: ...},
    )
    assert drawn(figure, "published: A100").get_marker() == "D"
    assert drawn(figure, "recorded on 8 x H100: 8 ranks").get_marker() == "s"
    assert drawn(figure, "your guess").get_marker() == "x"
    assert len(figure.mpl.axes) == 1, "without a prediction there is no error to draw"
    assert title(figure) == "16,400 times the bytes take 640 times as long (2 ranks)"
    assert figure.summary.endswith("You guessed 50 ms for 64 MiB; measured: 64 ms.")
    assert figures.sizes({"a": MEASURED}, guess={MiB: ...}).summary.endswith("No guess was made.")


def test_sizes_refuse_what_they_cannot_show():
    for wrong in ({}, {"a": []}, {"a": [(0, 1.0)]}, {"a": [(1, 0.0)]}):
        with pytest.raises(ValueError):
            figures.sizes(wrong)
    with pytest.raises(ValueError, match="no size in common"):
        figures.sizes({"a": MEASURED}, {"b": [(17, 1.0)]})
    with pytest.raises(KeyError, match="guess is about 17"):
        figures.sizes({"a": MEASURED}, guess={17: 1.0})


# residuals

ROWS = [
    ("1 rank", 0.030, around(0.031, "step_s"), ...),
    ("2 ranks", 0.049, around(0.058, "step_s"), 0.0609),
    ("2 ranks, 1 MB <buckets>", 0.0365, around(0.036, "step_s")),
]


def test_a_residual_is_in_percent_of_the_measurement():
    table = figures.residuals(ROWS)
    assert table.errors == pytest.approx([0.030 / 0.031 - 1, 0.049 / 0.058 - 1, 0.0365 / 0.036 - 1])
    assert table.median_error == pytest.approx(1 / 31)
    assert table.worst_error == pytest.approx(-9 / 58)
    assert table.rows() == [
        ("", "your guess", "predicted", "measured (25% to 75%)", "error"),
        ("1 rank", "–", "30 ms", "31 ms (30.4 to 31.6)", "−3.2%"),
        ("2 ranks", "60.9 ms", "49 ms", "58 ms (56.8 to 59.2)", "−16%"),
        ("2 ranks, 1 MB <buckets>", "–", "36.5 ms", "36 ms (35.3 to 36.7)", "+1.4%"),
    ]
    assert (
        table.summary == "Predicted against measured, 3 rows: median error 3.2%, worst −16% (2 ranks); "
        "1 of 3 predictions lie between the measurement's quartiles; your guess: 5.0% off."
    )


def test_the_text_of_a_residual_table_has_bars_to_both_sides():
    lines = repr(figures.residuals(ROWS, title="Step time")).splitlines()
    assert lines[0] == "Step time" and len(lines) == 6
    at = lines[1].index("│")
    assert lines[2][at - 2 : at] == "██" and lines[2].endswith("│")
    assert lines[3][:at].count("█") == 12 and lines[3].endswith("│")
    assert lines[4][at:] == "│█"


def test_the_page_of_a_residual_table_shows_the_same_cells_and_bars_to_scale():
    page = figures.residuals(ROWS)._repr_html_()
    for row in figures.residuals(ROWS).rows():
        for cell in row:
            assert f">{cell.replace('<', '&lt;').replace('>', '&gt;')}</t" in page
    bars = re.findall(r"width:([\d.]+)px;height:11px;background:(#\w+)", page)
    assert [color for _, color in bars] == ["#0072B2", "#0072B2", "#E69F00"], (
        "blue where more was measured, orange where more was predicted"
    )
    widths = [float(width) for width, _ in bars]
    errors = [abs(e) for e in figures.residuals(ROWS).errors]
    assert widths == pytest.approx([70 * e / max(errors) for e in errors], abs=0.06)
    assert re.findall(r"font-weight:bold'>([^<]*)</td>", page) == ["−3.2%", "−16%"], (
        "bold where the prediction lies outside the quartiles"
    )


def test_published_rows_say_so_and_the_worst_may_come_first():
    table = figures.residuals(
        [("here", 0.1, around(0.1)), ("there", 0.2, around(0.16, provenance=PUBLISHED))], order="worst first"
    )
    assert table.labels == ["there", "here"]
    assert (
        table.rows()[1][2] == "160 ms (157 to 163), published on 8 x V100"
        and table.rows()[2][2] == "100 ms (98 to 102), measured"
    )
    one = figures.residuals([("there", 0.2, around(0.16, provenance=PUBLISHED))])
    assert one.rows()[0][2] == "published on 8 x V100 (25% to 75%)" and "published on" not in one.rows()[1][2]


def test_residuals_of_plain_numbers_have_no_quartiles():
    table = figures.residuals([("loss", 1.0, 1.0)])
    assert table.rows() == [("", "predicted", "measured", "error"), ("loss", "1", "1", "0%")]
    assert table.summary == "Predicted against measured: loss off by 0%."
    assert figures.residuals([("a", 1.0, 1.0, ...)]).summary.endswith("No guess was made.")


@pytest.mark.parametrize("rows", [[], [("a", 1.0, 0.0)], [("a", 1.0, 1.0), ("a", 2.0, 2.0)]])
def test_residuals_refuse_what_has_no_error(rows):
    with pytest.raises(ValueError):
        figures.residuals(rows)


# memory


def zero(stage):
    return vars(predict.zero_memory(7.5e9, 64, stage))


STAGES = {name: zero(stage) for stage, name in enumerate(("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"))}


def heights(figure, color):
    return [
        round(p.get_height(), 2)
        for p in figure.mpl.axes[0].patches
        if to_hex(p.get_facecolor()).upper() == color and p.get_facecolor()[3] == 1
    ]


def test_stacks_are_the_bytes_of_their_parts_and_the_title_says_what_fits():
    figure = figures.memory(STAGES, limit_bytes=80e9, decimal=True, guess={"ZeRO-1": 50e9})
    assert heights(figure, "#0072B2") == [15, 15, 15, 0.23], "weights are the parameters"
    assert heights(figure, "#CC79A7") == [90, 1.41, 1.41, 1.41]
    assert title(figure) == "All but DDP fit in 80 GB"
    assert figure.summary.startswith(
        "DDP: predicted 120 GB (parameters 15, gradients 15, optimizer 90). ZeRO-1: predicted 31.4 GB"
    )
    assert "guessed 50" in figure.summary and figure.summary.endswith("A device has 80 GB.")
    assert {text.get_text() for text in figure.mpl.axes[0].texts} >= {"120", "31.4", "16.6", "1.88"}
    assert drawn(figure, "a device has").get_ydata()[0] == pytest.approx(80)
    hatches = {p.get_hatch() for p in figure.mpl.axes[0].patches if p.get_facecolor()[3] == 1}
    assert len(hatches) == 3, "parts differ without colour, too"


@pytest.mark.parametrize(
    "limit, finding",
    [
        (20e9, "Only ZeRO-2 and ZeRO-3 fit in 20 GB"),
        (1e9, "None fits in 1 GB"),
        (200e9, "All fit in 200 GB; DDP fills 60%"),
    ],
)
def test_the_finding_counts_what_fits(limit, finding):
    assert title(figures.memory(STAGES, limit_bytes=limit, decimal=True)) == finding


def test_measured_stacks_stand_beside_the_predicted_and_decide():
    predicted = {
        "DDP": {"parameters": 40 * MiB, "activations": 60 * MiB},
        "FSDP": {"parameters": 20 * MiB, "activations": 60 * MiB},
    }
    measured = {
        "DDP": {"parameters": 40 * MiB, "activations": 64 * MiB, "buckets": 8 * MiB},
        "FSDP": around(84 * MiB, "peak_bytes"),
    }
    figure = figures.memory(predicted, measured, limit_bytes=105 * MiB)
    frames = [p for p in figure.mpl.axes[0].patches if p.get_facecolor()[3] == 0]
    assert [(round(p.get_height()), to_hex(p.get_edgecolor()).upper(), p.get_linestyle()) for p in frames] == [
        (100, "#E69F00", "--"),
        (112, "#0072B2", "-"),
        (80, "#E69F00", "--"),
    ]
    assert title(figure) == "Only FSDP fits in 105 MiB", "DDP was predicted to fit, and did not"
    point = drawn(figure, "measured")
    assert point.get_marker() == "o" and list(point.get_ydata()) == [84]
    assert (
        figure.summary
        == "DDP: predicted 100 MiB (parameters 40, activations 60), measured 112 MiB. FSDP: predicted 80 MiB"
        " (parameters 20, activations 60), measured 84 MiB. A device has 105 MiB."
    )


def test_without_a_limit_the_largest_is_held_against_the_smallest():
    assert title(figures.memory(STAGES, decimal=True)) == "ZeRO-3 needs 1.88 GB, DDP 64 times that"
    assert (
        title(figures.memory({"rank 0": {"parameters": MiB}, "rank 1": {"parameters": MiB}}))
        == "Every stack holds about 1 MiB"
    )
    assert title(figures.memory(measured={"rank 0": 3 * MiB})) == "Rank 0: 3 MiB"
    assert (
        "limit"
        not in figures.memory({"a": {"parameters": 1.0}}, limit_bytes=1e9).mpl.axes[0].get_legend_handles_labels()[1]
    )


@pytest.mark.parametrize("stacks", [{}, {"a": {}}, {"a": {"parameters": -1.0}}, {"a": {"parameters": float("nan")}}])
def test_memory_refuses_what_it_cannot_stack(stacks):
    with pytest.raises(ValueError):
        figures.memory(stacks)


# What a timeline shares


def test_collectives_that_run_at_once_share_their_line():
    spans = [
        (0, 0.0, 10.0, "compute", ""),
        (0, 1.0, 4.0, "communication", "a"),
        (0, 3.0, 6.0, "communication", "b"),
        (0, 6.0, 9.0, "communication", "c"),
    ]
    figure = figures.rank_timeline(spans, kind="predicted")
    boxes = [
        c.get_paths()[0].get_extents()
        for c in figure.mpl.axes[0].collections
        if to_hex(c.get_facecolor()[0]) == "#d55e00"
    ]
    a, b, c = sorted(boxes, key=lambda box: box.x0)
    assert a.height == pytest.approx(b.height) == pytest.approx(c.height / 2)
    assert a.y1 == pytest.approx(b.y0), "one below the other"
    assert figure.mpl.axes[0].get_xlabel() == "predicted time (s)"
    assert "Of 10 s predicted: rank 0" in figure.summary


def test_a_schedule_that_touches_within_rounding_shares_nothing():
    third = 0.1 / 3
    spans = [(0, third * i, third * (i + 1) + 1e-16, "compute", "x") for i in range(9)]
    figure = figures.rank_timeline(spans)
    assert {
        round(c.get_paths()[0].get_extents().height, 3)
        for c in figure.mpl.axes[0].collections
        if to_hex(c.get_facecolor()[0]) == "#0072b2"
    } == {0.76}
