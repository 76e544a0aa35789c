"""Lesson 10: what it says of its experiments, for every guess; the stakes at its top; and the file to take home."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, load_tool, takes_nonsense

import lesson_10
from course_utils import Run, launch
from course_utils.cells.claims import ClaimError
from course_utils.results.rank_result import RankResult
from lesson_10 import GIB, STAGES, deeper

NOTEBOOK = ROOT / "notebooks" / "10_sharded_training.ipynb"
A100 = 85_094_825_984  # bytes
OUT_OF_MEMORY = """
    model(x).square().mean().backward()
torch.OutOfMemoryError: CUDA out of memory (emulated). Tried to allocate 1024 MiB. GPU 0, a NVIDIA A100-SXM4-80GB, has
79.25 GiB, of which 78.50 GiB are taken: weights 28.00 GiB, buckets 28.00 GiB, gradients 22.00 GiB, activations 0.50
GiB. Shard the weights (fully_shard), split the model over GPUs, or keep it in a shorter type.
"""


def run(*ranks: list[dict[str, Any]], stack: str = "", emulated: Any = None) -> Run:
    """A run whose ranks reported these records; `stack` is where rank 0 stands."""
    results = [RankResult(i, 0, log="no such file", records=records) for i, records in enumerate(ranks)]
    if stack:
        results[0].stack = stack
    found = Run(results, "no such script", [], "", "warm", "", 1.0, "", "finished")
    found.was_emulated = emulated  # type: ignore[attr-defined]
    return found


@pytest.fixture
def modelled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes runs on emulated GPUs, of a step and its update in seconds, and a fullest moment in GiB."""
    monkeypatch.setattr(Run, "emulated", property(lambda self: self.was_emulated))

    def made(step_s: float, update_s: float = 0.0, peak_GiB: float = 18.0) -> Run:
        peak = int(peak_GiB * GIB)
        spans = [(0, step_s, step_s + update_s, "compute", "step")]
        return run(
            [],
            emulated=SimpleNamespace(
                memory_bytes=A100,
                peaks=lambda: [(2 * step_s, peak)],
                memory=lambda: {"each of ranks 0 to 7": {"weights": peak / 2, "optimizer": peak / 2}},
                steps=lambda rank: [(0.0, step_s), (step_s, 2 * step_s)],
                spans=lambda rank: spans,
            ),
        )

    return made


