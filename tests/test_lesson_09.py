"""Lesson 09: what it says of its experiments, for every guess; its figure of kills; and the file to take home."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, concludes_nothing, disturb, takes_nonsense

import lesson_09
from course_utils import Run, launch
from course_utils.cells.claims import ClaimError
from course_utils.results.emulated import Emulated
from course_utils.results.rank_result import RankResult
from lesson_09 import kill_marks, room, saving

NOTEBOOK = ROOT / "notebooks" / "09_checkpointing.ipynb"
GIB = 2**30
PARTS = ("model", "optimizer", "schedule", "scaler", "random", "position")


def run(*ranks: list[dict[str, Any]], stack: str = "", outcome: str = "finished") -> Run:
    """A run whose ranks reported these records; `stack` is where rank 0 stands."""
    results = [RankResult(i, 0, log="no such file", records=records) for i, records in enumerate(ranks)]
    if stack:
        results[0].exitcode, results[0].stack = 1, stack
    return Run(results, "no such script", [], "", "warm", "", 1.0, "", outcome)


def step(seconds: float) -> Run:
    return run([{"step_s": 2 * seconds}, {"step_s": seconds}])


def program(file: str) -> str:
    """The program of a cell, by its `--file`."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    (source,) = (c.source for c in cells if c.source.startswith("%%ranks") and f"--file {file} " in c.source)
    return str(source.partition("\n")[2])


def written(folder: Path, *files: str) -> Path:
    """The programs of cells, as files next to each other. Returns the last one's path."""
    for file in files:
        (folder / file).write_text(program(file))
    return folder / files[-1]


# --- half A -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """GiB on a made-up emulated GPU, by kind: what a test sets here."""
    parts = {"activations": 64.0, "optimizer": 9.0, "weights": 4.5}
    monkeypatch.setattr(Run, "emulated", property(lambda self: Emulated(Path(), "1xA100", 1)))
    monkeypatch.setattr(Emulated, "memory", lambda self: {"rank 0": {k: int(v * GIB) for k, v in parts.items()}})
    monkeypatch.setattr(Emulated, "memory_bytes", property(lambda self: int(79.25 * GIB)))
    return parts


