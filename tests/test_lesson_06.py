"""Lesson 06: what it says of its experiments, for every guess; the figure of a schedule; and the file to take home."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, concludes_nothing, disturb, program_of, takes_nonsense
from conftest import made_run as run

import lesson_06
from course_utils import Run, launch
from course_utils.cells.claims import ClaimError
from course_utils.figures import Figure
from course_utils.predict import simulate_pipeline
from course_utils.results.emulated import Emulated
from lesson_06 import IDLE, deeper

NOTEBOOK = ROOT / "notebooks" / "06_model_and_pipeline_parallel.ipynb"


def steps(seconds: float) -> Run:
    """A pipeline on eight GPUs whose last step took so long."""
    asked = list(lesson_06.ASKED)
    return run(*[[{"asked": asked, "step_s": 2 * seconds}, {"asked": asked, "step_s": seconds}]] * 8)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "It takes 80 GiB: weights 20, gradients 20, Adam's two running means 40. Activations"),
        (80, "You said 80 GiB: you counted everything."),
        ("79 GiB", "You said 79 GiB: you counted"),
        (20, "You said 20 GiB. That's the weights."),
        (21.5, "You said 21.5 GiB. That's the weights."),
        (40, "That's weights and gradients. Adam"),
        (60, "Nearly. Adam keeps *two*"),
        (10, "You said 10 GiB. Gradients are as large"),
        (300, "You said 300 GiB. Each parameter takes four"),
        ("lots", "Your bet should be a number of GiB, such as 10."),
    ],
)
def test_what_the_model_needs(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_06.show_needs(run([], stack="torch.OutOfMemoryError: CUDA out of memory"), guess)
    assert said in capsys.readouterr().out
    with pytest.raises(ClaimError, match="ran out of memory"):
        lesson_06.show_needs(run([], stack="KeyboardInterrupt"), guess)
    assert f"range({lesson_06.LAYERS})" in program_of("06", "one_gpu.py") and f"({lesson_06.WIDTH}, " in program_of(
        "06", "one_gpu.py"
    )


def test_two_gpus_take_turns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spans = [
        (0, 0.0, 2.0, "compute", "forward"),
        (1, 2.0, 8.0, "compute", "forward"),
        (0, 8.0, 12.0, "compute", "step"),
    ]
    monkeypatch.setattr(lesson_06, "_last_step", lambda run: spans)
    figure = lesson_06.show_two(run([{"step_s": 20.0}, {"step_s": 12.0}]))
    out = capsys.readouterr().out
    assert "A step takes 12.0 s. GPU 0 computes 50% of it and GPU 1 50%." in out and "✓ 2 more checks passed" in out
    assert [label.get_text() for label in figure.mpl.axes[0].get_yticklabels()] == ["GPU 0", "GPU 1"]
    spans.append((1, 8.0, 12.0, "compute", "step"))
    with pytest.raises(ClaimError):
        lesson_06.show_two(run([{"step_s": 12.0}]))


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "1.01 times: a step takes 15.1 s on 8 GPUs, as on two."),
        (1, "You said 1 times: they still take turns."),
        (4, "You said 4 times. That's how many more GPUs you have."),
        (8, "You said 8 times. There are four times the GPUs"),
        (0.3, "You said 0.3 times. It's no slower, either"),
        (None, "as on two."),
    ],
)
def test_eight_gpus_in_one_piece(
    guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Run, "emulated", property(lambda self: Emulated(Path(), "8xA100", 8)))
    monkeypatch.setattr(Emulated, "peaks", lambda self: [(1.0, 13 << 30)] * 8)
    two, cut = run([{"step_s": 15.2}]), steps(15.05)
    lesson_06.show_cut(two, cut, guess)
    out = capsys.readouterr().out
    assert said in out and "no GPU holds more than 13 GiB" in out and "✓ with the batch in one piece" in out
    with pytest.raises(ClaimError, match="as slow as two"):
        lesson_06.show_cut(run([{"step_s": 30.0}]), cut)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "5.8 times as fast, and the formula allows 6.6."),
        (5.8, "You said 5.8 times: you have a feeling for bubbles."),
        (8, "You said 8 times. That needs a pipeline without a bubble. With 32 micro-batches the formula allows 6.6."),
        (6.6, "You said 6.6 times. That's what the formula allows."),
        (32, "You said 32 times. The bubble is smaller"),
        (2, "You said 2 times. By now most GPUs work"),
    ],
)
def test_more_micro_batches(
    guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lesson_06, "_missing", lambda cut, many, m: "What's missing? Nothing.")
    figure = lesson_06.show_pieces(steps(15.05), {8: steps(3.67), 32: steps(2.605)}, guess)
    out = capsys.readouterr().out
    assert said in out and "✓ 32 micro-batches make" in out and "5.8 times as fast" in figure.summary + out
    with pytest.raises(ClaimError, match="no step beats the formula"):
        lesson_06.show_pieces(steps(15.05), {8: steps(3.67), 32: steps(2.0)}, guess)


def emulated(m: int, folder: Path) -> Run:
    """The program of the page on eight emulated GPUs."""
    (folder / "pipeline.py").write_text(program_of("06", "pipeline.py"))
    words = [lesson_06.LAYERS, lesson_06.WIDTH, m]
    return launch(folder / "pipeline.py", 8, words, cluster="8xA100", quiet=True)


def stakes() -> str:
    return str(nbformat.read(NOTEBOOK, as_version=4).cells[1].source)


def test_the_page_begins_with_what_the_emulated_gpus_say(tmp_path: Path) -> None:
    """Its stakes are typed, so they are compared: a step in one piece, and what a GPU holds."""
    found = emulated(1, tmp_path)
    held = max(nbytes for _, nbytes in found.emulated.peaks()) / 2**30
    assert f"a step takes {lesson_06._step_s(found):.1f} seconds" in stakes()
    assert f"with {held:.0f} GiB on each" in stakes()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_what_32_pieces_bring_and_what_they_cost(tmp_path: Path) -> None:
    one, many = emulated(1, tmp_path), emulated(32, tmp_path)
    assert 5 < lesson_06._step_s(one) / lesson_06._step_s(many) < 6.56
    before, after = lesson_06._parts(one), lesson_06._parts(many)
    assert after["backward"] > 1.1 * before["backward"] and after["sent"] < 0.02 < after["step"]
    assert after["step"] == pytest.approx(before["step"])


def test_bets_that_are_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(lesson_06, "_missing", lambda cut, many, m: "")
    out_of_memory, cut = run([], stack="CUDA out of memory"), {8: steps(3.67), 32: steps(2.605)}
    takes_nonsense(lambda guess: lesson_06.show_needs(out_of_memory, guess), capsys)
    takes_nonsense(lambda guess: lesson_06.show_pieces(steps(15.05), cut, guess), capsys)
    takes_nonsense(lambda guess: lesson_06.show_here(here(1.6, 1.0), guess), capsys)
    takes_nonsense(lambda guess: lesson_06.show_twice(run([{"norm": 0.8}, {"norm": 1.0}]), guess), capsys)


def test_a_reader_may_try_other_numbers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is claimed of them, and the page says how to go on."""
    monkeypatch.setattr(Run, "emulated", property(lambda self: Emulated(Path(), "8xA100", 8)))
    monkeypatch.setattr(Emulated, "peaks", lambda self: [(1.0, 5 << 30)] * 8)
    cut = steps(3.0)
    for rank in cut.ranks:
        rank.records[-1]["asked"] = ["16", "4096", "4"]
    lesson_06.show_cut(run([{"step_s": 15.2}]), cut, 8)
    out = capsys.readouterr().out
    assert "A step takes 3.0 s" in out and "That's with 16 4096 4. This page goes on with 80 8192 1" in out
    lesson_06.show_pieces(cut, {8: steps(3.67), 32: steps(2.605)}, 6)
    assert capsys.readouterr().out.startswith("That's with 16 4096 4.")


