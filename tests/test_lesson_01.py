"""Lesson 01: what it says of its experiments, for every guess, with a compiler and without; that its exercise notebook
shows what its checks judge; and the file to take home."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from by_torchrun import torchrun
from conftest import ROOT, checks, concludes_nothing, disturb, made_run, takes_nonsense

import lesson_01
from course_utils import Run
from course_utils.cells.claims import ClaimError
from course_utils.check import check_exercise, digest
from course_utils.figures import Figure
from course_utils.predict import BreakEven
from course_utils.results.samples import Samples

PAID_CASES = checks("lesson_01.cases").PAID_CASES
HANDED_OUT, first_paid = checks("lesson_01.judge").HANDED_OUT, checks("lesson_01.judge").first_paid
NAME = "01_torchscript_and_compile_exercises.ipynb"


def cells(kind: str) -> list[str]:
    return [
        cell.source for cell in nbformat.read(ROOT / "exercises" / NAME, as_version=4).cells if cell.cell_type == kind
    ]


def handed_out() -> dict[str, str]:
    sources = [source.partition("\n") for source in cells("code") if source.startswith("%%exercise 01.")]
    return {head[-1]: body + "\n" for head, _, body in sources if head[-1] in HANDED_OUT}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_NOTEBOOK", NAME)


def test_the_five_functions_are_shown_as_they_are_judged() -> None:
    functions = checks("lesson_01.functions")
    shown = next(text for text in cells("markdown") if text.startswith("## 01.1"))
    without_remarks = "\n".join(line.partition("  #")[0].rstrip() for line in shown.splitlines())
    for name in "abcde":
        source = inspect.getsource(getattr(functions, name)).replace("  # noqa: F841", "")
        assert source in without_remarks + "\n", name


def test_the_functions_to_mend_are_known_as_they_are_handed_out() -> None:
    assert {number: digest(source) for number, source in handed_out().items()} == HANDED_OUT


@pytest.mark.parametrize(
    ("number", "says"),
    [("2", "torch.jit.script does not take it"), ("3", "line 14 of the cell"), ("5", "everything ran in eager mode")],
)
def test_what_was_handed_out_shows_its_fault_and_is_not_done_yet(
    number: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_exercise(f"01.{number}", handed_out()[number])
    shown = " ".join(capsys.readouterr().out.split())
    assert "not done yet. You haven't changed the program so far" in shown and says in shown


@pytest.mark.parametrize("case", PAID_CASES)
def test_the_smallest_number_of_calls_is_what_counting_gives(case: tuple[int, int, int]) -> None:
    first, eager, compiled = case
    n = first_paid(*case)
    if n is None:
        assert compiled >= eager and first > eager
        return
    assert first + (n - 1) * compiled <= n * eager
    assert n == 1 or first + (n - 2) * compiled > (n - 1) * eager


def curve(once_s: float, each_s: float, calls: range) -> list[tuple[float, float]]:
    return [(n, once_s + n * each_s) for n in calls]


def test_the_break_even_figure_tells_what_it_draws() -> None:
    model = BreakEven(once_s=2.2, before_s=0.010, after_s=0.006)
    after = [curve(once, 0.006, range(1, 1001, 20)) for once in (1.9, 2.0, 2.1)]
    figure = lesson_01.break_even(curve(0.0, 0.010, range(1, 1001, 20)), after, model, guess=300)
    assert "after 500 calls; the model said 550" in figure.mpl.get_suptitle().replace("\n", " ")
    assert "paid back after 475, 500 and 525 calls" in figure.summary
    assert "predicted 550" in figure.summary and "guessed 300" in figure.summary
    labels = [text.get_text() for text in figure.mpl.axes[0].get_legend().get_texts()]
    assert labels == ["measured: eager", "measured: compiled, 3 repeats", "predicted", "your guess"]


def test_the_break_even_figure_says_when_it_was_not_reached_and_no_guess_made() -> None:
    figure = lesson_01.break_even(curve(0.0, 0.010, range(1, 100)), [curve(2.0, 0.006, range(1, 100))], guess=...)
    assert figure.mpl.get_suptitle() == "Within 99 calls compiled has not caught up with eager"
    assert figure.summary.endswith("No guess was made.") and "paid back" not in figure.summary


def test_a_guess_far_out_is_told_and_does_not_squeeze_the_figure() -> None:
    figure = lesson_01.break_even(
        curve(0.0, 0.010, range(1, 1001, 20)), [curve(2.0, 0.006, range(1, 1001, 20))], guess=50_000
    )
    ax = figure.mpl.axes[0]
    assert ax.get_xlim()[1] < 1100 and "guessed 50,000" in figure.summary
    assert "your guess: 50,000 →" in [text.get_text() for text in ax.texts]
    assert "your guess" not in [text.get_text() for text in ax.get_legend().get_texts()]


def test_ratios_lie_on_a_logarithmic_axis_and_are_counted_by_their_quartiles() -> None:
    values = {
        "dead code": {"script": Samples([9.8, 10.0, 10.2]), "compile": Samples([4.0])},
        "noise": {"script": Samples([0.9, 1.0, 1.1])},
        "integers": {"script": Samples([0.30, 0.31, 0.32])},
    }
    figure = lesson_01.ratios(values, guess={"dead code": 3, "integers": ...})
    assert figure.mpl.axes[0].get_xscale() == "log"
    assert figure.mpl.get_suptitle() == "Script: 1 of 3 became faster, 1 slower"
    assert "dead code: script 10, compile 4, guessed 3" in figure.summary and "integers: script 0.31" in figure.summary
    assert [t.get_text() for t in figure.mpl.axes[0].get_yticklabels()] == list(values)


def test_ratios_refuse_what_they_cannot_draw() -> None:
    with pytest.raises(ValueError, match="at least one case"):
        lesson_01.ratios({})
    with pytest.raises(ValueError, match="above zero"):
        lesson_01.ratios({"x": {"script": 0.0}})
    with pytest.raises(KeyError, match="does not show"):
        lesson_01.ratios({"x": {"script": 2.0}}, guess={"y": 1})


# --- what it says of its experiments ----------------------------------------------------------------------------------


def run(*records: dict[str, Any], script: str = "race.py") -> Run:
    return made_run(list(records), script=script)


def race(
    first: float = 12.0,
    eager: float = 0.06,
    compiled: float = 0.03,
    kernels: int = 6,
    off: float = 0.0,
    noise: float = 0,
) -> Run:
    """An eager and a compiled training as lesson 01's program reports them."""
    records: list[dict[str, Any]] = []
    for name, once, step_s in (("eager", eager, eager), ("compiled", first, compiled)):
        for i in range(30):
            loss = 1 / (1 + i) * (1 + off * (name == "compiled"))
            records.append({"name": name, "loss": loss, "step_s": step_s * (1 + noise * (i % 3)) if i else once})
    return run(*records, {"kernels": kernels})