OUT_OF_MEMORY = run([], stack="torch.OutOfMemoryError: CUDA out of memory", outcome="failed")


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "The activations take 64 GiB, 4.7 times as much as all the rest."),
        (60, "You said 60 GiB: you've been out of memory before."),
        (13.5, "You said 13.5 GiB. That's as much as weights and optimizer take."),
        (30, "You said 30 GiB. 16 sequences fit and 32 don't"),
        (200, "You said 200 GiB. It does fit"),
        ("64 GiB", "You said 64 GiB: you've been"),
        ("all", "Your bet should be a number of GiB, such as 10."),
    ],
)
def test_what_a_step_holds(guess: Any, said: str, held: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_09.show_needs(step(1.38), OUT_OF_MEMORY, guess)
    out = capsys.readouterr().out
    assert said in out and "✓ 2 more checks passed" in out
    assert "64 of 78 GiB" in figure.mpl.get_suptitle()
    with pytest.raises(ClaimError, match="ran out of memory"):
        lesson_09.show_needs(step(1.38), step(3.0), guess)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "a step takes 1.23 times as long."),
        (1.23, "You said 1.23 times: you left something out"),
        (1.33, "You said 1.33 times. That's a whole forward more"),
        (2, "You said 2 times. Then backward would be repeated"),
        (1, "You said 1 times. The second forward isn't free"),
        (4, "You said 4 times. It's one more forward"),
        ("1/3", "Your bet should be a number such as 1.5."),
    ],
)
def test_computed_again(
    guess: Any, said: str, held: dict[str, float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, again = step(1.38), step(1.70)
    less = {"activations": 10 * GIB, "optimizer": 9 * GIB, "weights": 4 * GIB}
    real = room.needs
    monkeypatch.setattr(room, "needs", lambda each: less if each is again else real(each))
    figure = lesson_09.show_again(plain, again, guess)
    out = capsys.readouterr().out
    assert said in out and "78 GiB became 23" in out and "✓ one line takes a step" in out
    assert "11 times as much as its input" in out and "1.23 times the time" in figure.mpl.get_suptitle()
    with pytest.raises(ClaimError, match="less than half"):
        lesson_09.show_again(plain, plain)


def here(apart: float = 0.0, on: str = "cpu", again_s: float = 1.3) -> Run:
    nbytes = {"kept": 60 << 20, "computed again": 8 << 20}
    records: list[dict[str, Any]] = [{"name": n, "kept_bytes": b, "peak_bytes": b} for n, b in nbytes.items()]
    for i in range(5):
        records += [{"name": "kept", "step_s": 1 + i / 100}, {"name": "computed again", "step_s": again_s + i / 100}]
    return run([*records, {"apart": apart, "on": on}])


def test_your_own_machine(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_09.show_here(here())
    out = capsys.readouterr().out
    assert "Forward left 13% of the bytes" in out and "Not one bit of a gradient differs." in out
    assert "A step took 1.29 times as long" in out and "✓ on your machine activations" in out
    lesson_09.show_here(here(apart=1e-6, on="cuda"))
    assert "Gradients differ by 1e-06 of the largest." in capsys.readouterr().out
    with pytest.raises(ClaimError, match="the same gradients"):
        lesson_09.show_here(here(apart=1e-6))


def test_your_own_machine_beside_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_09.show_here(disturb(here(again_s=9.0)))
    out = capsys.readouterr().out
    concludes_nothing(out, "how much longer a step takes here")
    assert "9." not in out and "✓ on your machine activations" in out


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "20,215 tokens a second instead of 23,745, so 85% of it."),
        ("no", "You said no. 16 sequences keep it busy"),
        ("Yes!", "You said yes. A larger batch helps"),
        ("perhaps", "Your bet should be one of these: no, yes."),
    ],
)
def test_four_times_the_batch(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_09.show_tokens(step(1.38), step(6.484), guess)
    assert said in capsys.readouterr().out and "85% of the tokens" in figure.mpl.get_suptitle()
    with pytest.raises(ClaimError, match="brings nothing"):
        lesson_09.show_tokens(step(1.38), step(5.0), guess)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "20,115 tokens a second on each GPU instead of 7,092: 2.8 times."),
        (3, "You said 3 times: you looked at the network."),
        (1, "You said 1 times. On one GPU you'd be right."),
        (6, "You said 6 times. Each sequence still costs a second forward."),
        (1.5, "You said 1.5 times. Here most of a short step is waiting"),
        ("yes", "Your bet should be a number such as 0.5 or 2."),
    ],
)
def test_eight_gpus(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(room, "eight", lambda: {"kept": step(3.4655), "computed again": step(6.516)})
    lesson_09.show_eight(guess)
    assert said in capsys.readouterr().out
    monkeypatch.setattr(room, "eight", lambda: {"kept": step(3.4655), "computed again": step(13.0)})
    with pytest.raises(ClaimError, match="twice the tokens"):
        lesson_09.show_eight(guess)


def test_the_page_begins_with_what_the_emulated_gpu_says(tmp_path: Path) -> None:
    """What stands in its text, and not in a cell's output: a batch that fits, one that doesn't, and bytes."""
    path = written(tmp_path, "steps.py")
    fits, large = (
        launch(path, 1, [n], cluster="1xA100", quiet=True, check=False) for n in (room.SMALL, 2 * room.SMALL)
    )
    assert fits.ok and "out of memory" in room.why_it_died(large)
    parts = room.needs(fits)
    text = "".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells[:6])
    assert f"With {room.SMALL} sequences in a batch it trains on an emulated A100." in text
    others = (sum(parts.values()) - parts["activations"]) / GIB
    assert f"AdamW's two averages take {others:.1f} GiB" in text
    weights = parts["weights"] / 4 / 1e9
    assert f"{room.BLOCKS} transformer blocks has {weights:.1f} billion parameters" in text


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_what_recomputing_costs_and_when_it_pays(tmp_path: Path) -> None:
    """Both of the page's answers, the batch that DDP's buckets leave no room for, and what stops early."""
    plain, again = (written(tmp_path, file) for file in ("steps.py", "recompute.py"))
    took = {
        name: room.step_s(launch(path, 1, [n], cluster="1xA100", quiet=True))
        for name, path, n in (("kept", plain, 16), ("again", again, 16), ("large", again, 64))
    }
    assert 1.1 < took["again"] / took["kept"] < 1.3 and 64 / took["large"] < 16 / took["kept"]
    whole = tmp_path / "whole.py"
    whole.write_text(again.read_text().replace("use_reentrant=False", "use_reentrant=False, early_stop=False"))
    assert room.step_s(launch(whole, 1, [16], cluster="1xA100", quiet=True)) > 1.02 * took["again"]
    crowded = launch(room.EIGHT, 1, [16, "keep"], cluster=room.ETHERNET, one_of=8, quiet=True, check=False)
    assert "buckets" in room.why_it_died(crowded)
    lesson_09.show_eight()


