"""Jobs on a real Slurm with two nodes on this machine. Each has its own network and name if we have the rights;
otherwise they're ports on one host."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, skip_or_fail, tell
from kernels import limit

from course_utils.cells.magic import ranks
from course_utils.launching.launcher import RankError, launch
from course_utils.launching.torchrun import torchrun_commands
from course_utils.results.run import Run
from course_utils.slurm import job_file, jobs, local_cluster
from course_utils.slurm.job_template import torchrun_job
from course_utils.slurm.local_cluster import LocalSlurmError, SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

GROUP = """import os, signal, sys, time
import torch, torch.distributed as dist
from course_utils.rank import report
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.ones(4) * (rank + 1)
dist.all_reduce(t)
report(total=t[0].item(), node=os.uname().nodename, world=dist.get_world_size())
"""


def started(folder: Path, **settings: Any) -> SlurmCluster:
    try:
        return local_cluster.up(nodes=2, folder=folder, **settings)
    except LocalSlurmError as error:
        skip_or_fail(f"no local Slurm: {error}")
        raise


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """One local Slurm for all tests, named by SLURM_CONF."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:  # a short path, for a socket lies in it
        cluster = started(Path(folder, "c"))
        yield cluster
        cluster.down()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: SlurmCluster) -> Path:
    for name in ("COURSE_SLURM", "COURSE_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_NOTEBOOK", "lesson.ipynb")
    monkeypatch.setenv("SLURM_CONF", cluster.conf)
    return tmp_path


def script(home: Path, text: str, name: str = "train.py") -> str:
    path = home / name
    path.write_text(text)
    return str(path)


def on_two_nodes(home: Path, text: str, **more: Any) -> Run:
    return launch(script(home, text), 2, engine="slurm", nodes=2, quiet=True, **more)


def job_of(home: Path) -> tuple[str, Path]:
    """The number and folder of the newest job, once there is one."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        command = ["squeue", "--noheader", "--format=%i %o"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.split()
        if found and Path(found[1]).is_relative_to(home):
            return found[0], Path(found[1]).parent
        time.sleep(0.05)
    raise AssertionError("no job was submitted")


def when(condition: Any, act: Any) -> threading.Thread:
    """Run `act` in the background once `condition` holds."""

    def wait() -> None:
        until = time.monotonic() + 90
        while not condition() and time.monotonic() < until:
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def ranks_of(run: Run) -> list[psutil.Process]:
    """The live processes of a launch, wherever their job put them: they have its folder in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("COURSE_RUN_DIR") == run.path and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def gone(run: Run, seconds: float = 10.0) -> bool:
    until = time.monotonic() + limit(seconds)
    while ranks_of(run) and time.monotonic() < until:
        time.sleep(0.1)
    return not ranks_of(run)