@pytest.fixture(autouse=True)
def operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesson_01, "_counted", lambda script: 48)


def title(figure: Figure) -> str:
    return " ".join(str(figure.mpl.get_suptitle()).split())


def test_where_there_is_no_compiler_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    for found, backend, said in ((["g++"], "inductor", "C++ compiler: g++"), ([], "aot_eager", "No C++ compiler")):
        monkeypatch.setattr(lesson_01.shutil, "which", lambda name, found=found: name in found or None)
        assert lesson_01.backend() == backend and said in capsys.readouterr().out


def test_the_painting(capsys: pytest.CaptureFixture[str]) -> None:
    picture = [[[0.1, 0.2, 0.3]] * 4] * 4
    steps = [{"name": "eager", "loss": 0.5 / (i + 1), "step_s": 0.05} for i in range(10)]
    figure = lesson_01.show_painting(run(*steps, {"picture": picture}, {"picture": picture}))
    assert "10 steps of 50 ms, and the loss fell from 0.5 to 0.05." in capsys.readouterr().out and figure.mpl.axes
    with pytest.raises(ClaimError, match="learned to paint"):
        lesson_01.show_painting(run(*steps[:1] * 5, {"picture": picture}, {"picture": picture}))


@pytest.mark.parametrize(
    ("settings", "guess", "said", "drawn"),
    [
        ({}, ..., "all later ones 30 ms instead of 60 ms, 2.0 times as fast. You made no bet.", "2.0 times"),
        ({}, 10, "You said 10 s: you've waited", "2.0 times"),
        ({}, 1, "You said 1 s: a C++ compiler has to start", "2.0 times"),
        ({}, 60, "it could have been worse", "2.0 times"),
        ({}, "long", "should be a number of seconds", "2.0 times"),
        ({}, -1, "should be a number of seconds", "2.0 times"),
        ({"compiled": 0.058, "noise": 0.5}, ..., "Too close to tell", "about as long here"),
        ({"kernels": 0, "compiled": 0.07}, ..., "– not run here: compiled, a training step is faster", "Without a C++"),
    ],
)
def test_one_line(
    settings: dict[str, Any], guess: Any, said: str, drawn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = lesson_01.show_one_line(race(**settings), guess)
    out = capsys.readouterr().out
    assert said in out and drawn in title(figure) and "✓ compiled, it's the same training" in out
    assert ("48 operators" in out and "6 kernels" in out) == (settings.get("kernels") != 0)


def test_in_a_notebook_a_wrong_bet_hides_no_number_behind_a_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    monkeypatch.setattr("IPython.display.display", lambda thing: None)
    at_once = str(next(iter(lesson_01.show_one_line(race(), 1).below)))
    assert all(words in at_once for words in ("took 12 s", "30 ms instead of 60 ms", "You said 1 s", "6 kernels"))
    at_once = str(next(iter(lesson_01.show_again(compilations(), "sizes").below)))
    assert all(words in at_once for words in ("You said sizes, as most do", "compiled 8 times", "compiled once"))


def test_another_training_or_a_slower_one_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClaimError, match="the same training"):
        lesson_01.show_one_line(race(off=0.1))
    lesson_01.show_one_line(race(compiled=0.09))
    assert "✗ the wrong way round here: compiled, a training step is faster" in capsys.readouterr().out
    with pytest.raises(ClaimError, match="the first step is the slow one"):
        lesson_01.show_one_line(race(first=0.03))