def program(file: str) -> str:
    """The program of a cell, by its `--file`."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    (source,) = (c.source for c in cells if c.source.startswith("%%ranks") and f"--file {file} " in c.source)
    return str(source.partition("\n")[2])


def emulated(
    file: str, folder: Path, *args: str, gpus: int = 8, change: tuple[str, str] = ("", ""), **more: Any
) -> Run:
    """A program of the page on one of so many emulated GPUs."""
    (folder / file).write_text(program(file).replace(*change))
    return launch(folder / file, 1, args, **{"cluster": "8xA100", "one_of": gpus, "quiet": True, **more})


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "In backward. On each GPU lay, in GiB: weights 28, buckets 28, gradients 22. It has 79"),
        ("backward", "You said backward: you know what DDP keeps."),
        (" Backward()", "You said backward: you know"),
        ("step", "You said step. On paper, yes"),
        ("DDP", "You said DDP. It copies rank 0's weights"),
    ],
)
def test_where_ddp_runs_out_of_memory(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_10.show_copies(run([], stack=OUT_OF_MEMORY), guess)
    assert said in " ".join(capsys.readouterr().out.split())
    lesson_10.show_copies(run([], stack="KeyboardInterrupt"), guess)
    assert capsys.readouterr().out == "The run ended before the memory did. Run the cell again.\n"
    layers = f"Linear({lesson_10.WIDTH}, {lesson_10.WIDTH}) for _ in range({lesson_10.LAYERS})"
    assert layers in program("copies.py") and layers in program("sharded.py")


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "18.0 GiB: 14 of its own, and 4.0 on top."),
        (18, "You said 18 GiB: you thought of what's borrowed."),
        (14, "You said 14 GiB. That's its own eighth."),
        ("14 GiB", "You said 14 GiB. That's its own eighth."),
        (112, "You said 112 GiB. That's all of it"),
        (15.5, "You said 15.5 GiB. There's more on its way"),
        (5, "You said 5 GiB. Each GPU keeps an eighth"),
        (40, "You said 40 GiB. It borrows a layer or two"),
    ],
)
def test_what_fsdp_holds(guess: Any, said: str, modelled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_10.show_sharded(modelled(2.83, peak_GiB=18.0), guess)
    out = capsys.readouterr().out
    assert said in out and "A step takes 2.8 s." in out and "✓ eight emulated GPUs have room for a model" in out
    assert "DDP would need" in figure.summary
    with pytest.raises(ClaimError, match="none can hold"):
        lesson_10.show_sharded(modelled(2.83, peak_GiB=90.0), guess)


def counts(n: int = 2, times: float = 1.5, gap: float = 1e-6, params: int = 800) -> Run:
    """What a rank of so many reports of each way."""

    def record(way: str) -> dict[str, Any]:
        stage, share = STAGES[way], params // n
        weights, gradients, state = (params if stage < s else share for s in (3, 2, 1))
        sent = 8 * params * (n - 1) / n * (times if way in ("FSDP", "ZeRO-1") else 1)
        return {
            "way": way, "params": params, "weight_bytes": 4 * weights, "gradient_bytes": 4 * gradients,
            "optimizer_bytes": 8 * state, "beside_bytes": 0, "sent_bytes": sent, "calls": ["1 x allreduce"],
            "gap": gap, "kept": "torch.float32",
        }  # fmt: skip

    return run(*[[record(way) for way in STAGES]] * n)


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "1.50 times.\nA rank held"),
        (1.5, "You said 1.5 times: you counted the gathers."),
        (3, "You said 3 times. There are three collectives."),
        (2, "You said 2 times. Gradients once, weights once?"),
        (1, "You said 1 times. That's what it is if"),
        (10, "You said 10 times. DDP's sum already"),
        (0.5, "You said 0.5 times. The gradients still"),
    ],
)
def test_what_is_counted(guess: Any, said: str, n: int, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_10.show_counts(counts(n), guess)
    out = capsys.readouterr().out
    assert said in out and out.count("✓") == 2 and f"held {1 / n:.0%} of what it did" in out
    assert "ZeRO-1" not in figure.summary
    with pytest.raises(ClaimError, match="weights of DDP"):
        lesson_10.show_counts(counts(n, gap=0.3))
    with pytest.raises(ClaimError, match="1.5 times as much"):
        lesson_10.show_counts(counts(n, times=2.0))


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "0.61 times: 236 ms, and DDP takes 386."),
        (0.6, "You said 0.6 times: you thought of the update."),
        (1.5, "You said 1.5 times. That would be so if"),
        (1, "You said 1 times. So it would be"),
        (1.1, "You said 1.1 times. Sending hides"),
        (0.1, "You said 0.1 times. Computing takes"),
    ],
)
def test_more_traffic_in_less_time(guess: Any, said: str, modelled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ddp, fsdp = modelled(0.386, 0.191), {"float32": modelled(0.236, 0.0238), "bfloat16": modelled(0.184, 0.0238)}
    lesson_10.show_ways(ddp, fsdp, guess)
    out = capsys.readouterr().out
    assert said in out and "The update takes 191 ms under DDP and 24 with shards." in out
    assert "The rest is 195 ms under DDP and 212 under FSDP." in out and "rest is 160 ms, and a step 184." in out
    with pytest.raises(ClaimError, match="faster with shards"):
        lesson_10.show_ways(modelled(0.24, 0.19), fsdp, guess)


def test_two_machines(modelled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    far = {
        "DDP": modelled(0.9, peak_GiB=60),
        "bfloat16": modelled(1.5, peak_GiB=5),
        "hybrid": modelled(0.4, peak_GiB=8),
    }
    lesson_10.show_far(far)
    assert "Shards over all 16 take 1500 ms, 1.7 times DDP's. Hybrid takes 400" in capsys.readouterr().out
    with pytest.raises(ClaimError, match="over a slow link"):
        lesson_10.show_far({**far, "hybrid": modelled(1.5)})


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "It stays, at 0.5000."),
        ("stay", "You said stay: the optimizer has nothing to do."),
        ("It stays.", "You said stay: the optimizer"),
        ("falls", "You said fall. Forward and backward do compute."),
        ("error", "You said error. It would be kinder."),
        (3, "Your bet should be one of these: error, fall, stay."),
    ],
)
def test_an_optimizer_that_came_too_early(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_10.show_early(run([{"loss": 0.5}] * 5), guess)
    assert said in capsys.readouterr().out
    with pytest.raises(ClaimError, match="trains nothing"):
        lesson_10.show_early(run([{"loss": 0.5 - i / 10} for i in range(5)]), guess)


def test_bets_that_are_none(modelled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fsdp = {"float32": modelled(0.236, 0.0238), "bfloat16": modelled(0.184, 0.0238)}
    takes_nonsense(lambda guess: lesson_10.show_copies(run([], stack=OUT_OF_MEMORY), guess), capsys)
    takes_nonsense(lambda guess: lesson_10.show_sharded(modelled(2.83), guess), capsys)
    takes_nonsense(lambda guess: lesson_10.show_counts(counts(), guess), capsys)
    takes_nonsense(lambda guess: lesson_10.show_ways(modelled(0.386, 0.191), fsdp, guess), capsys)
    takes_nonsense(lambda guess: lesson_10.show_early(run([{"loss": 0.5}] * 5), guess), capsys)
    takes_nonsense(lesson_10.show_stages, capsys)


# --- The programs of the page -----------------------------------------------------------------------------------------


def test_the_page_begins_with_what_the_emulated_gpus_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its stakes are typed, so they are compared: what the model takes, and how long a step is."""
    stakes = str(nbformat.read(NOTEBOOK, as_version=4).cells[1].source)
    found = emulated("sharded.py", tmp_path)
    assert f"take {lesson_10._step_s(found):.1f} seconds for a step" in stakes
    whole = lesson_10._params() * lesson_10.STATES / GIB
    assert f"{lesson_10._params() / 1e9:.1f} billion parameters" in stakes and f"or {whole:.0f} GiB in all" in stakes
    assert f"would hold {8 * round(whole)} GiB, and {7 * round(whole)} of these are copies" in stakes
    lesson_10.show_sharded(found)
    assert "14 of its own" in capsys.readouterr().out


