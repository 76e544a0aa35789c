"""Lesson 04: what it says of its experiments, for every guess and every number of ranks; and the file to take home."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, concludes_nothing, disturb, made_run, takes_nonsense
from torch.utils.data import DistributedSampler

import lesson_03
import lesson_04
from course_utils import Run, Samples, Sweep, launch
from course_utils.cells.claims import ClaimError
from course_utils.figures import Figure
from course_utils.show.pages import AT_ONCE, SENTENCE_ENDS, Diff


def test_diff_counts_lines(tmp_path):
    before, after = tmp_path / "plain.py", tmp_path / "ddp.py"
    before.write_text("import torch\n\nmodel = net()\ntrain(model)\n")
    after.write_text("import torch\nimport torch.distributed as dist\n\nmodel = DDP(net())  \ntrain(model)   \n")
    diff = lesson_04.diff(before, after)
    assert (diff.added, diff.removed, diff.kept) == (2, 1, 3)
    assert str(diff).splitlines() == [
        "From plain.py to ddp.py: 2 lines added, 1 line removed, 3 lines kept.",
        "  import torch",
        "+ import torch.distributed as dist",
        "",
        "- model = net()",
        "+ model = DDP(net())",
        "  train(model)",
    ]


def test_diff_calls_scripts_as_the_learner_does(tmp_path):
    paths = [tmp_path / name for name in ("plain-0a1b2c3d.py", "ddp-ffffffff.py", "ddp-00000000.py")]
    for path in paths:
        path.write_text("x = 1\n")
    assert lesson_04.diff(paths[0], paths[1]).names == ("plain.py", "ddp.py")
    assert lesson_04.diff(paths[1], paths[2]).names == ("ddp-ffffffff.py", "ddp-00000000.py")


def test_diff_folds_long_unchanged_stretches_and_escapes():
    same = "\n".join(f"line {i}" for i in range(20))
    diff = Diff(same + "\na < b", same + "\na > b")
    assert (diff.added, diff.removed, diff.kept) == (1, 1, 20)
    assert "… 19 lines unchanged" in str(diff) and "line 18\n" not in str(diff) and "line 19\n" in str(diff)
    page = diff._repr_html_()
    assert "- a &lt; b" in page and "+ a &gt; b" in page


def test_diff_of_equal_files_and_of_a_missing_one(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    assert (lesson_04.diff(path, path).added, lesson_04.diff(path, path).removed) == (0, 0)
    with pytest.raises(FileNotFoundError, match="run the cell that saves it first"):
        lesson_04.diff(path, tmp_path / "b.py")


# --- what it says of its experiments ----------------------------------------------------------------------------------


def run(*ranks: list[dict[str, object]], script: Path | str = "ddp.py") -> Run:
    return made_run(*ranks, script=script)


def trained(
    n: int, step_s: float, folder: Path, images: int = 40, set_epoch: bool = True, lost: int = 0, epochs: int = 2
) -> Run:
    """A training of `n` ranks as the lesson's trainers report it; `lost` images of rank 0 never reach its model."""
    ranks: list[list[dict[str, object]]] = []
    for rank in range(n):
        sampler, records, now = DistributedSampler(range(images), n, rank), [], 0.0
        for epoch in range(epochs):
            if set_epoch:
                sampler.set_epoch(epoch)
            mine = list(sampler)
            records.append({"epoch": epoch, "indices": mine, "time": now})
            for i in range(0, len(mine), 2):
                now += step_s
                missing = lost if rank == 0 and i == 0 else 0
                loss = 2.0 / (1 + len(records))
                records.append({"loss": loss, "images": len(mine[i : i + 2]) - missing, "time": now})
        ranks.append(records)
    script = folder / ("plain.py" if n == 1 else "ddp.py")
    lines = [f"line {i}" for i in range(20)]
    script.write_text("\n".join(lines if n == 1 else [*lines, "DDP"]))
    return run(*ranks, script=script)