@pytest.mark.parametrize(
    ("settings", "guess", "said", "drawn"),
    [
        ({}, ..., "is about 400 steps, or 23.9 s of training.\n", "Paid back after about 400 steps"),
        ({}, 300, "You said 300: close enough", "400"),
        ({}, 5000, "You said 5,000. It comes sooner", "400"),
        ({}, 10, "You said 10. It comes later", "400"),
        ({}, "many", "should be a number of steps", "400"),
        ({"compiled": 0.08}, 100, "saved nothing here, so nothing pays it back. You said 100.", "saves nothing here"),
        ({"compiled": 0.08}, 0, "should be a number of steps", "saves nothing here"),
        ({"first": 0.01}, ..., "is about 0 steps", "Paid back after about 0 steps"),
        ({"first": 0.01}, 300, "You said 300. It comes sooner", "Paid back after about 0 steps"),
    ],
)
def test_what_one_line_costs_and_when_it_is_paid_back(
    settings: dict[str, Any], guess: Any, said: str, drawn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = lesson_01.show_break_even(race(**settings), guess)
    out = capsys.readouterr().out
    assert said in out and drawn in title(figure) and "inf" not in out + figure.summary
    assert "Compiled, they take 12.0 hours." in out or settings.get("compiled")


def test_the_explorer_starts_from_the_readers_numbers_and_says_what_it_draws() -> None:
    shown = repr(lesson_01.pays_back(lesson_01.paid(race())))
    assert "12 s of compiling, 60 ms a step without it and 30 ms with it: paid back after about 400 steps" in shown
    assert "no number of steps pays it back" in repr(lesson_01.pays_back(eager_ms=5, compiled_ms=6))
    assert "about 4,000 steps would pay it back" in repr(
        lesson_01.pays_back(compile_s=15, times=8, eager_ms=60, compiled_ms=30, steps=1000)
    )
    lesson_01.pays_back(compile_s=1e9, eager_ms=0.0)  # as a broken clock has it: drawn at the end of the slider
    with pytest.raises(ValueError, match="compiled_ms"):
        lesson_01.pays_back(compiled_ms="fast")


GOOD: dict[str, Any] = {"name": "mended", "graphs": 1, "cuts": []}
BAD: dict[str, Any] = {"name": "watched", "graphs": 2, "cuts": ["  if y.isnan().any():"]}


@pytest.mark.parametrize(
    ("guess", "said"),
    [(..., ""), (2, "You said 2: one up to the if"), (1, "You said 1. Python needs"), (5, "You said 5. There's one")],
)
def test_graph_breaks(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_01.show_breaks(run(BAD, GOOD), guess)
    out = capsys.readouterr().out
    assert f"With the if: 2 graphs. {said}".strip() in out and "Cut at `if y.isnan().any():`" in out
    with pytest.raises(ClaimError, match="one graph"):
        lesson_01.show_breaks(run(BAD, GOOD | {"graphs": 3}), guess)
    with pytest.raises(ClaimError, match="the if breaks the graph"):
        lesson_01.show_breaks(run(BAD | {"graphs": 1}, GOOD), guess)


def test_fullgraph_makes_the_if_an_error() -> None:
    """What the lesson says of it, on this torch."""
    import torch

    def watched(x: torch.Tensor) -> torch.Tensor:
        if x.isnan().any():
            raise ValueError("a hole")
        return x.clamp(0, 1)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="[Dd]ata-dependent"):
        torch.compile(watched, fullgraph=True, backend="eager")(torch.rand(3))
    compiled = torch.compile(lambda x: x.clamp(0, 1), fullgraph=True, backend="eager")
    assert compiled(torch.full((3,), 2.0)).tolist() == [1.0] * 3


@pytest.mark.parametrize(("p", "graphs"), [(None, [1, 1, 2]), (0.1, [1, 2, 3])])
def test_eval_compiles_again_only_where_something_reads_training(p: float | None, graphs: list[int]) -> None:
    """Graphs after a call in train(), one in eval(), and one in train() under no_grad()."""
    import torch
    from torch._dynamo.utils import counters

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Identity() if p is None else torch.nn.Dropout(p)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x.exp())

    torch.compiler.reset()
    counters.clear()
    model, x, found = Model(), torch.rand(3, requires_grad=True), []
    compiled = torch.compile(model, backend="eager")
    for training, grad in ((True, True), (False, True), (True, False)):
        model.train(training)
        with torch.set_grad_enabled(grad):
            compiled(x)
        found.append(counters["stats"]["unique_graphs"])
    assert found == graphs
    page = (ROOT / "notebooks" / "01_torchscript_and_compile.ipynb").read_text()
    assert "<code>eval()</code>, if something in <code>forward</code> reads <code>training</code>" in page