def test_ddp_dies_of_its_buckets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also on a machine that has less memory than the one bucket of its first step, 28 GiB."""
    lesson_10.show_copies(emulated("copies.py", tmp_path, check=False))
    assert "In backward. On each GPU lay, in GiB: weights 28, buckets 28" in " ".join(capsys.readouterr().out.split())


def test_without_the_last_line_all_weights_stay(tmp_path: Path) -> None:
    """As the page says of `fully_shard(model)`, though the model has no weights of its own."""
    with_it = lesson_10._peak(emulated("sharded.py", tmp_path))
    line = "fully_shard(model)                                       # and one for what is left\n"
    assert line in program("sharded.py")
    without = lesson_10._peak(emulated("sharded.py", tmp_path, change=(line, "")))
    assert without > with_it + 0.7 * 4 * lesson_10._params()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_ways_on_emulated_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ddp, wide, narrow, whole = (emulated("ways.py", tmp_path, w) for w in ("DDP", "float32", "bfloat16", "one unit"))
    lesson_10.show_ways(ddp, {"float32": wide, "bfloat16": narrow})
    lesson_10.show_one_unit(narrow, whole)
    two = {"cluster": lesson_10.TWO_MACHINES, "gpus": 16}
    lesson_10.show_far({way: emulated("ways.py", tmp_path, way, **two) for way in ("DDP", "bfloat16", "hybrid")})
    assert capsys.readouterr().out.count("✓") == 4


def test_the_program_whose_optimizer_comes_too_early(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(program("early.py"))
    lesson_10.show_early(launch(tmp_path / "early.py", 2, device="cpu", threads=1, quiet=True))
    (shards,) = (line for line in program("early.py").splitlines(True) if line.startswith("fully_shard("))
    mended = program("early.py").replace(shards, "").replace("optimizer =", f"{shards}optimizer =")
    (tmp_path / "early.py").write_text(mended)
    losses = launch(tmp_path / "early.py", 2, device="cpu", threads=1, quiet=True).ranks[0].values("loss")
    assert losses[-1] < losses[0], "made in time, it trains"


def test_a_checkpoint_goes_on_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "elastic.py").write_text(program("elastic.py"))
    two, one, four = (
        launch(tmp_path / "elastic.py", n, [word], device="cpu", threads=1, quiet=True)
        for n, word in ((2, "save"), (1, "load"), (4, "load"))
    )
    lesson_10.show_elastic(two, one, four)
    assert ".metadata, __0_0.distcp, __1_0.distcp" in capsys.readouterr().out
    unlike = run([{"loss": 1.0}])
    unlike.script = two.script
    with pytest.raises(ClaimError, match="goes on alike"):
        lesson_10.show_elastic(two, unlike, four)


@pytest.mark.slow
def test_the_counts_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = lesson_10.count()
    lesson_10.show_counts(found)
    assert len(lesson_10.show_stage_1(found).rows) == 3
    assert capsys.readouterr().out.count("✓") == 4


# --- The file to take home --------------------------------------------------------------------------------------------


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", text)]


@pytest.mark.timeout(200)
def test_the_file_to_take_home_trains_saves_and_goes_on(tmp_path: Path) -> None:
    """One rank and two train alike; two go on with what one has saved; and the exported file is an ordinary one."""
    spec = importlib.util.spec_from_file_location("take_home_10", lesson_10.TAKE_HOME)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found, weights = {}, {}
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        answer = torchrun(
            lesson_10.TAKE_HOME, "--steps", "22", "--export", "whole.pt", ranks=ranks, cwd=folder, mesh=True
        )
        assert answer.returncode == 0, answer.stderr
        found[ranks] = losses(answer.stdout)
        model = module.Model()
        model.load_state_dict(torch.load(folder / "whole.pt"))
        weights[ranks] = torch.cat([p.flatten() for p in model.parameters()])
    assert len(found[1]) == 3 and found[1][-1] < found[1][0]
    assert all(abs(a - b) < 2e-2 for a, b in zip(found[1], found[2], strict=True)), found
    assert (weights[1] - weights[2]).norm() < 0.05 * weights[1].norm()
    again = torchrun(lesson_10.TAKE_HOME, "--steps", "24", "--resume", ranks=2, cwd=tmp_path / "1", mesh=True)
    assert again.returncode == 0, again.stderr
    assert "step 23:" in again.stdout and "step 0:" not in again.stdout and losses(again.stdout)[-1] < found[1][0]
    other = torchrun(
        lesson_10.TAKE_HOME, "--steps", "1", "--weights", "whole.pt", ranks=2, cwd=tmp_path / "1", mesh=True
    )
    assert other.returncode == 0, other.stderr
    assert losses(other.stdout)[0] < found[1][0] - 0.05, "it began with what was trained"


@pytest.mark.parametrize(
    ("args", "says"),
    [(["--resume"], "there's no whole checkpoint"), (["--resume", "--weights", "a.pt"], "take one of them")],
)
@pytest.mark.slow
def test_the_file_to_take_home_refuses(args: list[str], says: str, tmp_path: Path) -> None:
    answer = torchrun(lesson_10.TAKE_HOME, *args, ranks=1, cwd=tmp_path, mesh=True)
    assert answer.returncode and says in answer.stderr + answer.stdout


# --- The deeper part --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "60.9 GB with autocast, and 31.4 as the paper counts."),
        (60, "You said 60 GB: weights and gradients stay"),
        (31.4, "You said 31.4 GB. That's the paper's number"),
        (2, "You said 2 GB. Stage 1 leaves"),
        (120, "You said 120 GB. The optimizer's 8 bytes"),
    ],
)
def test_the_stages_on_paper(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_10.show_stages(guess)
    out = capsys.readouterr().out
    assert said in out and "✓ the formula gives the sizes" in out


def test_published_runs(capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_10.show_published()
    out = capsys.readouterr().out
    assert "With 128 GPUs each does 98% of what it does with 8, and with 512 it does 91%." in out
    assert "512 H100" in figure.summary and "1 more" not in out


def test_ways_out(capsys: pytest.CaptureFixture[str]) -> None:
    from course_utils import predict

    training = predict.Training(1.3e9, 24, 0.4, 0.8, 12e9, 0.1e9)
    for memory, bandwidth, best in ((80, 20, "DDP:"), (20, 1, "pipeline:"), (1, 20, "None of them:")):
        deeper.show_ways_out(training, memory_GiB=memory, bandwidth_GBps=bandwidth)
        assert capsys.readouterr().out.startswith(best)


@pytest.mark.slow
def test_what_travels_in_16_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(lesson_10.show_policies().rows) == 3
    assert "✓ 16 bits for all that travels" in capsys.readouterr().out


@pytest.mark.parametrize(
    "case",
    [
        "llama-tiny:2:64:none:1:eager:2",
        "llama-tiny:2:64:selective:1:compiled:1",
        "llama-tiny:4:64:full:tp2:compiled:1",
        "llama-tiny:2:128:full:cp2:eager:1",
        "mixtral-tiny:2:64:full:1:eager:1",
        "mixtral-tiny:2:64:none:ep2:compiled:1",
        "mpt-tiny:2:64:full:1:eager:1",
    ],
)
def test_the_language_models_train_however_they_are_split(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    run = launch(deeper.LANGUAGE, 1, args=[case], cluster="4xA100", one_of=4, quiet=True)
    (record,) = run.ranks[0].records
    assert record["case"] == case and record["tokens_per_s"] > 0 and record["peak_bytes"] > 0


@pytest.mark.slow
def test_a_plan_for_eight_billion(capsys: pytest.CaptureFixture[str]) -> None:
    """What the page says of it: four real programs, one of which doesn't fit."""
    figure = lesson_10.show_plan()
    out = " ".join(capsys.readouterr().out.split())
    assert "Doesn't fit into 80 GB: keep all." in out and "The fastest that fits, keep some," in out, out
    assert "4 more checks passed" in out and "predicted" in figure.summary