def here(one_s: float, many_s: float, ranks: int = 2, pieces: int = 8) -> Run:
    steps = [{"m": m, "step_s": s * (1 + k / 100)} for k in range(7) for m, s in ((1, one_s), (pieces, many_s))]
    return run(*[steps] * ranks)


@pytest.mark.parametrize(
    ("ranks", "guess", "said"),
    [
        (2, ..., "1.60 times as fast, and the formula allows 1.78."),
        (2, 1.6, "You said 1.6 times: you know your machine."),
        (2, 2, "You said 2 times. That would be a pipeline without a bubble."),
        (2, 1, "You said 1 times. With more pieces all stages work most of the time."),
        (2, 8, "You said 8 times. Each piece costs some Python"),
        (8, ..., "and the formula allows 6.56"),
    ],
)
def test_your_own_ranks(ranks: int, guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    gained = {2: 1.6, 8: 5.0}[ranks]
    figure = lesson_06.show_here(here(gained, 1.0, ranks, 4 * ranks), guess)
    out = capsys.readouterr().out
    assert said in out and f"✓ on your own ranks {4 * ranks} micro-batches are faster" in out
    assert f"{4 * ranks} micro-batches make a step {gained:.2f} times as fast" in str(
        figure.mpl._suptitle or figure.summary
    )


def test_your_own_ranks_too_close_to_call(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_06.show_here(here(1.0, 1.01))
    assert "○ not shown here: on your own ranks 8 micro-batches" in capsys.readouterr().out


def test_your_own_ranks_beside_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_06.show_here(disturb(here(1.0, 3.0)), 1.5)
    concludes_nothing(capsys.readouterr().out, "what micro-batches bring", 1.5)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "1.25 times as large."),
        (1.25, "You said 1.25 times: you've read the source."),
        (2, "You said 2 times. Autograd alone would do that."),
        (1, "You said 1 times. Then it would forget the first batch."),
        (8, "You said 8 times. Less: of the first"),
    ],
)
def test_stepping_twice(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_06.show_twice(run([{"norm": 0.8}, {"norm": 1.0}]), guess)
    assert said in capsys.readouterr().out
    with pytest.raises(ClaimError, match="the sum of two gradients"):
        lesson_06.show_twice(run([{"norm": 0.8}, {"norm": 1.6}]), guess)


def test_the_program_that_steps_twice(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(program_of("06", "twice.py"))
    lesson_06.show_twice(launch(tmp_path / "twice.py", 2, device="cpu", threads=1, quiet=True))


def test_the_twins(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_06.show_same_gradients()
    assert "2 stages: the largest difference is" in capsys.readouterr().out


def in_one_piece(take_home: Any, steps: int) -> torch.Tensor:
    """The weights that its model has after so many steps of a plain loop."""
    model = take_home.Stage(0, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        x, y = take_home.batch(step, 64)
        take_home.loss_of(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


TAKE_HOME = {"1": (1, []), "2": (2, []), "2 x 2": (4, ["--stages", "2"])}


@pytest.mark.timeout(200)
def test_the_file_to_take_home_trains_alike_in_stages_and_in_pipelines(tmp_path: Path) -> None:
    """One rank, two stages, and two pipelines of two: the same losses, a file that loads whole, and the weights of a
    plain loop."""
    spec = importlib.util.spec_from_file_location("take_home_06", lesson_06.TAKE_HOME)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    losses, weights = [], [in_one_piece(module, 6)]
    for name, (ranks, args) in TAKE_HOME.items():
        folder = tmp_path / name
        folder.mkdir()
        answer = torchrun(lesson_06.TAKE_HOME, "--steps", "6", *args, ranks=ranks, cwd=folder)
        assert answer.returncode == 0, answer.stderr
        losses.append([float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", answer.stdout)])
        whole = module.Stage(0, 1)
        whole.load_state_dict(torch.load(folder / "06_pipeline.pt")["model"])
        weights.append(torch.cat([p.flatten() for p in whole.parameters()]))
    assert len(losses[0]) == 2 and losses[0][1] < losses[0][0]
    assert all(abs(a - b) < 2e-3 for other in losses[1:] for a, b in zip(losses[0], other, strict=True)), losses
    # Adam divides by the gradients' size, so where that's nothing but rounding, weights part. There are few such.
    for other in weights[1:]:
        assert ((weights[0] - other).abs() < 1e-4).float().mean() > 0.99


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--stages", "3"], "3 stages won't do: give --stages, a divisor of 1 ranks"),
        (["--micro-batches", "0"], "--micro-batches has to be at least"),
        (["--batch", "30"], "a multiple of pipelines x micro-batches"),
    ],
)
@pytest.mark.slow
def test_the_file_to_take_home_refuses(args: list[str], says: str, tmp_path: Path) -> None:
    answer = torchrun(lesson_06.TAKE_HOME, *args, ranks=1, cwd=tmp_path)
    assert answer.returncode and says in answer.stderr + answer.stdout


# --- the deeper part --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_six_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    found = launch(lesson_06.SCHEDULES, 4, cluster="4xA100", quiet=True)
    assert len(lesson_06.show_orders(found).rows) == 6
    lesson_06.show_held(found)
    assert "ZBV" in lesson_06.show_schedules(found).summary
    assert capsys.readouterr().out.count("✓") == 6


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "32% longer."),
        (32, "You said 32%: everybody waits"),
        (12, "You said 12%. That's how much more work there is."),
        (50, "You said 50%. Nearly"),
        (5, "You said 5%. Once the pipeline is full"),
        (400, "You said 400%. Filling and emptying"),
        ("slow", "Your bet should be a percentage, such as 10."),
    ],
)
def test_a_slow_stage(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    even, slow = (run(*[[{"step_s": s}]] * 4) for s in (0.265, 0.349))
    lesson_06.show_slow(even, slow, guess)
    assert said in capsys.readouterr().out
    with pytest.raises(ClaimError, match="more than its share"):
        lesson_06.show_slow(even, even, guess)


def test_branches_want_the_copy_first(capsys: pytest.CaptureFixture[str]) -> None:
    times = {"one_gpu": 0.5, "copy_late": 0.5, "copy_first": 0.25}
    found = run([{"way": way, "forward_s": s} for way, s in times.items()])
    lesson_06.show_branches(found, 1)
    assert "You said 1 times. That's what you get with the copy in the wrong place." in capsys.readouterr().out
    found.ranks[0].records[1]["forward_s"] = 0.25
    with pytest.raises(ClaimError, match="if the copy comes first"):
        lesson_06.show_branches(found)


def test_published_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    table = lesson_06.show_published()
    assert "6 of 10 stay below the formula, and 3 lie above it." in capsys.readouterr().out and len(table.errors) == 10
    assert deeper.speedup_bound(4, 4) == pytest.approx(16 / 7) and deeper.speedup_bound(8, 1) == 1


# --- the figure of a schedule -----------------------------------------------------------------------------------------


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
