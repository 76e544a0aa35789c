"""The figures: every kind of number has its own look, the title has the finding, and the alternative text has the
sentence."""

import base64
import re
import subprocess
import sys
from importlib.util import find_spec
from io import BytesIO

import numpy as np
import pytest
from conftest import ROOT
from matplotlib.colors import to_hex
from PIL import Image

from course_utils import figures
from course_utils.figures.canvas import INK, KINDS, ink_on
from course_utils.results.provenance import Provenance
from course_utils.results.published import Point, ddp_scaling
from course_utils.results.samples import Samples
from course_utils.show.units import number, readable_unit, unit_of_name

RECORDED = Provenance("recorded", "8 x H100")


def drawn(figure, label):
    """The line in the legend of the first axes whose label starts with `label`."""
    handles, labels = figure.mpl.axes[0].get_legend_handles_labels()
    handle = next(h for h, text in zip(handles, labels, strict=True) if text.startswith(label))
    return handle[0] if isinstance(handle, tuple) else handle  # an error bar is a tuple of its parts


def labels(figure):
    return figure.mpl.axes[0].get_legend_handles_labels()[1]


def title(figure):
    return figure.mpl.get_suptitle().replace("\n", " ")


def step(median, name="step_s", provenance=None):
    return Samples([0.98 * median, 0.99 * median, median, 1.01 * median, 1.02 * median], name, provenance)


# The common look


def test_no_two_kinds_share_colour_marker_and_line():
    looks = [(look.color, look.marker, look.line, look.hollow) for look in KINDS.values()]
    assert len(set(looks)) == len(KINDS)
    without_colour = [(look.marker, look.line, look.hollow, look.width) for look in KINDS.values()]
    assert len(set(without_colour)) == len(KINDS), "a reader who sees no colours must tell them apart, too"


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0461, "0.0461"),
        (46.12, "46.1"),
        (1236.7, "1,240"),
        (8.0, "8"),
        (0, "0"),
        (0.9999, "1"),
        (-3.456, "-3.46"),
        (2.345e-5, "2.35e-05"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    "unit, largest, factor, shown",
    [
        ("s", 2.0, 1.0, "s"),
        ("s", 0.05, 1e3, "ms"),
        ("s", 5e-5, 1e6, "µs"),
        ("bytes", 3 * 2**20, 2.0**-20, "MiB"),
        ("B/s", 2e9, 1e-9, "GB/s"),
        ("images/s", 1e6, 1.0, "images/s"),
    ],
)
def test_units_are_chosen_for_reading(unit, largest, factor, shown):
    assert readable_unit(unit, largest) == (factor, shown)


@pytest.mark.parametrize(
    "name, unit",
    [
        ("step_s", "s"),
        ("traffic_bytes", "bytes"),
        ("copy_Bps", "B/s"),
        ("images_per_s", "images/s"),
        ("loss", ""),
        ("step_ms", "ms"),
    ],
)
def test_units_come_from_names(name, unit):
    assert unit_of_name(name) == unit


def test_a_figure_is_shown_once_with_its_sentence_as_alternative_text():
    figure = figures.bars({"a < b": step(1.0)})
    data, metadata = figure._repr_mimebundle_()
    assert data["text/plain"] == repr(figure) == figure.summary == "A < b: measured 1 s."
    assert data["text/html"].count("<img") == 1
    assert 'alt="A &lt; b: measured 1 s."' in data["text/html"]
    assert data["text/html"].count("A &lt; b") == 2  # the alternative text, and behind describe
    assert data["text/html"].index("describe</summary>") < data["text/html"].rindex("A &lt; b")
    with Image.open(BytesIO(base64.b64decode(data["image/png"]))) as picture:
        assert picture.size == (1400, 800)
        assert picture.text["Description"] == figure.summary
    assert metadata["image/png"] == {"width": 700, "height": 400, "alt": figure.summary}


@pytest.mark.parametrize(
    ("fill", "ink"), [("#0072B2", "white"), ("#009E73", INK), ("#56B4E9", INK), ("#F0E442", INK), ("black", "white")]
)
def test_words_in_a_filled_area_have_the_ink_that_is_read_best_on_it(fill, ink):
    assert ink_on(fill) == ink


