"""Lesson 12: what it says of its experiments, for every guess, with and without its frameworks; the picture of the
loop; and the programs to take home."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, skip_or_fail, takes_nonsense

import lesson_12
from course_utils import Provenance, Run, Sweep, launch, recorded
from course_utils.cells.claims import ClaimError
from course_utils.machine.optional_packages import missing
from course_utils.results.rank_result import RankResult
from course_utils.show import pages
from lesson_12 import deeper, recordings

NOTEBOOK = ROOT / "notebooks" / "12_lightning_and_tensorflow.ipynb"
EMULATED = Provenance("emulated", "16xH100")
RECORDED = Provenance("recorded", "2 cores of somebody", {"torch": "2.15.0"}, "2026-11-25")
CURVE = [4.6 - 0.003 * i + 0.02 * (-1) ** i for i in range(lesson_12.STEPS)]


def run(*ranks: list[dict[str, Any]], provenance: Provenance | None = None) -> Run:
    """A run whose ranks reported these records."""
    results = [RankResult(i, 0, log="no such file", records=records) for i, records in enumerate(ranks)]
    more = (provenance,) if provenance else ()
    return Run(results, "no such script", [], "", "warm", "", 1.0, "", "finished", *more)


def plain(off: float = 0.0, **settings: Any) -> Run:
    return run(*[[{"loss": loss + off} for loss in CURVE] for _ in range(2)], **settings)


def shuffled(rank: int) -> list[int]:
    numbers = np.random.default_rng(rank)
    return [int(kind) for kind in numbers.integers(100, size=64)]


def lit(kinds: Callable[[int], list[int]] = shuffled, off: float = 0.0, **settings: Any) -> Run:
    """A run with Lightning: thirty batches, of which the first has these kinds."""
    return run(
        *[[{"batch": i, "loss": loss + off, "kinds": kinds(r)} for i, loss in enumerate(CURVE)] for r in range(2)],
        **settings,
    )


def in_order(rank: int) -> list[int]:
    return [i // 60 for i in range(rank, 128, 2)]


def undivided(ranks: int = 2) -> Run:
    """Losses that are off from the second step on, as those of gradients that nobody divided."""
    off = [0.0] + [0.15] * (lesson_12.STEPS - 1)
    return run(*[[{"loss": loss + more} for loss, more in zip(CURVE, off, strict=True)] for _ in range(ranks)])


def ordered(ranks: int = 2) -> Run:
    """Losses of other pictures, from the first step on."""
    return run(*[[{"loss": loss - 0.1} for loss in CURVE] for _ in range(ranks)])


def logged(points: int, **settings: Any) -> Run:
    at = list(range(points))
    rank = [{"steps": 30, "at": at, "logged": [CURVE[i] + 0.1 for i in at]}]
    return run(rank, rank, **settings)


def mirrored(parts: int = 16, same: bool = True, off: float = 1e-6, **settings: Any) -> Run:
    first = [{"loss": loss + off} for loss in CURVE]
    rest = {"accuracy": 0.04, "said": [0, 0] * 128, "copies": ["CPU:0", "CPU:1"], "same": same}
    return run([*first, rest, {"parts": [parts] * 8}], **settings)


def resumed(first: int = 0, **settings: Any) -> Run:
    """Half an epoch after a resume that begins the data with this batch."""
    whole = [{"batch": i, "loss": 1.0, "kinds": [i, i + 1, 2 * i]} for i in range(30)]
    again = [{**whole[first + k], "batch": 15 + k} for k in range(15)]
    return run([*whole, {"resumed": True}, *again], **settings)


def sixteen(*by: str, parts_sum: float = 1.0) -> Sweep:
    points = [way for way in lesson_12.WAYS if way["by"] in by]
    found = {
        (1, "32-true"): (0.2, 4.0, 4e9),
        (4, "32-true"): (0.1, parts_sum, 4e9),
        (1, "bf16-mixed"): (0.19, 4.0, 3e9),
    }
    runs = []
    for way in points:
        took_s, sums, peak = found[way["parts"], way["precision"]]  # type: ignore[index]
        runs.append([run([{"took_s": took_s, "sums": sums, "peak_bytes": peak}], provenance=EMULATED)])
    return Sweep(points, runs)


def cells() -> list[Any]:
    return list(nbformat.read(NOTEBOOK, as_version=4).cells)


def titles(figure: Any) -> str:
    return " ".join([str(figure.mpl._suptitle), *(ax.get_title() + ax.get_title("left") for ax in figure.mpl.axes)])


def needs(*packages: str) -> None:
    if lacking := [why for name in packages if (why := missing(name))]:
        skip_or_fail("; ".join(lacking))


@pytest.fixture
def nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "runs", lambda name: [])
    monkeypatch.setattr(recorded, "sweeps", lambda name: [])


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.zeros(lesson_12.CALLED, 3, 32, 32, dtype=torch.uint8)
    monkeypatch.setattr(lesson_12, "pictures", lambda: (images, torch.arange(lesson_12.CALLED) % 100))


# --- 1: the picture of the loop ---------------------------------------------------------------------------------------


def marks(column: int) -> list[str]:
    """Of each line in the picture, whether you write it (x), or the framework (o), or nobody (-)."""
    (page,) = (c.source for c in cells() if "## 1 · Who does what?" in c.source)
    found = []
    for line in page.partition("<svg")[2].splitlines():
        if circle := re.search(r"circle cx='(\d+)' cy='([\d.]+)' r='6' fill='%23(\w+)'", line):
            found.append((float(circle[2]), int(circle[1]), "o" if circle[3] == "FFFFFF" else "x"))
        elif dash := re.search(r"path d='M(\d+) ([\d.]+) h10'", line):
            found.append((float(dash[2]), int(dash[1]) + 5, "-"))
    loop = [mark for mark in found if mark[0] < 390]  # below is what the marks mean
    places = sorted({x for _, x, _ in loop})
    return [mark for _, x, mark in sorted(loop) if x == places[column]]


def test_the_framework_deletes_as_many_lines_as_the_title_says() -> None:
    title = cells()[1].source
    assert marks(0) == ["x"] * 15 and "fifteen lines" in title
    assert marks(1).count("o") == 12 and "deleted 12 of your lines" in title and "takes twelve of them" in title
    assert marks(2).count("o") == 6 and marks(3).count("x") == 3
    kept = [at for at, mark in enumerate(marks(1)) if mark == "x"]
    assert kept == [3, 5, 10] == [at for at, mark in enumerate(marks(3)) if mark == "x"], "loader, optimizer, loss"


def test_the_loop_of_the_picture_is_the_program_of_the_page() -> None:
    (page,) = (c.source for c in cells() if "## 1 · Who does what?" in c.source)
    source = lesson_12.PLAIN.read_text()
    lines = re.findall(r"font-family='Menlo[^>]*>([^<]+)<", page)
    assert len(lines) == 15
    for line in lines:
        call = re.search(r"[\w.]+(?=\()|loader", line)
        assert call and call[0].removeprefix("x.") in source, line


def test_the_plain_program(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_12.show_plain(plain())
    out = capsys.readouterr().out
    assert "30 steps on 2 ranks, and the loss went from 4.620 to 4.493" in out and "takes 64 of the 128 pictures" in out


@pytest.mark.slow
def test_the_plain_program_draws_what_tensorflow_gets(tmp_path: Path) -> None:
    """Its first loss is that of the weights and pictures which are left for a program without torch."""
    from torch.nn.functional import cross_entropy

    from course_utils.workloads import image_model
    from course_utils.workloads.images import normalize

    found = launch(lesson_12.PLAIN, 2, device="cpu", threads=1, quiet=True)
    losses = recordings.by_steps(found)
    assert len(losses) == lesson_12.STEPS
    recordings.leave_start(tmp_path / "start.npz")
    with np.load(tmp_path / "start.npz") as start:
        model = image_model("cpu")
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(torch.from_numpy(start[f"arr_{i}"]))
            first = cross_entropy(
                model(normalize(torch.from_numpy(start["images"][:128]))), torch.from_numpy(start["labels"][:128])
            )
        assert len(start["images"]) == lesson_12.STEPS * lesson_12.BATCH
    assert first.item() == pytest.approx(losses[0], abs=1e-4)


# --- 2: the order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "kinds, so they are shuffled."),
        (47, "You said 47: you don't trust frameworks."),
        ("47", "You said 47: you don't"),
        (3, "You said 3. So it would be if shuffle=False were still true."),
        (1, "You said 1. It's more."),
        (64, "You said 64. You saw that they're shuffled. By chance, some then share a kind."),
        (20, "You said 20. It's more."),
        (65, "Your bet should be a whole number from 1 to 64"),
        (-1, "Your bet should be a whole number from 1 to 64"),
    ],
)
def test_the_order(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_12.show_order(plain(), lit(off=1e-9), guess)
    out = capsys.readouterr().out
    assert said in out and "✓ Lightning shuffles a loader that says shuffle=False" in out and figure is not None
    assert "You asked for 3 kinds in order" in titles(figure)
    with pytest.raises(ClaimError, match="shuffles a loader"):
        lesson_12.show_order(plain(), lit(in_order), guess)
    with pytest.raises(ClaimError, match="but for rounding"):
        lesson_12.show_order(plain(), lit(off=0.5), guess)


def test_the_new_program_is_as_long_as_the_old_one() -> None:
    (source,) = (c.source for c in cells() if "--file in_lightning.py " in c.source)
    old, new = (
        [line for line in text.splitlines()[1:] if line.strip()] for text in (lesson_12.PLAIN.read_text(), source)
    )
    assert abs(len(old) - len(new)) <= 3, (len(old), len(new))


# --- 3: what TensorBoard sees -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "None."),
        (0, "You said 0: you've looked at an empty TensorBoard before."),
        (30, "You said 30. One for each step would be natural."),
        (120, "You said 120. By default it writes after every 50th step"),
        (2, "You said 2. 120 by 50 is 2. But it counts steps"),
        ("nonsense", "Your bet should be a whole number"),
    ],
)
def test_points(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_12.show_points(logged(0), guess)
    out = capsys.readouterr().out
    assert said in out and "✓ thirty steps leave no trace in TensorBoard" in out
    with pytest.raises(ClaimError, match="no trace"):
        lesson_12.show_points(logged(1), guess)


def test_the_curve_of_tensorboard(capsys: pytest.CaptureFixture[str]) -> None:
    assert lesson_12.show_curve(plain(), logged(30)) is not None
    assert "30 points, one for each step." in capsys.readouterr().out
    with pytest.raises(ClaimError, match="a point for each step"):
        lesson_12.show_curve(plain(), logged(3))


# --- 4 and 5: TensorFlow ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "16 pictures."),
        (16, "You said 16: you've read"),
        (128, "You said 128. That's PyTorch's convention."),
        (64, "You said 64. The batch is cut in 8."),
        (0, "You said 0. The batch is cut in 8."),
        (1024, "Your bet should be a whole number from 1 to 128"),
    ],
)
def test_mirrored(guess: Any, said: str, capsys: pytest.CaptureFixture[str], no_pictures: None) -> None:
    assert lesson_12.show_mirrored(mirrored(), guess) is not None
    out = capsys.readouterr().out
    assert said in out and "✓ batch(128) gives each of 8 replicas 16 pictures" in out
    assert "a copy on CPU:0 and on CPU:1" in out
    with pytest.raises(ClaimError, match="each of 8 replicas"):
        lesson_12.show_mirrored(mirrored(parts=128), guess)
    with pytest.raises(ClaimError, match="copies of a mirrored"):
        lesson_12.show_mirrored(mirrored(same=False), guess)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "Without the division, step 2 is off by 0.15."),
        (2, "You said 2: the first loss comes before the first update."),
        (1, "You said 1. The first loss is computed before there's any gradient."),
        (5, "You said 5. It's sooner."),
        (0, "Your bet should be a step, from 1 to 30"),
    ],
)
def test_one_curve(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_12.show_one_curve(plain(), lit(), mirrored(), undivided(), ordered(), guess)
    out = capsys.readouterr().out
    assert said in out and "✓ three frameworks draw one curve" in out
    assert "Lightning's losses differ from DDP's by nothing" in out and "TensorFlow's by 1e-06" in out
    assert "In another order, the first loss is off by 0.1." in out
    assert figure is not None and "two mistakes don't" in titles(figure)


def test_curves_that_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (mirrored(off=4e-3), mirrored(off=1.0), undivided(1)):
        with pytest.raises(ClaimError, match="one curve"):
            lesson_12.show_one_curve(plain(), lit(), wrong, undivided(), ordered())
    in_one_step = mirrored()
    in_one_step.ranks[0].records[lesson_12.EARLY - 1]["loss"] += 5e-3
    with pytest.raises(ClaimError, match="one curve"):
        lesson_12.show_one_curve(plain(), lit(), in_one_step, undivided(), ordered())
    with pytest.raises(ClaimError, match="a missing division shows at once"):
        lesson_12.show_one_curve(plain(), lit(), mirrored(), plain(), ordered())
    three = run(*[[{"loss": loss} for loss in CURVE] for _ in range(3)])
    lesson_12.show_one_curve(three, lit(), mirrored(off=0.5), undivided(3), ordered(3))
    assert "128 doesn't divide by 3 ranks" in capsys.readouterr().out
    alone = run([{"loss": loss} for loss in CURVE])
    lesson_12.show_one_curve(alone, lit(), mirrored(), alone, ordered(1))
    assert "With one rank there's nothing to divide" in capsys.readouterr().out
    exploded = run(*[[{"loss": CURVE[0]}] + [{"loss": float("nan")}] * 29] * 2)
    figure = lesson_12.show_one_curve(plain(), lit(), mirrored(), exploded, ordered())
    assert figure is not None and "step 2 is off by nan" in capsys.readouterr().out


def test_a_line_is_replaced_or_nothing_runs() -> None:
    with pytest.raises(ValueError, match="has 0 times 'loss.forward"):
        lesson_12.plain_but("loss.forward()", "pass")


# --- deeper: sixteen GPUs ---------------------------------------------------------------------------------------------


def test_sixteen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "missing", lambda package: "")
    table = lesson_12.show_sixteen(sixteen("DDP", "Lightning"))
    out = capsys.readouterr().out
    assert "four batches take 2.0 times as long without accumulation." in out and "75% of the memory" in out
    assert [row[1] for row in table.rows] == ["4", "1", "4"]
    assert table.rows[1][0] == "accumulate_grad_batches=4"
    with pytest.raises(ClaimError, match="sums once in four"):
        lesson_12.show_sixteen(sixteen("DDP", "Lightning", parts_sum=4.0))


def test_sixteen_without_lightning(
    nothing_recorded: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "missing", lambda package: "it isn't here")
    monkeypatch.setattr(deeper, "missing", lambda package: "it isn't here")
    assert {way["by"] for way in lesson_12.ways()} == {"DDP"}
    table = lesson_12.show_sixteen(sixteen("DDP"))
    assert len(table.rows) == 3 and "nobody has recorded it yet" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("by", ["DDP", "Lightning"])
def test_sixteen_emulated_gpus(by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "Lightning":
        needs("lightning")
    points = [way for way in lesson_12.WAYS if way["by"] == by]
    cluster = {"count": 16, "device": "H100", "between": "ethernet25"}
    runs = []
    for way in points:
        words = [f"--{name}={value}" for name, value in way.items()]
        runs.append([launch(lesson_12.SIXTEEN, args=words, cluster=cluster, one_of=16, quiet=True)])
    monkeypatch.setattr(recordings, "missing", lambda package: "")
    lesson_12.show_sixteen(Sweep([{**way, "by": "DDP"} for way in points], runs))
    assert "3 more checks passed" in capsys.readouterr().out


# --- 6: the resume ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "Batch 0, and the trainer calls it batch 15."),
        (0, "You said 0: you know what isn't in the file."),
        (15, "You said 15. So the trainer counts."),
        (16, "You said 16. The loader doesn't know"),
        (-2, "Your bet should be"),
        (300, "Your bet should be a whole number from 0 to 29"),
    ],
)
def test_resumed(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert lesson_12.show_resumed(resumed(), guess) is not None
    out = capsys.readouterr().out
    assert said in out and "15 batches come twice, and 15 never." in out and "✓ resumed in mid-epoch" in out
    with pytest.raises(ClaimError, match="begins the data anew"):
        lesson_12.show_resumed(resumed(first=15), guess)


# --- without the frameworks -------------------------------------------------------------------------------------------


def all_shown() -> list[Any]:
    """Everything that needs a framework, as a reader without any gets it."""
    return [
        lesson_12.show_order(plain(), None),
        lesson_12.show_points(None),
        lesson_12.show_curve(plain(), None),
        lesson_12.show_mirrored(None),
        lesson_12.show_one_curve(plain(), None, None, undivided(), ordered()),
        lesson_12.show_resumed(None),
        lesson_12.show_other_two(None, None),
        lesson_12.show_two_workers(None, None),
    ]


def test_what_nobody_has_recorded_is_said(nothing_recorded: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert all_shown() == [None] * 8
    out = capsys.readouterr().out
    for name in ("lit", "silent", "every", "mirrored", "resumed", "fabric", "two_workers"):
        assert f"nobody has recorded it yet (12_{name})" in out


def other(kinds: list[int], **more: Any) -> Run:
    rank = [{"loss": 4.6, "kinds": kinds, **({"rate_left": 0.0} if more else {})}]
    rank += [{"seen": 1002, "counted": 1001, "of": 1001}] if more else []
    return run(rank, rank, provenance=RECORDED)


def test_what_was_recorded_is_shown_and_claims_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    runs = {
        "plain": plain(provenance=RECORDED),
        "lit": lit(provenance=RECORDED),
        "silent": logged(0, provenance=RECORDED),
        "every": logged(30, provenance=RECORDED),
        "mirrored": mirrored(provenance=RECORDED),
        "resumed": resumed(provenance=RECORDED),
        "fabric": other([0, 0, 1]),
        "accelerated": other([0, 0, 0], rate_left=0.0),
        "two_workers": run(
            *[[{"loss": loss, "part": 64} for loss in CURVE] + [{"fit": "nothing, it works"}] for _ in range(2)],
            provenance=RECORDED,
        ),
    }
    monkeypatch.setattr(recorded, "runs", lambda name: [runs[name.removeprefix("12_")]])
    shown = all_shown()
    out = capsys.readouterr().out
    assert [each is None for each in shown] == [False, True, False, False, False, False, True, True]
    assert "this was recorded, on 2 cores of somebody, 2026-11-25" in out
    assert out.count("✓") == 1, "a missing division was tried here, and nothing else"
    assert "(needs Lightning)" in out and "(needs TensorFlow)" in out and "(needs Lightning and TensorFlow)" in out
    assert "the ranks saw 1002, and gather_for_metrics counts 1001" in out


def test_bets_that_are_none(capsys: pytest.CaptureFixture[str], no_pictures: None) -> None:
    takes_nonsense(lambda guess: lesson_12.show_order(plain(), lit(), guess), capsys)
    takes_nonsense(lambda guess: lesson_12.show_points(logged(0), guess), capsys)
    takes_nonsense(lambda guess: lesson_12.show_mirrored(mirrored(), guess), capsys)
    takes_nonsense(lambda guess: lesson_12.show_resumed(resumed(), guess), capsys)


def test_what_you_saw() -> None:
    words = repr(lesson_12.what_you_saw(plain(), lit(), mirrored(), resumed()))
    assert "2 ranks trained 30 steps with DDP." in words and "16 for each of 8 replicas" in words
    assert "saw 15 of its batches twice, and 15 never" in words
    assert "as it was recorded" not in words
    assert "as it was recorded" in repr(lesson_12.what_you_saw(plain(), None, None, None))


def test_frameworks_are_named_and_helpers_lie_next_to_the_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "kernel_folder", lambda: tmp_path)
    monkeypatch.setattr(recordings, "missing", lambda package: "" if package == "lightning" else "isn't here")
    lesson_12.frameworks()
    out = capsys.readouterr().out
    assert "Installed here: Lightning." in out and "Not installed here: TensorFlow, Accelerate." in out
    assert "pip install tensorflow-cpu accelerate" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keras_task.py", "quiet.py"]


NAMES = ("plain", "lit", "silent", "every", "mirrored", "resumed", "fabric", "accelerated", "two_workers")


def test_every_experiment_is_recorded() -> None:
    tags = {tag for cell in cells() for tag in cell.metadata.get("tags", []) if tag.startswith("record=")}
    assert tags == {f"record={name}" for name in (*NAMES, "sixteen", "empty")}


# --- deeper -----------------------------------------------------------------------------------------------------------


def test_what_a_framework_takes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deeper, "missing", lambda package: "")
    monkeypatch.setattr(recordings, "missing", lambda package: "")
    steps = {"DDP": 0.0010, "Fabric": 0.0012, "Lightning": 0.0030, "Accelerate": 0.0015}
    empty = Sweep([{"by": by} for by in steps], [[run([{"step_s": s}] * 20)] for s in steps.values()])
    for guess, said in (
        (..., "adds 2 ms to a step."),
        (2, "you've profiled one"),
        (50, "It's less."),
        (0, "It's more"),
    ):
        lesson_12.show_empty(empty, guess)
        assert said in capsys.readouterr().out
    alone = Sweep([{"by": "DDP"}], [[run([{"step_s": 0.001}] * 20)]])
    assert "with DDP" in titles(lesson_12.show_empty(alone))


def test_two_workers_have_ports_of_their_own() -> None:
    first, second = lesson_12.free_addresses(), lesson_12.free_addresses()
    assert len({*first}) == 2 and all(re.fullmatch(r"127\.0\.0\.1:\d+", one) for one in first + second)
    lesson_12.free_addresses(0)


# --- the files to take home -------------------------------------------------------------------------------------------


def test_the_files_to_take_home() -> None:
    for path in lesson_12.FILES:
        assert "course_utils" not in path.read_text() and "lesson_" not in path.read_text(), path.name
        shown = lesson_12.take_home(path.name)._repr_markdown_()
        assert ("```python" if path.suffix == ".py" else "```bash") in shown
        if path.suffix == ".sbatch":
            assert subprocess.run(["bash", "-n", path]).returncode == 0
            assert path.with_suffix(".py").name in path.read_text()


def sums(text: str) -> list[str]:
    return re.findall(r"the weights' sum is (\S+)", text)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2])
def test_lightning_resumes_in_mid_epoch(ranks: int, tmp_path: Path) -> None:
    """Stopped within the second epoch and started again, it ends with the weights of an undisturbed training."""
    needs("lightning")
    program = ROOT / "notebooks" / "take_home" / "12_lightning.py"
    args = ("--epochs", "3", "--save-every", "10")
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    for folder in (straight, stopped):
        folder.mkdir()
    whole = torchrun(program, *args, ranks=ranks, cwd=straight)
    assert whole.returncode == 0, whole.stderr
    assert len(re.findall(r"epoch \d: \d+ of 1001 right", whole.stdout)) == 3, "each sample once"
    first = torchrun(program, *args, "--steps", "45", ranks=ranks, cwd=stopped)
    assert first.returncode == 0 and f"{ranks} ranks, 45 steps" in first.stdout, first.stderr
    again = torchrun(program, *args, ranks=ranks, cwd=stopped)
    assert again.returncode == 0, again.stderr
    assert sums(again.stdout) == sums(whole.stdout) != sums(first.stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lightning_starts_its_own_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("lightning")
    program = ROOT / "notebooks" / "take_home" / "12_lightning.py"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    command = [sys.executable, program, "--devices", "2", "--epochs", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "2 ranks, 31 steps" in done.stdout, done.stderr


def workers(folder: Path, count: int, *args: str) -> str:
    """Run the program for TensorFlow on so many workers; returns what the first one printed."""
    addresses = lesson_12.free_addresses(count)
    lesson_12.free_addresses(0)
    program = ROOT / "notebooks" / "take_home" / "12_tf_worker.py"
    started = [
        subprocess.Popen(
            [sys.executable, program, "--workers", *addresses, "--index", str(index), *args],
            cwd=folder, stdout=subprocess.PIPE, text=True,
        )
        for index in range(count)
    ]  # fmt: skip
    try:
        said = [one.communicate(timeout=200)[0] for one in started]
    finally:
        for one in started:
            one.kill()
    assert [one.returncode for one in started] == [0] * count
    return said[0]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [1, 2])
def test_tensorflow_goes_on_with_the_next_epoch(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("tensorflow")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    for folder in (straight, stopped):
        folder.mkdir()
    whole = workers(straight, count, "--epochs", "2")
    assert f"on {count} replicas" in whole and "began with epoch 0" in whole
    workers(stopped, count, "--epochs", "1")
    again = workers(stopped, count, "--epochs", "2")
    assert "began with epoch 1" in again
    assert float(sums(again)[0]) == pytest.approx(float(sums(whole)[0]), abs=1e-3)


# --- what the page says of the frameworks -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_keras_takes_the_mean_of_each_replica() -> None:
    """Of a last batch of 12 pictures, six of eight replicas get two each, and the mean is taken over all eight."""
    needs("tensorflow")
    code = """
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(8)])
data = tf.data.Dataset.from_tensor_slices((tf.ones((140, 1)), [[0.0]] * 128 + [[1.0]] * 12)).batch(128)
parts = [strategy.experimental_local_results(x) for x, _ in strategy.experimental_distribute_dataset(data)]
print("parts", [[len(part) for part in batch] for batch in parts])
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1, use_bias=False)])
    model.compile(tf.keras.optimizers.SGD(1.0), "mse")
model.set_weights([tf.zeros((1, 1)).numpy()])
model.fit(data, verbose=0)
print("weight", float(model.get_weights()[0][0, 0]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert f"parts {[[16] * 8, [2] * 6 + [0, 0]]}" in done.stdout, done.stdout + done.stderr
    # The first batch's gradient is 0. Of the second it's -2 times the mean of y: 1, and three quarters of that here.
    assert "weight 1.5" in done.stdout, done.stdout