def test_bets_that_are_none(
    held: dict[str, float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(room, "eight", lambda: {"kept": step(3.4), "computed again": step(6.5)})
    monkeypatch.setattr(saving, "_left_out", lambda: left_out())
    monkeypatch.setattr(saving, "_plain_torchrun", lambda script: (1, 20))
    takes_nonsense(lambda guess: lesson_09.show_needs(step(1.0), OUT_OF_MEMORY, guess), capsys)
    takes_nonsense(lambda guess: lesson_09.show_tokens(step(1.38), step(6.484), guess), capsys)
    takes_nonsense(lesson_09.show_eight, capsys)
    takes_nonsense(lambda guess: lesson_09.show_kills(kills(20, 0), guess), capsys)
    takes_nonsense(lesson_09.show_left_out, capsys)
    takes_nonsense(lambda guess: lesson_09.show_restarts(back(), guess), capsys)


# --- half B -----------------------------------------------------------------------------------------------------------


def kills(in_place: int, renamed: int) -> Run:
    """50 kills of each way, so many of which left nothing to load."""
    records = []
    for way, bad in zip(saving.WAYS, (in_place, renamed), strict=True):
        records += [
            {"way": way, "at_s": k / 1e4, "left": "neither" if k < bad else "new", "error": "EOFError: x" * (k < bad)}
            for k in range(50)
        ]
    return run(records)


@pytest.mark.parametrize(
    ("bad", "guess", "said"),
    [
        (20, ..., "After 20 of 50 kills there was nothing to load."),
        (20, 22, "You said 22: you've lost a file before."),
        (20, 0, "You said 0. Then overwriting would be safe."),
        (20, 50, "You said 50. Some kills come when the save is done."),
        (20, 3, "You said 3. From the first moment"),
        (0, 0, "You said 0: this time no kill came at a bad moment."),
        (20, 51, "Your bet should be a number from 0 to 50."),
        (20, "half", "Your bet should be a number from 0 to 50."),
    ],
)
def test_kills(bad: int, guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_09.show_kills(kills(bad, 0), guess)
    out = capsys.readouterr().out
    assert said in out and ("✓ your function left" if bad else "○ not shown here: your function left") in out
    assert f"{bad} of 50, and with a rename 0" in figure.mpl.get_suptitle()
    with pytest.raises(ClaimError, match="a whole checkpoint"):
        lesson_09.show_kills(kills(bad, 1), guess)


def test_the_readers_function_survives_every_kill(tmp_path: Path) -> None:
    found = lesson_09.run_kills(written(tmp_path, "atomic.py"))
    lesson_09.show_kills(found)
    assert saving.lost(found, saving.WAYS[1]) == 0 and len(found.values("at_s")) == 100


def test_a_run_that_is_killed_ends_as_the_whole_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "atomic.py", "resume.py")
    whole = launch(path, 1, [saving.NEVER], device="cpu", threads=1, quiet=True)
    lesson_09.show_resumed(whole)
    out = capsys.readouterr().out
    assert "killed itself in step 47. A new process went on with step 40." in out and "✓ 2 more checks passed" in out
    whole.ranks[0].records[0]["weights"][0] += 1e-7
    with pytest.raises(ClaimError, match="to the last bit"):
        lesson_09.show_resumed(whole)


def left_out(raised: tuple[str, ...] = (), exact: bool = True) -> Run:
    whole = list(range(24))
    records: list[dict[str, Any]] = [{"whole": whole}]
    for part in ("", *PARTS):
        different = 5 if part else 0 if exact else 1
        found = {"error": "", "different": different, "gap": 0.1 * different, "loss": 0.5, "seen": whole[12:]}
        records.append({"left_out": part, **({"error": "KeyError"} if part in raised else found)})
    return run(records, records)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "None of the 6."),
        (0, "You said 0: you don't trust errors to come."),
        (1, "You said 1. Each of them is a valid start."),
        (6, "You said 6. Each of them"),
        ("none", "You said 0: you don't trust errors to come."),
        ("some", "Your bet should be a number from 0 to 6."),
    ],
)
def test_parts_left_out(
    guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(saving, "_left_out", lambda: left_out())
    table = lesson_09.show_left_out(guess)
    out = capsys.readouterr().out
    assert said in out and "✓ saved whole, 2 ranks resume to the last bit" in out and "7 more checks" in out
    assert [row[0] for row in table.rows] == ["nothing", *PARTS]
    for wrong in (left_out(raised=("scaler",)), left_out(exact=False)):
        monkeypatch.setattr(saving, "_left_out", lambda found=wrong: found)
        with pytest.raises(ClaimError, match="to the last bit"):
            lesson_09.show_left_out(guess)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_resumed_in_the_middle_of_an_epoch_nothing_differs(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without any one part it's another run, and no error."""
    found = launch(saving.LEFT_OUT, ranks, device="cpu", threads=1, quiet=True)
    monkeypatch.setattr(saving, "_left_out", lambda: found)
    lesson_09.show_left_out()


def back() -> Run:
    return run(*[[{"attempt": 0, "first": 0}, {"attempt": 1, "first": 20}, {"last": 30}]] * 2)


@pytest.mark.parametrize(
    ("code", "guess", "said"),
    [
        (1, ..., "it ended with exit code 1. Its file still says step 20: nothing was trained after the kill."),
        (1, "no", "You said no: you've been there."),
        (1, "yes", "You said yes. So says the documentation."),
        (None, "yes", "it was still waiting after 60 s"),
        (0, "no", "it came back, too. You said no. Mostly you'd be right."),
        (0, "yes", "You said yes: this time it was lucky."),
        (1, "maybe", "Your bet should be one of these: no, yes."),
    ],
)
def test_restarts(
    code: int | None, guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(saving, "_plain_torchrun", lambda script: (code, 20))
    lesson_09.show_restarts(back(), guess)
    assert said in capsys.readouterr().out


def test_a_job_that_came_back(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_09.show_back(back())
    assert "began with step 0, rank 1 died in step 22, and by itself it went on with step 20" in capsys.readouterr().out
    with pytest.raises(ClaimError, match="the job comes back"):
        lesson_09.show_back(run(*[[{"attempt": 0, "first": 0}, {"attempt": 1, "first": 0}, {"last": 30}]] * 2))


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_job_that_starts_again_has_a_store_of_its_own(tmp_path: Path) -> None:
    written(tmp_path, "atomic.py")
    path = written(tmp_path, "restarts.py")
    found = launch(path, 2, max_restarts=1, device="cpu", threads=1, quiet=True)
    lesson_09.show_back(found)
    lesson_09.show_restarts(found)


def test_a_job_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits longer than the page says, and nothing is left of the job."""
    monkeypatch.setattr(saving, "PATIENCE_S", 0.1)
    started = []
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1])
    (tmp_path / "waits.py").write_text("import signal\nsignal.pause()\n")
    assert saving._plain_torchrun(str(tmp_path / "waits.py")) == (None, None)
    assert started[0].poll() is not None


# --- take home --------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(250)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_file_to_take_home_goes_on_to_the_last_bit(ranks: int, tmp_path: Path) -> None:
    """Stopped by the file and started again: the same fingerprint; two checkpoints are kept."""

    def start(folder: str, **more: str) -> str:
        words = ["--folder", str(tmp_path / folder), "--save-every", "7"]
        answer = torchrun(lesson_09.TAKE_HOME, *words, ranks=ranks, cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    (whole,) = re.findall(r"fingerprint (\w+)", start("whole"))
    assert sorted(p.name for p in (tmp_path / "whole").glob("*")) == ["step-56.pt", "step-60.pt"]
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "stop").touch()
    assert "stopped after step 1" in start("cut") and [p.name for p in (tmp_path / "cut").glob("*.pt")] == ["step-1.pt"]
    assert not (tmp_path / "cut" / "stop").exists(), "it has been seen: the next start goes on"
    (tmp_path / "cut" / "step-9.pt").write_bytes(b"half a file")  # the newest can't be read: take the one before
    said = start("cut")
    assert "can't read" in said and "going on in epoch 0, after 1 batches of it" in said
    assert re.findall(r"fingerprint (\w+)", said) == [whole]
    assert torch.load(tmp_path / "cut" / "step-60.pt")["epoch"] == 3


def test_the_file_to_take_home_knows_every_bit() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("take_home_09", lesson_09.TAKE_HOME)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    state = {"model": {"w": torch.ones(3)}, "random": [(1, None)], "epoch": 3}
    same = {"model": {"w": torch.ones(3)}, "random": [(1, None)], "epoch": 3}
    bit = {"model": {"w": torch.tensor([1.0, 1.0, 1.0000001])}, "random": [(1, None)], "epoch": 3}
    assert module.fingerprint(state) == module.fingerprint(same) != module.fingerprint(bit)
    assert module.fingerprint(torch.tensor(1.0)) != module.fingerprint(torch.tensor(2.0))


# --- the deeper part --------------------------------------------------------------------------------------------------


def test_selective_lies_between(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"kept": (1.0, 70), "selective": (1.1, 40), "computed again": (1.3, 20)}
    lesson_09.show_selective(run([{"way": w, "step_s": s, "peak_bytes": g * GIB} for w, (s, g) in found.items()]))
    out = capsys.readouterr().out
    assert "1.10 times as long" in out and "57% of the memory, and they 29%" in out and "✓ selective lies" in out
    found["selective"] = (1.1, 10)
    with pytest.raises(ClaimError, match="between"):
        lesson_09.show_selective(run([{"way": w, "step_s": s, "peak_bytes": g * GIB} for w, (s, g) in found.items()]))


def test_published_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    table = lesson_09.show_published()
    assert len(table.errors) == 4 and "✓ counting FLOPs" in capsys.readouterr().out


def paused(pause_s: float = 0.02, as_it_was: bool = True) -> Run:
    return run(
        [
            {"plain_s": 0.1 + i / 1000, "pause_s": pause_s, "steps": 4 + i, "as_it_was": as_it_was, "first": i == 0}
            for i in range(6)
        ]
    )


def test_saving_while_training(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_09.show_paused(paused(), 0.2)
    out = capsys.readouterr().out
    assert "You said 0.2: you know your disk." in out and "trained for 5 to 9 steps" in out and out.count("✓") == 3
    lesson_09.show_paused(disturb(paused(0.5)), 0.2)
    concludes_nothing(capsys.readouterr().out, "how long a pause is", 0.2)
    with pytest.raises(ClaimError, match="the state at the call"):
        lesson_09.show_paused(paused(as_it_was=False))


# --- the figure of kills ----------------------------------------------------------------------------------------------

TRIES = {
    "in place": [(0.001, "old"), (0.004, "neither"), (0.009, "new"), (0.006, "neither")],
    "renamed": [(0.003, "old"), (0.008, "new")],
}


def test_each_kill_is_a_mark_in_the_lane_of_its_outcome_and_the_text_counts_them() -> None:
    figure = kill_marks.outcomes(TRIES, xlabel="killed after")
    assert "in place: 1 old, 1 new and 2 neither" in figure.summary.replace("In place", "in place")
    assert "renamed: 1 old, 1 new and 0 neither" in figure.summary
    first, second = figure.mpl.axes
    marks = {
        label.get_text(): line.get_xdata() for label, line in zip(first.get_yticklabels(), first.lines, strict=True)
    }
    assert list(marks["neither (2)"]) == pytest.approx([4, 6])  # ms
    assert second.get_xlabel() == "killed after (ms)"
    markers = [(line.get_marker(), line.get_markerfacecolor()) for line in first.lines]
    assert len(set(markers)) == 3


def test_marks_of_a_later_way_are_inside_the_picture() -> None:
    figure = kill_marks.outcomes({"soon": [(0.001, "neither")], "late": [(0.5, "new")]}, xlabel="killed after")
    for ax in figure.mpl.axes:
        assert ax.get_xlim()[0] == 0 and ax.get_xlim()[1] > 500  # ms


def test_an_outcome_keeps_its_mark_where_others_are_missing() -> None:
    alone = kill_marks.outcomes({"renamed": [(0.1, "new")]}, xlabel="after")
    both = kill_marks.outcomes(TRIES, xlabel="after")
    assert alone.mpl.axes[0].lines[0].get_markerfacecolor() == both.mpl.axes[0].lines[1].get_markerfacecolor()


@pytest.mark.parametrize("ways", [{}, {"a": []}, {"a": [(0.1, w) for w in "abcde"]}])
def test_what_cannot_be_drawn_is_refused(ways: Any) -> None:
    with pytest.raises(ValueError):
        kill_marks.outcomes(ways, xlabel="after")