def compilations(counter: int = 8, sizes: int = 2) -> Run:
    return run(
        *(
            {"name": name, "compiled": min(step + 1, most)}
            for name, most in {"sizes": sizes, "counter": counter, "tensor": 1}.items()
            for step in range(12)
        ),
        {"limit": 8},
    )


@pytest.mark.parametrize(
    ("guess", "said"),
    [(..., ""), ("counter", "saw it coming"), ("sizes", "as most do"), (8, 'should be "sizes" or "counter"')],
)
def test_compiled_again(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_01.show_again(compilations(), guess)
    out = capsys.readouterr().out
    assert said in out and "12 batch sizes: compiled 2 times; a counter in Python: compiled 8 times" in out
    assert title(figure) == "One counter, 8 compilations; 12 batch sizes, 2"
    with pytest.raises(ClaimError, match="costs more than a shape"):
        lesson_01.show_again(compilations(counter=2))
    with pytest.raises(ClaimError, match="one graph fits all"):
        lesson_01.show_again(compilations(sizes=3))


def products(script: float = 5e-6, read: str = "prim::Loop aten::mul") -> Run:
    """Times of ten products, and the graphs."""
    records: list[dict[str, Any]] = [
        {"version": version, "call_s": ten * (1 + i / 100)}
        for version, ten in (("eager", 9e-6), ("script", script), ("trace", script))
        for i in range(5)
    ]
    muls = "aten::mul\n" * 10
    return run(*records, {"script": read, "trace": muls, "optimised": muls})


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "Ten products take 9.2 µs in eager mode and 5.1 µs scripted, 1.8 times as fast.\nOptimised, the"),
        (1.7, "You said 1.7: well judged."),
        (10, "You said 10, but Python is only a part"),
        (1, "You said 1. It's better than you thought."),
        ("fast", "should be a number, such as 3."),
        (-1, "should be a number, such as 3."),
    ],
)
def test_the_ten_products(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_01.show_classic(products(), guess)
    out = capsys.readouterr().out
    assert said in out and "still has 10 products." in out and "✓ scripted, ten products are less than twice" in out
    assert title(figure) == "Scripted, ten products are 1.8 times as fast here; 4.2 times were published"
    assert "published on an unnamed CPU" in " ".join(figure.summary.split())


def test_a_faster_script_is_no_failure_and_a_missing_loop_is(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_01.show_classic(products(script=1e-6))
    assert "○ not shown here: scripted, ten products are less than twice" in capsys.readouterr().out
    with pytest.raises(ClaimError, match="script keeps the loop"):
        lesson_01.show_classic(products(read="aten::mul"))


@pytest.mark.parametrize(
    "show",
    [
        lambda guess: lesson_01.show_one_line(race(), guess),
        lambda guess: lesson_01.show_break_even(race(), guess),
        lambda guess: lesson_01.show_break_even(race(compiled=0.08), guess),
        lambda guess: lesson_01.show_breaks(run(BAD, GOOD), guess),
        lambda guess: lesson_01.show_again(compilations(), guess),
        lambda guess: lesson_01.show_classic(products(), guess),
    ],
    ids=["one_line", "break_even", "never", "breaks", "again", "classic"],
)
def test_a_bet_that_is_none(show: Callable[[object], object], capsys: pytest.CaptureFixture[str]) -> None:
    takes_nonsense(show, capsys)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "made each step 2.0 times as fast. It would be paid back after about 400 steps."),
        ({"compiled": 0.07}, "One line cost 12 s and saved nothing here."),
        ({"kernels": 0}, "Without a C++ compiler"),
    ],
)
def test_what_you_saw(settings: dict[str, Any], said: str) -> None:
    breaks = run({"name": "watched", "graphs": 2})
    words = str(lesson_01.what_you_saw(race(**settings), breaks, compilations(), products()))
    assert said in words
    assert all(
        part in words for part in ("cut one graph into 2", "start 8 times", "9.2 µs in eager mode and 5.1 µs scripted.")
    )