def test_ranks_on_two_nodes(
    home: Path, cluster: SlurmCluster, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    namespace: dict[str, Any] = {}
    line = "4 --engine slurm --nodes 2 -o run --timeout 100 -- --lr 0.1 'two words'"
    ranks(line, GROUP + "print('I am', rank, sys.argv[1:], flush=True)\n", namespace)
    run = namespace["run"]
    said = capsys.readouterr().out
    assert run.ok and run.values("total") == [10.0] * 4 and run.values("world") == [4] * 4
    for rank in range(4):
        assert f"rank {rank} | I am {rank} ['--lr', '0.1', 'two words']\n" in said
    nodes = ["n1", "n1", "n2", "n2"] if cluster.bridge else [os.uname().nodename] * 4
    assert sorted(r.node for r in run.ranks) == sorted(run.values("node")) == sorted(nodes)
    assert re.search(r"job \d+ is submitted: .*job.sbatch\n(.*\n)*job \d+ runs on n\[1-2\]\n", said)
    assert run.provenance.machine.startswith("2 nodes of a local Slurm on ") and run.job["state"] == "COMPLETED"
    assert Run.load(Path(run.path, "run.json")).values("total") == [10.0] * 4
    where = "two nodes" if cluster.bridge else f"one host, for {'; '.join(cluster.notes)}"
    tell(request, f"slurm: 4 ranks on {where}, {run.wall_s:.0f} s")


def test_the_file_can_be_submitted_by_hand(home: Path) -> None:
    """With only what a terminal has."""
    run = on_two_nodes(home, "from course_utils.rank import report\nreport(x=1)\n", dry=True)
    env = {name: os.environ[name] for name in ("PATH", "HOME", "SLURM_CONF") if name in os.environ}
    command = run.command.replace("sbatch ", "sbatch --parsable ")
    number = subprocess.check_output(command, shell=True, env=env, text=True).strip()
    run.job = {"id": number, "state": "", "reason": "", "nodes": ""}
    run.refresh(wait_s=limit(60))
    assert run.ok and run.values("x") == [1, 1], run


def test_a_rank_that_fails_is_named_with_its_node(home: Path, cluster: SlurmCluster) -> None:
    with pytest.raises(RankError) as raised:
        on_two_nodes(home, GROUP + "if rank == 1:\n    raise ValueError('no more of this')\ndist.all_reduce(t)\n")
    error, run = raised.value, raised.value.run
    node = run.ranks[1].node
    assert str(error).startswith(f"rank 1 on {node} failed first: ValueError: no more of this")
    assert "line 10, in <module>\n    raise ValueError('no more of this')" in error.traceback
    assert run.values("total") == [3.0, 3.0] and run.ranks[1].ended == "ValueError" and gone(run)
    if cluster.bridge:
        assert {r.node for r in run.ranks} == {"n1", "n2"}


def test_the_code_of_a_rank_that_says_nothing(home: Path) -> None:
    with pytest.raises(RankError) as raised:
        on_two_nodes(home, "import os, time\nif os.environ['RANK'] == '1':\n    os._exit(5)\ntime.sleep(600)\n")
    run = raised.value.run
    assert str(raised.value) == f"rank 1 on {run.ranks[1].node} failed first: ended with exit code 5"
    assert run.ranks[1].exitcode == 5 and gone(run)


def test_time_counts_from_the_start_of_the_ranks(home: Path) -> None:
    """A launch needs longer than this timeout to reach its first rank, and each rank still gets all its time."""
    program = (
        "import time\nfrom course_utils.rank import report\nfor i in range(600):\n    report(i=i)\n"
        "    time.sleep(0.1)\n"
    )
    with pytest.raises(RankError) as raised:
        on_two_nodes(home, program, timeout=2)
    error, run = raised.value, raised.value.run
    assert error.rank is None and "did not end within its timeout of 2 s" in str(error)
    assert [f"rank {r} is: `time.sleep(0.1)`, line 5 of train.py" for r in (0, 1)] == [error.stacks[0], error.stacks[1]]
    assert min(len(r.records) for r in run.ranks) >= 15 and gone(run)


def test_an_interrupt_cancels_the_job(home: Path) -> None:
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    folder = home / "runs" / "lesson" / "latest" / "launches"
    when(lambda: len(list(folder.glob("*/rank*.pid"))) == 2, press)
    with pytest.raises(KeyboardInterrupt) as raised:
        on_two_nodes(home, "import time\ntime.sleep(600)\n")
    assert time.monotonic() - pressed[0] < limit(5)
    run = raised.value.run  # type: ignore[attr-defined]
    assert run.outcome == "interrupted" and gone(run)
    job = jobs.look(run.job["id"])
    assert job and job.state in ("CANCELLED", "COMPLETING"), job


def test_a_job_in_the_queue_can_be_interrupted(home: Path) -> None:
    (home / "slurm.toml").write_text('sbatch = ["--begin=now+1hour"]\n')
    when(lambda: job_of(home), lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as raised:
        on_two_nodes(home, "")
    job = jobs.look(raised.value.run.job["id"])  # type: ignore[attr-defined]
    assert job and job.state == "CANCELLED"


def test_a_job_outlives_the_python_that_submitted_it(home: Path) -> None:
    """Another process submits it and ends; its file finds it again. There are two such jobs at once."""
    path = script(home, GROUP + "report(arg=int(sys.argv[1]))\n")
    text = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
from course_utils import launch
for i in range(2):
    print(launch({path!r}, 2, [i], engine="slurm", nodes=2, detach=True, quiet=True).path)
"""
    answer = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=limit(20))
    folders = answer.stdout.split()
    assert len(folders) == 2, answer.stderr
    found = [Run.load(Path(folder, "run.json")) for folder in folders]
    assert {run.outcome for run in found} == {"waiting"}
    assert {run.refresh().outcome for run in found} <= {"waiting", "running"}
    for i, run in enumerate(found):
        run.refresh(wait_s=limit(60))
        assert run.ok and run.values("arg") == [i, i] and run.values("total") == [3.0, 3.0], run
        assert Run.load(Path(run.path, "run.json")).outcome == "finished"
    starts = [min(float(record["time"]) for record in run.records) for run in found]
    assert abs(starts[0] - starts[1]) < limit(15), "one waited for the other"


def watching() -> str:
    """The lines of lesson 09 that a program needs to save its state when its time is nearly over."""
    cells = json.loads((ROOT / "notebooks" / "09_checkpointing.ipynb").read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    (found,) = [
        block for text in texts for block in re.findall(r"```python\n(.*?)```", text, re.S) if "SAVE_FILE" in block
    ]
    return found


TRAIN = """import os, time
from pathlib import Path
import torch, torch.distributed as dist
from course_utils.rank import report

dist.init_process_group("gloo")
device, rank, attempt = torch.device("cpu"), dist.get_rank(), int(os.environ.get("SLURM_RESTART_COUNT", 0))
state = Path(os.environ.get("SAVE_FILE", "none")).with_name(f"state{rank}.pt")
torch.manual_seed(rank)
model = torch.nn.Linear(8, 1)
for p in model.parameters():
    dist.broadcast(p.data, 0)
speed, first = [torch.zeros_like(p) for p in model.parameters()], 0   # torch.optim takes seconds to import
if state.exists():
    saved = torch.load(state)
    model.load_state_dict(saved["model"])
    speed = saved["speed"]
    torch.set_rng_state(saved["random"])
    first = saved["step"]

def save(step):
    torch.save({"model": model.state_dict(), "speed": speed, "random": torch.get_rng_state(), "step": step}, state)
    report(saved=step)

for step in range(first, 12):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    model.zero_grad()
    loss.backward()
    for p, v in zip(model.parameters(), speed):
        dist.all_reduce(p.grad)
        v.mul_(0.9).add_(p.grad)
        p.data -= 0.01 * v
    report(step=step, weight=model.weight[0, 0].item(), attempt=attempt)
    if attempt == 0:
        time.sleep(float(os.environ.get("STEP_S", 0)))
    if "SAVE_FILE" in os.environ:
WATCHING
dist.destroy_process_group()
""".replace("WATCHING", textwrap.indent(watching(), " " * 8))


@pytest.fixture(scope="module")
def strict(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """A second local Slurm, where a signal to a step doesn't reach the ranks: as on real clusters, where Slurm only
    signals its own children."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        try:
            other = local_cluster.up(nodes=2, folder=Path(folder, "c"), proctrack="cgroup")
        # no writable cgroups here; this one signals the process group of each task, and torchrun gives each rank one of
        # its own
        except LocalSlurmError:
            other = started(Path(folder, "c"), proctrack="pgid")
        os.environ["SLURM_CONF"] = cluster.conf
        yield other
        other.down()
        os.environ["SLURM_CONF"] = cluster.conf


def warn(home: Path) -> None:
    """As `--signal=B:USR1@...` does: only to the shell of the batch file."""
    subprocess.run(["scancel", "--batch", "--signal=USR1", job_of(home)[0]], timeout=10)


def after_three_steps(home: Path, act: Any, apart: str = "") -> threading.Thread:
    logs = home / "runs" / "lesson" / "latest" / "launches"
    return when(
        lambda: any(len(p.read_text().splitlines()) >= 3 for p in logs.glob("*/rank0.jsonl") if str(p.parent) != apart),
        act,
    )


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("nodes", "by"), [(1, "the clock"), (2, "scancel")])
def test_a_job_saves_its_state_and_goes_on_exactly(
    home: Path,
    strict: SlurmCluster,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    nodes: int,
    by: str,
) -> None:
    """Every rank is warned before the time is over and saves after the same step. The job is queued again, and trains
    on to the same last digit."""
    monkeypatch.setenv("SLURM_CONF", strict.conf)
    path = script(home, TRAIN)
    whole = launch(path, 2, engine="cold", quiet=True)
    step_s = "0.3"
    if by == "the clock":
        # One minute, the least that Slurm knows, and a warning soon after the start; Slurm looks at the clock twice a
        # minute.
        monkeypatch.setattr(job_file, "MARGIN_S", 0)
        monkeypatch.setattr(job_file, "WARN_S", 50)
        step_s = "4"
    else:
        after_three_steps(home, lambda: warn(home), apart=whole.path)
    begin = time.monotonic()
    run = launch(path, 2, env={"STEP_S": step_s}, engine="slurm", nodes=nodes, timeout=60, quiet=True)
    assert run.ok and run.values("step") == [*range(12)] * 2
    first, second = (rank.values("saved") for rank in run.ranks)
    assert first == second and len(first) == 1, "each rank is warned, and stops after the same step"
    attempts = run.ranks[0].values("attempt")
    assert attempts == [0] * first[0] + [1] * (12 - first[0]) and 0 < first[0] < 12
    assert run.values("weight") == whole.values("weight"), "not the same training"
    assert not Path(run.path, "requeue").exists() and Path(run.path, "exitcode").read_text() == "0\n"
    took = f"saved after step {first[0]}, and ended in {time.monotonic() - begin:.0f} s"
    tell(request, f"slurm, {nodes} nodes, {strict.proctrack}, by {by}: {took}")


def test_a_signal_to_the_step_would_not_do(home: Path, strict: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the file is needed: without B: the signal ends torchrun, and with it a healthy training run, while ranks that
    could handle it don't get it."""
    monkeypatch.setenv("SLURM_CONF", strict.conf)
    program = (
        "import signal, time\nfrom course_utils.rank import report\n"
        "signal.signal(signal.SIGUSR1, lambda *_: report(told=1))\n"
    )
    path = script(home, program + "for i in range(100):\n    report(i=i)\n    time.sleep(0.1)\n")
    after_three_steps(home, lambda: subprocess.run(["scancel", "--signal=USR1", job_of(home)[0]], timeout=10))
    run = launch(path, 2, engine="slurm", nodes=2, timeout=60, quiet=True, check=False)
    assert run.outcome == "failed" and not [r for r in run.records if "told" in r] and gone(run)


def test_the_file_to_take_home(home: Path, strict: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch file that lessons 09 and 10 print: plain torchrun under plain Slurm, warned, queued again, the same
    training."""
    path = script(home, TRAIN)
    whole = launch(path, 2, engine="cold", quiet=True)
    text = torchrun_job("train.py", nodes=2, gpus_per_node=1, cpus_per_gpu=1, minutes=3)
    text = re.sub(r"#SBATCH --gpus-per-node.*\n", "", text)  # this Slurm has none to give
    Path(home, "train.sbatch").write_text(text.replace('"$SLURM_GPUS_ON_NODE"', "1"))
    env = {**os.environ, "SLURM_CONF": strict.conf, "PYTHONPATH": str(ROOT), "STEP_S": "0.3", "OMP_NUM_THREADS": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    command = ["sbatch", "--parsable", "train.sbatch"]
    number = subprocess.check_output(command, cwd=home, env=env, text=True).strip()
    log = home / f"train-{number}.log"

    def reported(name: str) -> list[float]:
        text = log.read_text() if log.exists() else ""
        return [
            found[name] for line in re.findall(r"report (\{.*\})$", text, re.M) if name in (found := json.loads(line))
        ]

    monkeypatch.setenv("SLURM_CONF", strict.conf)
    until = time.monotonic() + limit(90)
    while len(reported("step")) < 4 and time.monotonic() < until:
        time.sleep(0.1)
    subprocess.run(["scancel", "--batch", "--signal=USR1", number], timeout=10)
    while not (job := jobs.look(number)) or not job.ended and time.monotonic() < until:
        time.sleep(0.3)
    assert job.state == "COMPLETED", log.read_text()
    assert sorted(reported("step")) == sorted([*range(12)] * 2) and set(reported("attempt")) == {0, 1}
    assert len(reported("saved")) == 2
    assert sorted(reported("weight")) == sorted(whole.values("weight")), "not the same training"


def test_a_link_can_be_made_slow(home: Path, cluster: SlurmCluster, request: pytest.FixtureRequest) -> None:
    if not cluster.bridge:
        pytest.skip("the nodes share this host")
    try:
        cluster.shape("100mbit")
    except LocalSlurmError as error:
        pytest.skip(str(error))
    program = (
        GROUP + "t = torch.ones(1 << 20)\nfor i in range(3):\n    at = time.perf_counter()\n    dist.all_reduce(t)\n   "
        " report(s=time.perf_counter() - at)\n"
    )
    run = on_two_nodes(home, program)
    cluster.shape(None)
    ideal = (4 << 20) * 8 / 100e6  # two ranks send each byte once
    assert 0.8 * ideal < run.samples("s").median < 2 * ideal
    seconds = run.samples("s").median
    tell(request, f"slurm: all-reduce of 4 MiB over 100 Mbit/s in {seconds:.2f} s; bytes over rate are {ideal:.2f} s")


def test_torchrun_alone_on_several_nodes(home: Path, cluster: SlurmCluster) -> None:
    """Each node gets the command that is printed for it, with its own name instead of 127.0.0.1."""
    if not cluster.bridge:
        pytest.skip("the nodes share this host")
    start = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    work = "t = torch.ones(1)\ndist.all_reduce(t)\nprint(t.item())\n"
    path = script(home, start + work + "dist.destroy_process_group()\n")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    begun = []
    for node, words in zip(cluster.nodes, torchrun_commands(path, cluster.addresses, 1, interface="eth0"), strict=True):
        command = ["nsenter", f"--net=/proc/{cluster.pids[node][0]}/ns/net", "sh", "-c", words]
        begun.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    try:
        assert [process.communicate(timeout=limit(60))[0] for process in begun] == ["2.0\n"] * 2
    finally:
        for process in begun:
            process.kill()


@pytest.mark.parametrize("one_host", [False, True])
def test_down_leaves_nothing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, one_host: bool) -> None:
    """It leaves no processes, networks, mounts or files, even with a running job that has started its own processes. A
    second `up` finds the first."""

    def networks() -> set[str]:
        return {name for name in os.listdir("/sys/class/net") if name.startswith("cslurm")}

    monkeypatch.setenv("SLURM_CONF", "")
    before, mounts = networks(), Path("/proc/self/mounts").read_text()
    with tempfile.TemporaryDirectory(prefix="slurm-") as parent:
        folder = Path(parent, "c")
        cluster = started(folder, one_host=one_host)
        request.addfinalizer(cluster.down)  # should something fail below
        assert os.environ["SLURM_CONF"] == cluster.conf and cluster.running()
        again = started(folder, one_host=one_host)
        assert again.pids == cluster.pids, "a second one was started"
        (folder / "job.sh").write_text("#!/bin/sh\nsetsid sleep 611 &\nsrun sleep 611\n")
        command = ["sbatch", "--nodes=2", "--output=/dev/null", str(folder / "job.sh")]
        subprocess.run(command, check=True, capture_output=True, timeout=20)

        def sleepers() -> list[psutil.Process]:
            there = psutil.process_iter(["name", "cmdline"])
            return [p for p in there if p.info["name"] == "sleep" and (p.info["cmdline"] or [])[1:] == ["611"]]

        until = time.monotonic() + limit(10)
        while len(sleepers()) < 3 and time.monotonic() < until:
            time.sleep(0.1)
        assert len(sleepers()) == 3
        command = [sys.executable, "-m", "course_utils.slurm.local_cluster", "down", "--folder", str(folder)]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert "nothing of it is left" in said.stdout, said.stderr
        assert not cluster._processes() and not [p for p in sleepers() if p.status() != psutil.STATUS_ZOMBIE]
        assert networks() == before and not folder.exists() and Path("/proc/self/mounts").read_text() == mounts
        assert local_cluster.find(folder) is None


def test_nodes_that_share_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rights: the same engine, but only Slurm tells the nodes apart by name."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", "")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = started(Path(folder, "c"), one_host=True)
        try:
            run = on_two_nodes(tmp_path, GROUP)
            assert run.ok and run.values("total") == [3.0, 3.0] and run.job and run.job["nodes"] == "n[1-2]"
            with pytest.raises(LocalSlurmError, match="share this host"):
                cluster.shape("1gbit")
        finally:
            cluster.down()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("nodes", [1, 2])
def test_lesson_11s_files_to_take_home(
    home: Path,
    strict: SlurmCluster,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Warned, saved, queued again: the same weights as in a training that nobody disturbed, on one node and on two."""
    files, straight, args = ROOT / "notebooks" / "take_home", tmp_path_factory.mktemp("straight"), ["--steps", "300"]
    whole = torchrun(files / "11_train.py", *args, ranks=nodes, cwd=straight)
    assert whole.returncode == 0, whole.stderr
    text = re.sub(r"#SBATCH --gpus-per-node.*\n", "", (files / "11_job.sbatch").read_text())
    for old, new in (("--nodes=2", f"--nodes={nodes}"), ("--cpus-per-task=64", "--cpus-per-task=1"),
                     ('"$SLURM_GPUS_ON_NODE"', "1"), ("--time=60", "--time=5"),
                     ("    11_train.py", f"    {files}/11_train.py {' '.join(args)}")):  # fmt: skip
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    Path(home, "job.sbatch").write_text(text)
    env = {**os.environ, "SLURM_CONF": strict.conf, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    number = subprocess.check_output(["sbatch", "--parsable", "job.sbatch"], cwd=home, env=env, text=True).strip()
    log = home / f"11_train-{number}.log"
    monkeypatch.setenv("SLURM_CONF", strict.conf)
    until = time.monotonic() + limit(90)
    while "starts with step 0" not in (log.read_text() if log.exists() else "") and time.monotonic() < until:
        time.sleep(0.1)
    subprocess.run(["scancel", "--batch", "--signal=USR1", number], timeout=10)
    while not (job := jobs.look(number)) or not job.ended and time.monotonic() < until:
        time.sleep(0.3)
    said = log.read_text()
    assert job.state == "COMPLETED" and len(re.findall(r"starts with step [1-9]", said)) == 1, said
    assert said.count("local rank 0 on") == 2 * nodes and f"nodes {nodes}, ranks {nodes}:" in said, said
    a, b = (torch.load(folder / "11_train.pt")["model"] for folder in (straight, home / number))
    assert all(torch.equal(a[name], b[name]) for name in a)