@pytest.mark.parametrize(
    ("n", "guess", "said"),
    [
        (2, ..., "Both ranks hold 3: 1 + 2. You made no bet."),
        (2, None, "You made no bet."),
        (2, 3, "You knew."),
        (2, 1, "You said 1. That's what rank 0 brought"),
        (2, 5, "You said 5. Each rank brings one tensor"),
        (1, 1, "You said 1. You knew."),
        (8, 36.0, "All 8 ranks hold 36: 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8. You said 36. You knew."),
    ],
)
def test_the_sum(n: int, guess: object, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    total = n * (n + 1) / 2
    lesson_04.show_sum(run(*([{"total": total}] for _ in range(n))), guess)
    assert said in capsys.readouterr().out
    with pytest.raises(ClaimError, match="the same sum"):
        lesson_04.show_sum(run([{"total": total}], [{"total": 1.0}]), guess)


@pytest.mark.parametrize("module", [lesson_03, lesson_03.deeper, lesson_04])
def test_a_result_shows_its_figure_first(module: ModuleType) -> None:
    results = [
        f for name, f in vars(module).items() if name.startswith("show_") and f.__annotations__["return"] == "Figure"
    ]
    assert results and not [f.__name__ for f in results if not hasattr(f, "__wrapped__")], "give it @figure_first"


def figure_title(figure: Figure) -> str:
    return str(figure.mpl.get_suptitle())


@pytest.mark.parametrize(
    ("n", "images", "step_s", "said"),
    [
        (2, 40, 0.5, ["✓ several ranks train faster", "one model on 2 processes, 2.0 times as fast", "20 steps"]),
        (8, 160, 0.1, ["one model on 8 processes, 10.0 times as fast"]),
        (3, 40, 0.4, ["40 images don't divide by 3, so 2 of them came twice"]),
        (2, 40, 1.0, ["○ not shown here: several ranks train faster", "Too close to call", "close them"]),
    ],
)
def test_the_training(
    n: int, images: int, step_s: float, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = lesson_04.show_training(trained(1, 1.0, tmp_path, images), trained(n, step_s, tmp_path, images))
    out = capsys.readouterr().out
    assert all(words in out for words in [*said, "✓ every image had its turn in every epoch", "more checks passed"]), (
        out
    )
    assert figure.mpl.axes and ("times as fast" in figure_title(figure)) == (step_s < 1)


@pytest.mark.parametrize("which", [0, 1])
def test_a_disturbed_training_does_not_say_what_ranks_bring(
    which: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever of the two it was."""
    pair = [trained(1, 1.0, tmp_path), trained(2, 0.5, tmp_path)]
    disturb(pair[which])
    figure = lesson_04.show_training(*pair)
    out = capsys.readouterr().out
    concludes_nothing(out, "how much faster 2 ranks are")
    assert "○ not shown here: several ranks train faster" in out and "✓ every image had its turn" in out
    assert "2.0 times" not in out and "Recorded on AMD EPYC, 2 cores, 24 GiB, no GPU: 2 ranks were 1." in out
    assert figure_title(figure).startswith("Other programs used") and "recorded on AMD EPYC" in figure.summary


def test_an_image_that_no_rank_trained_on_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ClaimError, match="every image had its turn"):
        lesson_04.show_training(trained(1, 1.0, tmp_path), trained(2, 0.5, tmp_path, lost=1))


def steps(gap: float, shift: float = 0.0, alone: float = 0.0) -> list[dict[str, object]]:
    """What a rank reports of its model and of its twin."""
    return [
        {"step": i, "gap": gap * (i + 1), "losses": [4.6, 4.6, 4.5 + alone], "sums": [5.0 - i + shift, 7 + alone]}
        for i in range(5)
    ]


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "Would you have guessed so little?"),
        (0, "You said 0, and that's nearly it"),
        (1e-12, "You said 1e-12: rounding is all that's left."),
        (1e-9, "You said 1e-09. It's far less"),
        (1e-3, "You said 0.001. It's far less"),
        ("small", "should be a number"),
    ],
)
def test_the_twin(guess: object, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_04.show_twin(run(steps(1e-16), steps(1e-16, alone=0.1)), guess)
    out = capsys.readouterr().out
    assert said in out and "differ by 5e-16 at most" in out and "✓ 6 more checks passed" in out
    assert "are 4.50 and 4.60, where DDP's are 4.60 and 4.60." in out and "you get 7.000 and 7.100." in out
    lesson_04.show_twin(run(*(steps(1e-16, alone=rank / 10) for rank in range(8))), guess)
    assert "7.000, 7.100, 7.200, 7.300, ...." in capsys.readouterr().out
    with pytest.raises(ClaimError, match="one process goes with the whole batch"):
        lesson_04.show_twin(run(steps(1e-3), steps(1e-3, alone=0.1)), guess)
    with pytest.raises(ClaimError, match="a model of its own"):
        lesson_04.show_twin(run(steps(1e-16), steps(1e-16)), guess)
    with pytest.raises(ClaimError, match="all ranks hold the same weights"):
        lesson_04.show_twin(run(steps(1e-16), steps(1e-16, shift=1e-9, alone=0.1)), guess)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "eight A100 train 3.9 times as fast as one.\n"),
        ("four", "should be a number between 1 and 8"),
        (4.2, "You said 4.2: you could plan a cluster."),
        (8, "You said 8: as most people"),
        (1, "better than you feared"),
    ],
)
def test_eight_gpus(
    guess: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = ({k: Samples([850 * k**p], "images_per_s") for k in (1, 2, 4, 8)} for p in (0.98, 0.66))
    monkeypatch.setattr(lesson_04, "_emulated", lambda: (near, far, 95_000_000))
    lesson_04.show_eight(trained(1, 1.0, tmp_path), trained(2, 0.5, tmp_path), guess)
    out = capsys.readouterr().out
    first, week, *_ = out.splitlines()
    assert said in f"{first}\n" and len(SENTENCE_ENDS.split(f"{first} {week}")) <= AT_ONCE, (
        "the rest waits behind a click"
    )
    assert week == (
        "Your week of training takes 22 hours over NVLink, 2 hours to spare, and 43 hours over Ethernet, 19 hours too"
        " long."
    )
    assert "sends 2 x 7/8 of its 95 MB of gradients. At 2.8 GB/s (90% of the line) that takes 59.4 ms." in out
    assert "12.5 + 59.4 = 71.9 ms, and eight GPUs are 8 x 37.6 / 71.9 = 4.2 times as fast as one." in out
    assert "the published ones, 6.54 times: 25.7 hours. Just too long." in out
    assert "links carry 60 to 230 GB/s" in out and "once in 32 to 64" in out


def test_a_disturbed_point_is_drawn_next_to_a_recorded_one_and_not_told_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = ({k: Samples([850 * k**p], "images_per_s") for k in (1, 2, 4, 8)} for p in (0.98, 0.66))
    monkeypatch.setattr(lesson_04, "_emulated", lambda: (near, far, 95_000_000))
    plain, ddp = trained(1, 1.0, tmp_path), trained(2, 0.5, tmp_path)
    same, together = run([{"gap": 0.0}], [{"gap": 0.0}]), run([{"correct": 3}], [{"correct": 3}])
    assert "recorded on" not in lesson_04.show_eight(plain, ddp).summary
    assert "On 2 ranks it was 2.0 times as fast." in str(lesson_04.what_you_saw(plain, ddp, same, together))
    capsys.readouterr()
    assert "recorded on AMD EPYC" in lesson_04.show_eight(plain, disturb(ddp), 8).summary
    out = capsys.readouterr().out
    assert "meanwhile, so your machine's own points say nothing. Next to them are the recorded ones." in out
    assert "You said 8: as most people" in out, "that bet is on emulated GPUs, and they don't mind"
    words = str(lesson_04.what_you_saw(plain, ddp, same, together))
    assert "run section 2 again to see what 2 ranks bring" in words and "2.0 times" not in words


def test_a_disturbed_sweep_is_not_conclusive(capsys: pytest.CaptureFixture[str]) -> None:
    alone, scaling = run([{"step_s": 1.0}]), Sweep([{"ranks": 1}], [[run([{"step_s": 1.0}])] * 3])
    assert lesson_04.conclusive(alone, scaling) and capsys.readouterr().out == ""
    assert not lesson_04.conclusive(alone, disturb(scaling))
    out = capsys.readouterr().out
    concludes_nothing(out, "how ranks scale")
    assert "Recorded on AMD EPYC" in out


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "Would you have noticed?"),
        ("nothing at all", "You said nothing, and nothing tells you."),
        ("Error", "You said error, and hoped for one. There's none"),
        ("loss", "You said loss, and hoped that it would tell. Would you stop"),
    ],
)
def test_without_set_epoch(guess: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = trained(2, 0.5, tmp_path), trained(2, 0.5, tmp_path, set_epoch=False)
    lesson_04.show_order(good, bad, guess)
    out = capsys.readouterr().out
    assert said in out and "✓ without set_epoch every epoch has the same order" in out
    with pytest.raises(ClaimError, match="the same order"):
        lesson_04.show_order(good, good, guess)


def test_a_bet_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = ({k: Samples([850 * k**p], "images_per_s") for k in (1, 2, 4, 8)} for p in (0.98, 0.66))
    monkeypatch.setattr(lesson_04, "_emulated", lambda: (near, far, 95_000_000))
    plain, good = trained(1, 1.0, tmp_path), trained(2, 0.5, tmp_path)
    bad = trained(2, 0.5, tmp_path, set_epoch=False)
    for show in (
        lambda guess: lesson_04.show_sum(run([{"total": 3.0}], [{"total": 3.0}]), guess),
        lambda guess: lesson_04.show_twin(run(steps(1e-16), steps(1e-16, alone=0.1)), guess),
        lambda guess: lesson_04.show_eight(plain, good, guess),
        lambda guess: lesson_04.show_order(good, bad, guess),
    ):
        takes_nonsense(show, capsys)


def test_a_changed_program_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, launched = tmp_path / "ddp.py", []
    script.write_text("for epoch in range(2):\n    sampler.set_epoch(epoch)\n    train()\n")
    monkeypatch.setattr(lesson_04, "launch", lambda path, *_, **__: launched.append(Path(path).read_text()))
    lesson_04.without(run(script=script), "sampler.set_epoch(epoch)")
    assert launched == ["for epoch in range(2):\n    pass\n    train()\n"] and "set_epoch" in script.read_text()
    with pytest.raises(ValueError, match=r"'drop\(\)' is in the program 0 times"):
        lesson_04.without(run(script=script), "drop()")


def test_what_it_takes_home_and_sums_up_reads_in_a_terminal_too(tmp_path: Path) -> None:
    program = lesson_04.take_home()
    assert str(program) == lesson_04.TAKE_HOME.read_text() and "```python\n" in program._repr_markdown_()
    assert str(lesson_04.Words(["one", "two"])) == "- one\n- two"


def test_what_the_pages_say_of_the_change_and_of_equal_shares() -> None:
    pages = {n: next((ROOT / "notebooks").glob(f"{n}_*.ipynb")) for n in ("03", "04")}
    cells = ["".join(cell["source"]) for cell in json.loads(pages["04"].read_text())["cells"]]
    plain, ddp = (next(c for c in cells if f"--file {name}.py" in c) for name in ("plain", "ddp"))
    assert 16 <= Diff(plain, ddp).added <= 24 and "some twenty lines" in "".join(cells)
    assert "one line | some twenty |" in pages["03"].read_text()
    for images in range(1, 30):
        for ranks, drop_last in itertools.product((2, 3, 4), (False, True)):
            shares = {len(list(DistributedSampler(range(images), ranks, r, drop_last=drop_last))) for r in range(ranks)}
            assert len(shares) == 1, "the fold in section 4 says that shares are equal, in the last batch, too"


# --- the file to take home --------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_the_file_to_take_home_trains_alike_on_one_rank_and_on_two(tmp_path: Path) -> None:
    """Under torchrun, and to rounding: the sampler gives two ranks with half of the batch the batch of one rank."""
    saved = []
    for ranks in (1, 2):
        out = tmp_path / f"{ranks}.pt"
        answer = torchrun(lesson_04.TAKE_HOME, "--epochs", "2", "--out", str(out), ranks=ranks, cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        right = [
            float(share)
            for share in re.findall(r"epoch \d: loss \d\.\d+, ([\d.]+)% of the test set right", answer.stdout)
        ]
        assert len(right) == 2 and right[-1] > 70, answer.stdout
        saved.append(torch.load(out))
    one, two = (state["model"] for state in saved)
    assert saved[0]["epoch"] == 1 and all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)
    assert not any(name.startswith("module.") for name in one)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.pt", "2.pt"], "nothing half written is left"


@pytest.mark.timeout(120)
def test_the_file_to_take_home_notices_a_rank_that_went_astray(tmp_path: Path) -> None:
    script = tmp_path / "astray.py"
    script.write_text(
        f"import runpy, torch, torch.distributed as dist\nfrom course_utils.rank import report\n"
        f"in_step = runpy.run_path({str(lesson_04.TAKE_HOME)!r})['in_step']\n"
        "dist.init_process_group('gloo')\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(3, 3)\n"
        "report(before=in_step(model))\n"
        "with torch.no_grad():\n    model.weight[0, 0] += dist.get_rank() * 1e-3\n"
        "report(after=in_step(model))\ndist.destroy_process_group()\n"
    )
    found = launch(script, 2, device="cpu", quiet=True)
    assert found.values("before") == [True, True] and found.values("after") == [False, False]


def test_the_file_to_take_home_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"

    def train(*args: object) -> Run:
        return launch(lesson_04.TAKE_HOME, 2, args=args, device="cpu", threads=1, quiet=True)

    train("--epochs", 2, "--out", whole)
    train("--epochs", 1, "--out", parts)
    resumed = train("--epochs", 2, "--out", parts, "--resume")
    assert "epoch 1" in resumed.log(0) and "epoch 0" not in resumed.log(0)
    one, two = torch.load(whole), torch.load(parts)
    assert one["epoch"] == two["epoch"] == 1
    assert all(torch.allclose(one["model"][name], two["model"][name], atol=1e-6) for name in one["model"])


def test_the_file_to_take_home_tests_what_it_saves(tmp_path: Path) -> None:
    """Each rank's BatchNorm has running means of its own; those of rank 0 are saved, so they are what's tested."""
    script = tmp_path / "running_means.py"
    script.write_text(
        f"import runpy, torch, torch.distributed as dist\nfrom course_utils.rank import report\n"
        f"accuracy = runpy.run_path({str(lesson_04.TAKE_HOME)!r})['accuracy']\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.BatchNorm1d(2)\nmodel.running_mean[dist.get_rank()] = 9.0\n"
        "x = torch.tensor([[5.0, 0.0]] * 4)\nset_of_four = torch.utils.data.TensorDataset(x, torch.zeros(4))\n"
        "report(right=accuracy(model, set_of_four, torch.device('cpu')), mean=model.running_mean.tolist())\n"
        "dist.destroy_process_group()\n"
    )
    found = launch(script, 2, device="cpu", quiet=True)
    assert found.values("mean") == [[9.0, 0.0]] * 2
    assert found.values("right") == [0.0, 0.0], "with running means of its own, rank 1 would have found two right"