# --- on a busy machine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guess", [..., 10, 1])
def test_a_disturbed_run_does_not_say_what_one_line_brings(guess: Any, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_01.show_one_line(disturb(race()), guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "what compiling costs and what it gains", guess)
    assert "○ not shown here: compiled, a training step is faster" in out and "✓ compiled, it's the same" in out
    assert "48 operators" in out and "12 s" not in out and "times as fast" not in out + title(figure)
    assert title(figure).startswith("Other programs used")
    lesson_01.show_one_line(disturb(race(kernels=0)), guess)
    assert "– not run here: compiled, a training step is faster" in capsys.readouterr().out


@pytest.mark.parametrize("guess", [..., 300, 5000])
def test_a_disturbed_run_does_not_say_when_compiling_is_paid_back(
    guess: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = lesson_01.show_break_even(disturb(race()), guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "after how many steps compiling is paid back", guess)
    assert "400" not in out + title(figure) and title(figure).startswith("Other programs used")
    given = lesson_01.paid(disturb(race()))
    assert given is None and "the controls begin at invented numbers" in capsys.readouterr().out
    assert "20 s of compiling" in repr(lesson_01.pays_back(given))


@pytest.mark.parametrize("guess", [..., 5, 2])
def test_a_disturbed_run_does_not_say_what_scripting_gains(guess: Any, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_01.show_classic(disturb(products()), guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "what scripting gains", guess)
    assert "○ not shown here: scripted, ten products" in out and "µs" not in out and "still has 10 products" in out
    assert title(figure).startswith("Other programs used")


def test_a_disturbed_painting_is_still_a_painting(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"name": "eager", "loss": 0.5 / (i + 1), "step_s": 0.05} for i in range(10)]
    picture = {"picture": [[[0.1, 0.2, 0.3]] * 4] * 4}
    lesson_01.show_painting(disturb(run(*steps, picture, picture)))
    assert "10 steps, and the loss fell from 0.5 to 0.05." in capsys.readouterr().out


def test_the_end_repeats_no_disturbed_number() -> None:
    breaks = run({"name": "watched", "graphs": 2})
    words = str(lesson_01.what_you_saw(disturb(race()), breaks, compilations(), disturb(products())))
    assert "Run section 2 again" in words and "Run section 6 again" in words and "µs" not in words
    assert "times as fast" not in words and "400" not in words and "cut one graph into 2" in words


def test_the_deeper_sections_conclude_nothing_from_disturbed_runs(capsys: pytest.CaptureFixture[str]) -> None:
    gains = {"a": 5.0, "b": 9.0, "c": 20.0, "d": 4.5, "e": 0.5, "f": 0.2}
    timed = [
        {"case": case, "version": version, "call_s": 1e-5 / (gain if version == "script" else 1)}
        for case, gain in gains.items()
        for version in ("eager", "script")
    ]
    gained = {"eager": 0.5, "script": 1.5}
    records = [{"version": v, "one_per_s": 100.0, "two_per_s": 100 * g, "gain": g} for v, g in gained.items()]
    forked = [{"version": v, "call_s": s} for v, s in (("in turn", 2.0), ("forked", 1.1)) for _ in range(3)]
    model = BreakEven(2.2, 0.01, 0.002)
    for about, draw in {
        "what became faster": lambda: lesson_01.show_won(disturb(run(*timed)), dict.fromkeys(gains, ...)),
        "what a second thread gains": lambda: lesson_01.show_threads(
            disturb(run({"gil": True}, *records)), dict.fromkeys(("eager", "script"), ...), 2
        ),
        "what forking gains": lambda: lesson_01.show_forked(disturb(run(*forked)), 2),
        "when compiling is paid back": lambda: lesson_01.show_race(disturb(chain(2.0)), model, guess=...),
    }.items():
        figure = draw()
        out = capsys.readouterr().out
        concludes_nothing(out, about)
        assert "✓" not in out and "○ not shown here" in out and title(figure).startswith("Other programs used"), about
    shown = repr(lesson_01.show_residuals(disturb(chain(2.0)), model))
    out = capsys.readouterr().out
    concludes_nothing(out, "where the prediction was off")
    assert "Other programs used" in shown and "predicted 275 calls" not in out


# --- the deeper sections ----------------------------------------------------------------------------------------------


def test_winners_and_losers(capsys: pytest.CaptureFixture[str]) -> None:
    gains = {"a": 5.0, "b": 9.0, "c": 20.0, "d": 4.5, "e": 0.5, "f": 0.2}
    timed = [
        {"case": case, "version": version, "call_s": 1e-5 / (gain if version == "script" else 1)}
        for case, gain in gains.items()
        for version in ("eager", "script")
        for _ in range(3)
    ]
    lesson_01.show_won(run(*timed), dict.fromkeys(gains, ...))
    assert "✓ four of the functions or more are at least 4 times as fast" in capsys.readouterr().out
    lesson_01.show_won(run(*timed), {"a": 3, "e": ...})
    assert "○ not shown here: four of the functions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cores", "gil", "said"),
    [(2, True, "✓ scripted code gains"), (1, True, "needs two cores"), (8, False, "this Python has no lock")],
)
def test_threads(cores: int, gil: bool, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    gains = {"eager": 0.5, "script": 1.5}
    records = [
        {"version": v, "one_per_s": 100.0, "two_per_s": 100 * g, "gain": g} for v, g in gains.items() for _ in range(5)
    ]
    lesson_01.show_threads(run({"gil": gil}, *records), dict.fromkeys(gains, ...), cores)
    assert said in capsys.readouterr().out


def chain(once_s: float, writes_code: bool = True) -> Run:
    records: list[dict[str, Any]] = []
    for version, once, each in (("eager", 0.0, 0.01), *((f"compiled {i}", once_s, 0.002) for i in range(3))):
        records += [
            {"version": version, "calls": n, "total_s": once + n * each, "call_s": each + once * (n == 1)}
            for n in range(1, 1001, 9)
        ]
    return run({"writes_code": writes_code}, *records)


@pytest.mark.parametrize(
    ("once_s", "writes", "said"),
    [
        (2.0, True, "✓ compiling is paid back after as many calls as predicted"),
        (7.0, True, "○ not shown here: compiling is paid back"),
        (2.0, False, "– not run here: compiling is paid back"),
    ],
)
def test_the_race(once_s: float, writes: bool, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = BreakEven(2.2, 0.01, 0.002)
    lesson_01.show_race(chain(once_s, writes), model, guess=...)
    lesson_01.show_residuals(chain(once_s, writes), model)
    out = capsys.readouterr().out
    assert said in out and "predicted 275 calls" in out
    assert re.search(r"Recorded on NVIDIA H200, .*: \d+ calls\. Compiling took 0\.\d+ s", out)


def test_forked(capsys: pytest.CaptureFixture[str]) -> None:
    timed = run(*({"version": v, "call_s": s} for v, s in (("in turn", 2.0), ("forked", 1.1)) for _ in range(3)))
    assert "0.55 of the time" in title(lesson_01.show_forked(timed, 2))
    lesson_01.show_forked(timed, 1)
    assert "needs two cores" in capsys.readouterr().out


def test_what_inference_and_training_leave_of_sixteen_products(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On this torch: it's counted, and nothing is compiled."""
    notebook = nbformat.read(ROOT / "notebooks" / "01_torchscript_and_compile.ipynb", as_version=4)
    (cell,) = (c for c in notebook.cells if c.source.startswith("%%ranks 1 --file functions.py"))
    (tmp_path / "functions.py").write_text(cell.source.partition("\n")[2])
    won = run({"case": "same product 8 times", "after": "aten::matmul( aten::mm("}, script=str(tmp_path / "won.py"))
    lesson_01.show_products(won)
    assert "torch.compile leaves 16 under no_grad, and 2 in the forward pass" in capsys.readouterr().out


# --- the file to take home --------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_file_to_take_home_says_whether_it_pays(ranks: int, tmp_path: Path) -> None:
    """Under torchrun, with a backend that needs no C++ compiler."""
    args = ["--steps", "8", "--batch-size", "64", "--backend", "aot_eager"]
    answer = torchrun(lesson_01.TAKE_HOME, *args, ranks=ranks, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    losses = re.search(r"loss after 8 steps: eager ([\d.]+), compiled ([\d.]+)", answer.stdout)
    assert losses and losses[1] == losses[2], answer.stdout
    assert re.search(r"eager [\d.]+ ms a step, compiled [\d.]+ ms, the first [\d.]+ s", answer.stdout)
    assert "graphs: 1, compiled" in answer.stdout and re.search(r"paid back after|saves nothing", answer.stdout)
    assert answer.stdout.count("loss after") == 1, "one rank prints"


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "More than the paper's 1.41"),
        (2.3, "You said 2.3: you've seen where its time goes."),
        (9, "You said 9. Its products of matrices were fast before"),
        (1.4, "You said 1.4. Attention keeps a matrix"),
    ],
)
def test_gpt_2(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What's published is read; what's emulated is a stand-in here, 5% off."""

    def launched(path: Path, ranks: int, args: list[str], **_: Any) -> Run:
        took = dict(zip(args, (1.05, 0.35, 0.315, 0.1365, 0.1008, 0.0977), strict=True))
        return made_run([{"case": case, "step_s": step_s} for case, step_s in took.items()])

    monkeypatch.setattr(lesson_01.deeper, "launch", launched)
    figure = lesson_01.show_gpt2(guess)
    out = " ".join(capsys.readouterr().out.split())
    assert "Measured: 300 ms before and 130 after, 2.3 times as fast." in out and said in out, out
    assert "goes from 315 to 136 ms" in out and "1 more check passed" in out
    assert "emulated 315" in figure.summary and "published" in figure.summary


@pytest.mark.slow
def test_gpt_2_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_01.show_gpt2()
    assert "1 more check passed" in capsys.readouterr().out
