"""Emulated GPUs as a learner meets them: the cell's options, what a launch says and leaves, and its figures."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from course_utils import figures, traces
from course_utils.cells.claims import claim
from course_utils.cells.magic import ranks as magic
from course_utils.cells.magic_line import DEFAULTS, page, ranks_options, words_of
from course_utils.emulation.clusters import cluster
from course_utils.emulation.sharing_out import share_out
from course_utils.failure.errors import LaunchError, RankError
from course_utils.launching.launcher import cool_down, launch
from course_utils.launching.options import LaunchOptions
from course_utils.launching.sweeps import sweep
from course_utils.launching.under_the_cell.cell import busy_machine
from course_utils.machine.here import Machine
from course_utils.results.emulated import Emulated
from course_utils.results.run import Run
from course_utils.results.samples import Samples

pytestmark = pytest.mark.xdist_group("emulated")  # one warm server for all

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from course_utils.rank import device, report, timer

if __name__ == "__main__":
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    report(place=[int(os.environ[name]) for name in names], device=str(device()))
    dist.init_process_group()
    torch.cuda.set_device(device())
    if "raise" in sys.argv and dist.get_rank() == 1:
        raise ValueError("on purpose")
    if "kill" in sys.argv and dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    if "hang" in sys.argv:
        dist.all_reduce(torch.ones(1, device=device()))
        while True:
            pass
    width = 30_000 if "large" in sys.argv else 2048
    layers = [torch.nn.Linear(width, width, device=device()) for _ in range(8 if "large" in sys.argv else 3)]
    model = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(256, width, device=device())
    for step in range(4):
        before, clock = time.time(), time.perf_counter()
        with timer() as t:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if step > 1:
            report(step_s=t.seconds, by_time_s=time.time() - before, by_clock_s=time.perf_counter() - clock)
    print("done")
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "train.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_HOME", str(folder))
        patch.setenv("COURSE_NOTEBOOK", "lesson.ipynb")
        yield folder / "train.py"
    cool_down()


@pytest.fixture(scope="module")
def run(script: Path) -> Run:
    """Two ranks of a small DDP program; rank 1 is slow."""
    return launch(script, 2, cluster="4xV100", slow={1: 1.5}, quiet=True)


# --- asking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2 --cluster 8xB300", "no device 'B300'; known are T4, V100"),
        ("9 --cluster 8xA100", "9 ranks need 9 GPUs, and 8xA100 has 8; name a larger cluster, or take fewer ranks"),
        ("4 --cluster 8xA100 --gpus-per-rank 3", "4 ranks need 12 GPUs, and 8xA100 has 8"),
        ("--cluster 2xA100 --gpus-per-rank 3", "1 rank needs 3 GPUs, and 2xA100 has 2"),
        ("1024 --cluster 1024xH100", "emulate one of them: one_of=1024 (--one-of 1024)"),
        ("3 --cluster 8xA100 --one-of 8", "each rank that runs stands for as many, and 8 isn't a multiple of ranks=3"),
        ("8 --cluster 8xA100 --one-of 4", "4 isn't a multiple of ranks=8"),
        ("--cluster 8xA100 --one-of 9", "one_of must be a number of ranks up to 8"),
        ("2 --cluster 8xA100 --nodes 3", "8 GPUs can't be shared out evenly to 3 nodes"),
        ("2 --cluster 8xA100 --slow 8=2", "slow names rank 8, and 8xA100 has ranks 0 to 7"),
        ("2 --cluster 8xA100 --slow fast", "argument --slow: write RANK=X, as in 3=1.3; got 'fast'"),
        ("2 --cluster 8xA100 --slow 0=0", "slow says how many times as long rank 0 takes"),
        ("2 --slow 0=2", "slow, one_of and host are for emulated GPUs; name them too, as in cluster='8xA100'"),
        ("--host measured", "slow, one_of and host are for emulated GPUs"),
        ("--host real --cluster 8xA100", "argument --host: invalid choice: 'real'"),
        ("--one-of 8", "slow, one_of and host are for emulated GPUs"),
        ("2 --cluster 8xA100 --device cpu", "a cluster says what the ranks compute on: leave out device='cpu'"),
        (
            "2 --cluster 8xA100 --engine slurm",
            "our own launcher emulates GPUs, on this machine: leave out engine='slurm'",
        ),
        ("2 --cluster 8xA100 --engine torchrun", "leave out engine='torchrun'"),
        ("2 --cluster 8xA100 --max-restarts 1", "leave out max_restarts=1"),
        ("2 --cluster 8xA100 --detach", "only a Slurm job can run on by itself"),
        ("2 --cluster 8xA100 --threads 0", "threads must be a whole number above 0"),
    ],
)
def test_what_cannot_be_emulated_is_refused_before_anything_starts(script: Path, line: str, words: str) -> None:
    with pytest.raises(LaunchError) as error:
        magic(line, "x = 1\n", {})
    assert words in str(error.value)


def test_defaults_for_real_devices_do_not_stand_in_the_way() -> None:
    mine = {**DEFAULTS, "device": "cpu", "engine": "slurm", "timeout": 5.0}
    asked = ranks_options(words_of("8 --cluster 8xA100 --slow 3=1.3 --slow 4=2 --nodes 2"), mine)
    assert (asked.device, asked.engine, asked.timeout) == ("auto", "auto", 5.0)
    assert (asked.slow, asked.nodes) == ({3: 1.3, 4: 2.0}, 2)
    assert ranks_options(words_of("8 --cluster 8xA100"), {**mine, "engine": "cold"}).engine == "cold"
    assert ranks_options(words_of("8"), mine).engine == "slurm"
    assert LaunchOptions(Path("x.py"), device="cuda", cluster="8xA100").device == "cuda", "which is what it has"
    assert "--cluster NAME" in page() and "--one-of N" in page()


@pytest.mark.parametrize(
    ("name", "ranks", "each", "more", "found", "words"),
    [
        ("8xA100", None, 1, {}, (8, 1), "8 ranks on an emulated 8xA100 (NVIDIA A100-SXM4-80GB): times are modelled"),
        ("8xA100", None, 2, {}, (4, 2), "4 ranks on an emulated 8xA100 (NVIDIA A100-SXM4-80GB), 2 GPUs each:"),
        ("8xA100", 1, None, {}, (1, 8), "1 rank on an emulated"),
        ("1024xH100", None, 1, {"one_of": 1024}, (1, 1), "1 rank of 1,024 on an emulated 1024xH100 in 128 nodes"),
        ("64xH100", 4, 1, {"one_of": 64}, (4, 1), "4 ranks of 64 on an emulated 64xH100 in 8 nodes"),
        ("64xH100", 4, None, {"one_of": 64}, (4, 1), "is computed, and each rank stands for 16 that do the same."),
        ("8xH100", 8, None, {"one_of": 8}, (8, 1), "times are modelled, nothing large is computed."),
        ("4xT4", 3, 1, {"slow": {2: 1.3}}, (3, 1), "an emulated 4xT4, rank 2 1.3 times as slow (Tesla T4)"),
    ],
)
def test_gpus_are_shared_out_to_ranks(
    name: str, ranks: int | None, each: int | None, more: dict[str, Any], found: tuple[int, int], words: str
) -> None:
    world, per_rank, sentence = share_out(cluster(name, **more), ranks, each, most=32)
    assert (world, per_rank) == found and words in sentence


# --- a launch ---------------------------------------------------------------------------------------------------------


def test_a_run_says_that_it_was_emulated_and_on_what(run: Run) -> None:
    assert run.ok and run.provenance.kind == "emulated"
    assert run.provenance.machine == "4xV100, rank 1 1.5 times as slow"
    shown = str(run)
    assert "2 ranks, emulated on 4xV100, rank 1 1.5 times as slow, " in shown and "s of real time, finished" in shown
    assert "what large tensors held was not computed." in shown and "peak memory" in shown
    assert "emulated" in run._repr_html_() and "on real GPUs" in run._repr_html_()
    assert run.command.startswith("OMP_NUM_THREADS=1 torchrun") and "nproc-per-node=2" in run.command
    assert Run.load(Path(run.path, "run.json")).emulated.seconds == run.emulated.seconds


def test_every_clock_of_the_program_is_the_virtual_one(run: Run) -> None:
    steps, by_time, by_clock = (run.samples(f"{name}_s") for name in ("step", "by_time", "by_clock"))
    assert steps.provenance.kind == "emulated"
    assert by_clock.values == pytest.approx(steps.values, rel=1e-3)
    assert by_time.values == pytest.approx(steps.values, rel=1e-2)
    assert 1e-4 < steps.median < 0.1 < run.wall_s, "a V100 needs milliseconds, this machine more"


def test_a_busy_machine_is_no_news_for_a_virtual_clock(run: Run) -> None:
    assert run.others is None and busy_machine([run], Machine.here()) == ""


def test_the_timeline_shows_buckets_and_who_waits_for_whom(run: Run, tmp_path: Path) -> None:
    spans = traces.load(run)
    assert {s[3] for s in spans if s[0] == 0} == {"compute", "communication", "waiting"}
    labels = [label for rank, _, _, what, label in spans if rank == 0 and what == "communication"]
    assert labels == ["1", "2", "3"], "three layers of 16 MiB, a bucket each"
    assert [label for rank, *_, what, label in spans if rank == 0 and what == "compute"][:2] == ["forward", "backward"]
    waits = {
        r: sum(end - start for rank, start, end, what, _ in spans if (rank, what) == (r, "waiting")) for r in (0, 1)
    }
    assert waits[0] > 10 * waits[1], "rank 1 is the slow one"
    figure = figures.rank_timeline(spans, kind="emulated")
    assert "emulated time" in figure.mpl.axes[0].get_xlabel() and "ms emulated" in figure.summary
    trace = json.loads(run.emulated.save_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 1}
    assert {"addmm", "all_reduce", "backward", "Optimizer.step#SGD.step"} <= {event["name"] for event in trace}


def test_memory_is_told_by_kind_and_drawn_as_emulated(run: Run) -> None:
    parts = run.emulated.memory()
    assert [*parts] == ["each of ranks 0, 1"] and sum(parts["each of ranks 0, 1"].values()) > 3 * 2048 * 2048 * 4
    figure = figures.memory(measured=parts, limit_bytes=run.emulated.memory_bytes, kind="emulated")
    assert "emulated" in figure.summary and "measured" not in figure.summary


def test_claims_and_figures_say_emulated(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    step_s = run.samples("step_s")
    assert claim("half is faster", step_s.map(lambda s: s / 2).faster_than(step_s))
    assert "both emulated" in capsys.readouterr().out
    assert "against emulated " in Samples([1e-9], "step_s").faster_than(step_s).detail
    measured = {n: Samples([float(n), n + 0.1], "images_per_s") for n in (1, 2)}
    modelled = {n: Samples([1.9 * n], "images_per_s", run.provenance) for n in (1, 2, 4, 8)}
    figure = figures.speedup(measured, emulated=[modelled, modelled])
    (ax,) = figure.mpl.axes
    name = "emulated on 4xV100, rank 1 1.5 times as slow"
    assert [t.get_text() for t in ax.get_legend().get_texts()].count(name) == 2
    assert f"{name}, 8 ranks 8" in figure.summary
    drawn = [line for line in ax.get_lines() if line.get_marker() == "o" and line.get_markerfacecolor() == "white"]
    assert len(drawn) == 2, "hollow circles"
    assert figures.speedup(modelled).mpl.get_suptitle() == "Emulated, eight ranks: 8 times the images per second"
    assert "emulated on" in figures.bars({"2 ranks": step_s}).summary


def test_a_real_run_has_no_virtual_clock() -> None:
    with pytest.raises(ValueError, match="--cluster 8xA100"):
        _ = Run([], "cell.py", [], "torchrun", "warm", "1 rank.", 0.1, "/x").emulated


def test_ranks_see_the_node_that_they_would_be_on(script: Path) -> None:
    """Of three ranks on nodes of two GPUs the third is alone on the second; of 1,024, rank 0 sees all."""
    spread = launch(script, 3, cluster="4xT4", nodes=2, quiet=True)
    assert spread.values("place") == [[0, 0, 0, 3, 2], [1, 1, 0, 3, 2], [2, 0, 1, 3, 1]]
    assert spread.values("device") == ["cuda:0", "cuda:1", "cuda:0"]
    assert spread.command.startswith("torchrun --nnodes=2 --node-rank=0 --nproc-per-node=2")
    few = launch(script, 2, cluster="24xH100", one_of=24, quiet=True)
    assert few.values("place") == [[0, 0, 0, 24, 8], [12, 4, 1, 24, 8]] and few.values("device") == ["cuda:0", "cuda:4"]
    one = launch(script, cluster="1024xH100", one_of=1024, quiet=True)
    assert one.values("place") == [[0, 0, 0, 1024, 8]] and "--nnodes=128" in one.command
    assert (
        one.samples("step_s").values
        == launch(script, cluster="1024xH100", one_of=1024, quiet=True).samples("step_s").values
    ), "twice the same, to the last digit"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "rank 1 failed first: ValueError: on purpose"),
        ("kill", "rank 1 failed first: killed by SIGKILL"),
        ("hang", "did not end within its timeout of 3 s"),
        ("large", "OutOfMemoryError"),
    ],
)
def test_a_failure_is_that_of_any_launch(script: Path, how: str, words: str) -> None:
    with pytest.raises(RankError) as error:
        launch(script, 2, [how], cluster="2xT4", timeout=3 if how == "hang" else 60, quiet=True)
    assert words in str(error.value) and error.value.run.provenance.kind == "emulated"
    assert "nvidia-smi" not in str(error.value)


def test_two_at_once_and_a_sweep_over_clusters(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def seconds(name: str) -> float:
        return launch(script, 1, cluster=name, quiet=True).samples("step_s").median

    with ThreadPoolExecutor(2) as pool:
        v100, h100 = pool.map(seconds, ["1xV100", "1xH100"])
    assert h100 < v100
    mine = {"count": 2, "device": "V100", "inside": "ethernet25", "label": "two on Ethernet"}
    found = sweep(script, over={"cluster": ["2xV100", mine], "ranks": [1, 2]}, repeats=1)
    times = {
        (name, n): found.samples("step_s", cluster=on, ranks=n).median
        for name, on in (("nvlink", "2xV100"), ("eth", mine))
        for n in (1, 2)
    }
    assert times["nvlink", 1] == times["eth", 1] == v100 and times["eth", 2] > times["nvlink", 2] > v100
    said = capsys.readouterr().out
    assert "on an emulated two on Ethernet" in said and "busy machine" not in said
    assert "two on Ethernet" in str(found) and "ethernet25" not in str(found)


# --- what a rank left -------------------------------------------------------------------------------------------------


def left(folder: Path, marks: list[list[Any]], spans: list[list[Any]]) -> Emulated:
    whole = {
        "host_s": 9.0,
        "limit_bytes": 100,
        "at_peak": {"weights": 3, "gathered": 0},
        "marks": marks,
        "spans": spans,
    }
    (folder / "rank0.emulated.json").write_text(json.dumps(whole))
    return Emulated(folder, "1xT4", 1)


WORK = [["compute", f"op{i}", float(i), i + 0.5] for i in range(6)]


@pytest.mark.parametrize(
    ("marks", "steps"),
    [
        ([], []),
        ([["step", 0, 2, 0, 1], ["step", 2, 6, 1, 2], ["Optimizer.step#SGD.step", 1, 2, 0, 0]], [(0, 1.5), (2, 5.5)]),
        ([["ProfilerStep#0", 1, 3, 0, 1]], [(1, 2.5)]),
        ([["Optimizer.step#A.step", 1, 2, 0, 0], ["Optimizer.step#A.step", 4, 5, 0, 0]], [(0, 1.5), (2, 4.5)]),
        ([["step", 0, 0, 0, 1], ["step", 4, 99, 0, 1]], []),  # nothing in it, and cut off
    ],
)
def test_steps_are_marked_or_end_with_the_optimizer(tmp_path: Path, marks: list[Any], steps: list[Any]) -> None:
    assert left(tmp_path, marks, WORK).steps(0) == steps


def test_collectives_outside_backward_keep_their_names(tmp_path: Path) -> None:
    spans = [
        *WORK[:2],
        *(["communication", "all_reduce", 2.0 + i, 2.5 + i] for i in range(3)),
        ["copy", "copy", 6.0, 7.0],
    ]
    found = left(tmp_path, [["backward", 1, 4, 0, 0]], spans)
    told = [(what, label) for *_, what, label in found.spans(0)]
    sent = [("communication", label) for label in ("1", "2", "all_reduce")]
    assert told == [("compute", "forward"), ("compute", "backward"), *sent, ("loading", "forward")]
    assert found.memory() == {"rank 0": {"weights": 3}}


def test_a_rank_that_was_killed_left_no_timeline(tmp_path: Path) -> None:
    found = left(tmp_path, [], WORK)
    with pytest.raises(FileNotFoundError, match="rank 1 left no timeline"):
        _ = Emulated(found.folder, "2xT4", 2).seconds