def test_the_plans_are_those_that_the_tool_runs(capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_10.show_plans()
    rows = json.loads(deeper.KEPT_PLANS.read_text())
    bench = load_tool("bench_emulation")
    asked = [(name, case) for name, ways in bench.PLAN.items() for case in ways]
    assert [(row["cluster"], row["case"]) for row in rows] == asked
    assert f"{len(rows)} ways" in figure.summary and "✓" in capsys.readouterr().out
    labels = [label.get_text() for label in figure.mpl.axes[0].get_yticklabels()]
    assert len(labels) == len(rows)
    for row in rows:  # what isn't emulated
        model, _, length, *_ = row["case"].split(":")
        assert row["flops_per_token"] == pytest.approx(bench.flops_per_token(model, int(length)))
        assert row["predicted_tokens_per_s"] == pytest.approx(bench.predicted_rate(row["case"], row["cluster"]))


@pytest.mark.slow
def test_a_kept_plan_is_what_its_program_says_again() -> None:
    bench = load_tool("bench_emulation")
    rows = [row for row in json.loads(deeper.KEPT_PLANS.read_text()) if row["case"].startswith("llama3-8b:2:8192:full")]
    for row in rows:
        assert bench.language(row["case"], row["cluster"])["tokens_per_s"] == pytest.approx(row["tokens_per_s"])
    assert rows


def test_a_pipeline_of_a_language_model_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of each stage, which stands for the others of its stage."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    cases = ["llama-tiny:2:64:none:pp2:eager:4", "gpt-tiny:1:64:core:tp2pp2x2:compiled:4"]
    run = launch(deeper.LANGUAGE, 2, args=cases, cluster="8xA100", one_of=8, quiet=True)
    for rank in run.ranks:
        assert [record["case"] for record in rank.records] == cases
        assert all(record["tokens_per_s"] > 0 for record in rank.records)
    assert run.ranks[0].records[0]["tokens_per_s"] == pytest.approx(run.ranks[1].records[0]["tokens_per_s"], rel=0.02)