def test_a_long_title_has_two_even_lines():
    figure = figures.bars(
        {"a": step(1.0)}, title="in place: 1 old, 1 new and 2 neither; renamed: 1 old, 1 new and 0 neither"
    )
    first, second = figure.mpl.get_suptitle().split("\n")
    assert abs(len(first) - len(second)) < 12
    long = figures.bars({"a": step(1.0)}, title="word " * 60).mpl.get_suptitle()
    assert long.count("\n") == 1 and long.endswith(" …") and max(map(len, long.split("\n"))) <= 68


def test_drawing_leaves_pyplot_alone_and_the_package_imports_matplotlib_late():
    code = (
        "import sys\nfrom course_utils import figures\n"
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules\n"
        "figures.bars({'a': 1.0, 'b': 2.0}).png()\nassert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_figure_is_found_by_its_name_and_no_module_hides_it():
    for name in figures.__all__:
        found = getattr(figures, name)
        assert callable(found) and found.__name__ == name and found.__doc__, name
        assert find_spec(f"course_utils.figures.{name}") is None, f"a module of this name would replace figures.{name}"
    assert dir(figures) == figures.__all__
    with pytest.raises(AttributeError, match="no figure 'bar'; there are Figure, Residuals, bars, "):
        figures.bar  # noqa: B018


def test_a_figure_that_only_one_lesson_draws_is_not_here():
    """It lies in the module next to the lesson, `notebooks/lesson_NN.py`."""
    drawn_in = {}
    for folder in ("notebooks", "solutions"):
        for path in [*(ROOT / folder).glob("*.ipynb"), *(ROOT / folder).rglob("*.py")]:
            lesson = re.search(r"\d\d", str(path.relative_to(ROOT))).group()
            for name in re.findall(r"figures\.(\w+)", path.read_text()):
                drawn_in.setdefault(name, set()).add(lesson)
    for name in set(figures.__all__) - {"Figure", "Residuals"}:
        assert len(drawn_in.get(name, ())) > 1, f"figures.{name} is drawn in {drawn_in.get(name)}"


def test_saved_as_png_only(tmp_path):
    figure = figures.bars({"a": 1.0})
    figure.savefig(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.format == "PNG"
    with pytest.raises(ValueError, match="'a.png'"):
        figure.savefig(tmp_path / "a.svg")


# bars


def test_a_label_of_ones_own_gets_the_unit_that_is_shown() -> None:
    def label(value: float, ylabel: str, unit: str) -> str:
        return figures.bars({"a": value}, ylabel=ylabel, unit=unit).mpl.axes[0].get_ylabel()

    assert label(3 * 2**20, "kept", "bytes") == "kept (MiB)" and label(0.2, "it stops for", "s") == "it stops for (ms)"
    assert label(2.0, "times as fast", "") == "times as fast" and label(2.0, "age (updates)", "s") == "age (updates)"


def test_bars_draw_measurement_prediction_and_guess():
    figure = figures.bars(
        {"one bucket": step(0.058), "1 MB buckets": step(0.047)},
        guess={"one bucket": 0.05, "1 MB buckets": ...},
        predicted={"one bucket": 0.059, "1 MB buckets": 0.043},
    )
    measured, predicted, guess = drawn(figure, "measured"), drawn(figure, "predicted"), drawn(figure, "your guess")
    assert (measured.get_color(), measured.get_marker()) == ("#0072B2", "o")
    assert (predicted.get_color(), predicted.get_linestyle(), predicted.get_marker()) == ("#E69F00", "--", "None")
    assert (guess.get_color(), guess.get_marker(), list(guess.get_ydata())) == ("black", "x", [50.0])
    assert (
        figure.summary
        == "One bucket: measured 58 ms, predicted 59, guessed 50. 1 MB buckets: measured 47 ms, predicted 43."
    )
    assert title(figure) == "1 MB buckets: 0.81 times the time of one bucket"
    ax = figure.mpl.axes[0]
    assert ax.get_ylim()[0] == 0 and ax.get_ylabel() == "step time (ms)"


def test_the_axis_of_a_rate_is_in_the_unit_that_is_drawn():
    rates = {name: step(value).map(float, "copy_Bps") for name, value in {"pageable": 9e9, "pinned": 55e9}.items()}
    figure = figures.bars(rates)
    assert figure.mpl.axes[0].get_ylabel() == "GB/s" and figure.mpl.axes[0].get_ylim()[1] < 100
    assert title(figure) == "Pinned: 6.1 times the rate of pageable"


def test_error_bars_go_from_quartile_to_quartile():
    figure = figures.bars({"a": Samples([1.0, 2.0, 3.0, 4.0, 10.0], "step_s")})
    bar = next(c for c in figure.mpl.axes[0].containers if hasattr(c, "has_yerr"))
    (segment,) = bar.lines[2][0].get_segments()
    assert [y for _, y in segment] == [2.0, 4.0]


def test_an_open_guess_draws_nothing_and_is_said():
    figure = figures.bars({"a": step(1.0)}, guess={"a": ...})
    assert "your guess" not in labels(figure)
    assert figure.summary.endswith("No guess was made.")
    assert "guess" not in figures.bars({"a": step(1.0)}).summary


def test_bars_of_other_machines_look_different_and_are_no_rivals():
    figure = figures.bars({"here": step(310, "images_per_s"), "there": step(2400, "images_per_s", RECORDED)})
    recorded = drawn(figure, "recorded on 8 x H100")
    assert (recorded.get_color(), recorded.get_marker()) == ("#009E73", "s")
    assert title(figure) == "Here: 310 images/s"
    assert figure.summary == "Here: measured 310 images/s. There: recorded on 8 x H100 2,400 images/s."


def test_overlapping_bars_are_no_finding():
    assert (
        title(figures.bars({"a": Samples([1, 2, 3]), "b": Samples([1.5, 2.5, 3.5])}))
        == "No clear difference between a and b"
    )


def test_numbers_without_a_unit_are_set_side_by_side():
    assert (
        title(figures.bars({"batch 64": 0.61, "batch 512": 0.42}, unit=""))
        == "Batch 512: 0.42 against 0.61 for batch 64"
    )


def test_bars_refuse_what_they_cannot_show():
    with pytest.raises(KeyError, match="guess is about 'c'"):
        figures.bars({"a": 1.0}, guess={"c": 2})
    with pytest.raises(KeyError, match="predicted has 'c'"):
        figures.bars({"a": 1.0}, predicted={"c": 2})
    with pytest.raises(TypeError, match="as a number"):
        figures.bars({"a": 1.0}, guess={"a": "fast"})
    with pytest.raises(ValueError):
        figures.bars({})


# speedup


def test_rates_become_speedups():
    figure = figures.speedup(
        {1: step(300.0), 2: step(540.0)}, predicted={1: 300.0, 2: 570.0, 8: 2000.0}, guess={2: 2.0}
    )
    assert list(drawn(figure, "measured").get_ydata()) == pytest.approx([1.0, 1.8])
    assert list(drawn(figure, "predicted").get_ydata()) == pytest.approx([1.0, 1.9, 2000 / 300])
    assert list(drawn(figure, "your guess").get_ydata()) == [2.0]
    assert title(figure) == "Two ranks: 1.8 times the images per second"
    assert (
        figure.summary
        == "Speed-up: 2 ranks measured 1.8 (1.78 to 1.82), predicted 1.9, guessed 2; predicted for 8 ranks 6.67."
    )
    ax = figure.mpl.axes[0]
    assert ax.get_xlim()[0] == ax.get_ylim()[0] == 0
    assert list(ax.get_xticks()) == list(range(1, 9))


def test_efficiency_divides_by_the_ranks():
    figure = figures.speedup(
        {1: step(300.0), 2: step(540.0)},
        predicted={1: 1.0, 4: 3.0},
        quantity="efficiency",
        published=[Point("x", 8, 7.2, "NVIDIA/x")],
    )
    assert list(drawn(figure, "measured").get_ydata()) == pytest.approx([1.0, 0.9])
    assert list(drawn(figure, "predicted").get_ydata()) == pytest.approx([1.0, 0.75])
    assert list(drawn(figure, "published").get_ydata()) == pytest.approx([0.9])
    assert "2 ranks measured 90% (89% to 91%)" in figure.summary


def test_throughput_keeps_the_rate_and_has_no_published_points():
    figure = figures.speedup({1: step(300.0), 2: step(540.0)}, quantity="throughput")
    assert list(drawn(figure, "measured").get_ydata()) == pytest.approx([300, 540])
    assert list(drawn(figure, "ideal").get_ydata()) == pytest.approx([0, 2400])
    assert title(figure) == "Two ranks: 540 images per second, 1.8 times one rank"
    with pytest.raises(ValueError, match="published"):
        figures.speedup({1: step(300.0)}, quantity="throughput", published=ddp_scaling())


def test_no_gain_is_said_as_such():
    assert title(figures.speedup({1: step(300.0), 2: step(301.0)})) == "Two ranks are not clearly faster than one here"
    assert title(figures.speedup({1: step(300.0)})) == "One rank: nothing to compare with yet"


def test_published_points_carry_their_sources():
    figure = figures.speedup({1: step(300.0), 2: step(540.0)}, published=ddp_scaling())
    points = drawn(figure, "published: 8 results (NVIDIA, TensorFlow)")
    assert (to_hex(points.get_color()), points.get_marker(), points.get_linestyle()) == ("#cc79a7", "D", "None")
    assert list(points.get_xdata()) == [point.n for point in ddp_scaling()], "at their true coordinates"
    assert list(points.get_ydata()) == [point.speedup for point in ddp_scaling()]
    assert points.get_alpha() < 0.8, "one that lies on another shows through"
    assert "published for 8 GPUs 6.54 to 7.92" in figure.summary
    assert len(figure.sources) == 8
    page = figure._repr_mimebundle_()[0]["text/html"]
    assert all(source.split(". ", 1)[1].split("/")[0] in page for source in figure.sources)


def test_recorded_series_keep_the_machine_in_the_label():
    figure = figures.speedup(
        {1: step(300.0), 2: step(540.0)},
        recorded=[{n: step(800.0 * n, "images_per_s", RECORDED) for n in (1, 2, 4, 8)}],
    )
    recorded = drawn(figure, "recorded on 8 x H100")
    assert (recorded.get_color(), recorded.get_marker()) == ("#009E73", "s")
    assert list(recorded.get_ydata()) == pytest.approx([1, 2, 4, 8])


def test_more_ranks_than_eight_stretch_the_axis():
    figure = figures.speedup({n: step(100.0 * n) for n in (1, 16, 64)})
    ax = figure.mpl.axes[0]
    assert ax.get_xlim()[1] > 64
    assert list(ax.get_xticks()) == [2, 4, 8, 16, 32, 64]


# lines


def test_equal_curves_both_show_and_are_called_equal():
    x = list(range(100))
    figure = figures.lines(
        {"one process": (x, [1 / (i + 1) for i in x]), "2 ranks": (x, [1 / (i + 1) for i in x])},
        "step",
        "training loss",
    )
    one, two = drawn(figure, "measured: one process"), drawn(figure, "measured: 2 ranks")
    assert two.get_linewidth() > one.get_linewidth() + 2 and two.get_zorder() < one.get_zorder()
    assert one.get_color() != two.get_color()
    assert title(figure) == "Both curves are equal at every point"


@pytest.mark.parametrize(
    "gap, finding",
    [
        (2e-6, "Both curves agree to one part in 100,000"),
        (0.03, "Both curves stay within 2.9% of each other"),
        (1.0, "Loss ends at 1 (a), 2 (b)"),
    ],
)
def test_the_finding_says_how_near_curves_are(gap, finding):
    assert title(figures.lines({"a": ([1, 2], [1.0, 1.0]), "b": ([1, 2], [1.0, 1.0 + gap])}, "step", "loss")) == finding


def test_a_label_carries_its_kind():
    sizes = [2**k for k in range(10, 27, 4)]
    figure = figures.lines(
        {
            "measured: gloo": (sizes, [step(s / 1e9) for s in sizes]),
            "predicted: alpha-beta": (sizes, [s / 2e9 for s in sizes]),
        },
        "message size (bytes)",
        "time (s)",
        log="xy",
    )
    predicted = drawn(figure, "predicted: alpha-beta")
    assert (predicted.get_color(), predicted.get_linestyle()) == ("#E69F00", "--")
    assert drawn(figure, "measured: gloo").get_marker() == "o"
    assert title(figure) == "Alpha-beta is off by up to 50%"
    ax = figure.mpl.axes[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    figure.mpl.canvas.draw()
    assert "64 KiB" in [tick.get_text() for tick in ax.get_xticklabels()]


def test_samples_bring_their_own_kind():
    figure = figures.lines({"8 GPUs": ([1, 2], [step(1.0, provenance=RECORDED)] * 2)}, "size", "time (s)")
    assert drawn(figure, "recorded on 8 x H100: 8 GPUs").get_marker() == "s"


def test_axes_start_at_zero_unless_there_is_something_below():
    ax = figures.lines({"a": ([5, 6], [3.0, 4.0])}, "x", "y").mpl.axes[0]
    assert (ax.get_xlim()[0], ax.get_ylim()[0]) == (0, 0)
    assert figures.lines({"a": ([5, 6], [-3.0, 4.0])}, "x", "y").mpl.axes[0].get_ylim()[0] == -3


@pytest.mark.parametrize("curve", [([], []), ([1, 2], [1.0])])
def test_curves_must_have_points(curve):
    with pytest.raises(ValueError, match="the curve 'a' has"):
        figures.lines({"a": curve}, "x", "y")


# Ranks


def test_timeline_shows_who_waits():
    spans = [
        (0, 10.0, 10.1, "compute", "work"),
        (0, 10.1, 10.2, "waiting", "waits"),
        (1, 10.0, 10.2, "compute", "work"),
    ]
    figure = figures.rank_timeline(spans)
    ax = figure.mpl.axes[0]
    assert title(figure) == "Rank 0 waits 50% of the time"
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["rank 0", "rank 1"]
    assert ax.yaxis_inverted() and ax.get_xlabel() == "time (ms)"
    assert ax.get_xlim()[0] == 0
    assert (
        figure.summary
        == "Rank 0 waits 50% of the time. Of 200 ms: rank 0 compute 50%, waiting 50%; rank 1 compute 100%."
    )
    colours = {to_hex(c.get_facecolor()[0]) for c in ax.collections if len(c.get_facecolor())}
    assert {"#0072b2", "#bdbdbd"} <= colours


def test_numbers_of_ranks_keep_all_their_digits():
    figure = figures.lines(
        {"predicted: a": ([0.5, 64, 1024, 6144], [1.0, 0.9, 0.8, 0.7])}, xlabel="GPUs", ylabel="efficiency", log="x"
    )
    figure.mpl.canvas.draw()
    assert [tick.get_text() for tick in figure.mpl.axes[0].get_xticklabels()] == ["0.5", "64", "1,024", "6,144"]


def test_timeline_counts_hidden_communication_once():
    spans = [
        (0, 0.0, 0.10, "compute", "a"),
        (0, 0.10, 0.20, "compute", "b"),
        (0, 0.15, 0.25, "communication", "x"),
        (0, 0.15, 0.25, "communication", "y"),
    ]
    figure = figures.rank_timeline(spans)
    assert title(figure) == "50% of the communication is hidden behind compute"
    assert "communication 40%" in figure.summary
    bars = figure.mpl.axes[0].collections
    tops = {to_hex(b.get_facecolor()[0]): b.get_paths()[0].vertices[:, 1].min() for b in bars}
    assert tops["#d55e00"] > tops["#0072b2"], "overlapping communication lies on a line of its own, below compute"


@pytest.mark.parametrize("span", [(0, 0.0, 1.0, "sleeping", ""), (0, 1.0, 0.0, "compute", "")])
def test_timeline_refuses_wrong_spans(span):
    with pytest.raises(ValueError, match=r"sleeping|before it starts"):
        figures.rank_timeline([span])


ORDER = [[[3, 0, 2], [1, 4, 3]], [[3, 0, 2], [1, 4, 3]]]
FRESH = [ORDER[0], [[1, 2, 0], [4, 3, 1]]]


def frames(figure):
    return [p for ax in figure.mpl.axes for p in ax.patches if to_hex(p.get_edgecolor()) == "#d55e00"]


def test_the_same_order_every_epoch_is_the_finding():
    figure = figures.who_has_what({"without set_epoch": ORDER, "with set_epoch": FRESH}, n_samples=5)
    assert (
        title(figure)
        == "Without set_epoch: every epoch repeats the same order; with set_epoch: every epoch has a new order"
    )
    assert "1 sample is seen again in an epoch; all 5 are seen" in figure.summary
    assert [ax.get_title(loc="left") for ax in figure.mpl.axes] == ["without set_epoch", "with set_epoch"]
    numbers = [t.get_text() for t in figure.mpl.axes[0].texts if t.get_text().isdigit()]
    assert numbers == [str(i) for epoch in ORDER for rank in epoch for i in rank]


def test_the_padding_is_framed_not_the_first_copy():
    (frame,) = frames(figures.who_has_what([ORDER[0]]))
    assert (int(frame.get_x()), int(frame.get_y())) == (2, 1)
    assert not frames(figures.who_has_what([[[0, 1], [2, 3]]]))


def test_samples_that_nobody_sees_are_named():
    figure = figures.who_has_what([[[0, 1], [2, 3]]], n_samples=6)
    assert title(figure) == "Every sample goes to one rank, 2 of 6 are missed"
    assert "nobody saw 2 of 6 (4 and 5)" in figure.summary


def test_many_samples_keep_their_colours_only():
    figure = figures.who_has_what([[list(range(100)), list(range(100, 200))]])
    assert len(figure.mpl.axes[0].patches) == 200
    assert not any(t.get_text().isdigit() for t in figure.mpl.axes[0].texts)


# Pictures


def test_pictures_say_which_predictions_are_right():
    x = np.random.default_rng(0).random((3, 3, 8, 8))
    figure = figures.images(x, [("cat", "cat"), ("cat", "dog"), ("emu", "emu")])
    texts = [ax.texts[0].get_text() for ax in figure.mpl.axes]
    assert texts == ["✓ cat", "✗ dog\n(is cat)", "✓ emu"]
    assert figure.summary == "2 of these 3 predictions are right; wrong: dog instead of cat."
    assert figure.mpl.axes[0].images[0].get_array().shape == (8, 8, 3)


def test_pictures_of_all_ranges_are_drawn_from_0_to_1():
    for x in (np.full((1, 1, 4, 4), 255, dtype=np.uint8), np.ones((1, 4, 4)), np.linspace(-2, 3, 16).reshape(1, 4, 4)):
        array = figures.images(x, ["a"]).mpl.axes[0].images[0].get_array()
        assert array.shape == (4, 4)
        assert array.max() == 1.0 and array.min() >= 0.0


def test_tensors_can_be_drawn():
    torch = pytest.importorskip("torch")
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    array = figures.images(x, ["a", "b"]).mpl.axes[1].images[0].get_array()
    assert np.allclose(array, x[1].permute(1, 2, 0).detach().numpy())


def test_each_picture_needs_its_title():
    with pytest.raises(ValueError, match="2 pictures and 1 titles"):
        figures.images(np.zeros((2, 4, 4)), ["a"])


def test_rows_of_a_timeline_may_be_the_workers_of_a_loader():
    spans = [(0, 0.0, 0.4, "waiting", ""), (0, 0.4, 1.0, "compute", "0"), (1, 0.1, 0.4, "loading", "0")]
    figure = figures.rank_timeline(spans, names={0: "the loop", 1: "worker 1"})
    assert [label.get_text() for label in figure.mpl.axes[0].get_yticklabels()] == ["the loop", "worker 1"]
    assert (
        "The loop waits 40% of the time" in figure.summary
        and "worker 1 loading 30%" in figure.summary
        and "rank" not in figure.summary
    )


def test_rows_of_who_has_what_may_be_workers():
    figure = figures.who_has_what([[[0, 1], [0, 1]]], n_samples=2, row="worker")
    assert "ome samples go to two workers" in figure.summary
    assert [label.get_text() for label in figure.mpl.axes[0].get_yticklabels()] == ["worker 0", "worker 1"]


def test_a_logarithmic_axis_marks_the_numbers_of_ranks_and_writes_them_plainly():
    figure = figures.lines(
        {"measured": ([1, 2, 4, 8, 64], [0.5, 3.0, 20.0, 100.0, 2_000_000.0])},
        xlabel="ranks",
        ylabel="updates",
        log="xy",
    )
    axis = figure.mpl.axes[0]
    figure.mpl.canvas.draw()
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "2", "4", "8", "64"]
    shown = [tick.get_text() for tick in axis.get_yticklabels()]
    assert "1" in shown and "100" in shown and any("10^{6}" in text for text in shown), shown
