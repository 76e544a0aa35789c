"""Jobs of a real Slurm, with two nodes on this machine: each with its own network and name where rights allow it, otherwise by ports on one host."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ROOT, skip_or_fail, tell
from kernels import limit

from course_utils import jobs, local_slurm
from course_utils.engines.sbatch import torchrun_commands
from course_utils.launch import RankError, launch
from course_utils.local_slurm import Cluster, LocalSlurmError
from course_utils.magic import ranks
from course_utils.run import Run

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


def started(folder: Path, **settings: Any) -> Cluster:
    try:
        return local_slurm.up(nodes=2, folder=folder, **settings)
    except LocalSlurmError as error:
        skip_or_fail(f"no local Slurm: {error}")
        raise


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One local Slurm for all tests; SLURM_CONF names it."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:  # a short path, for a socket lies in it
        cluster = started(Path(folder, "c"))
        yield cluster
        cluster.down()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> Path:
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


def job_of(home: Path) -> tuple[str, Path]:
    """The number and folder of the newest job, once there is one."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        found = subprocess.run(["squeue", "--noheader", "--format=%i %o"], capture_output=True, text=True, timeout=10).stdout.split()
        if found and Path(found[1]).is_relative_to(home):
            return found[0], Path(found[1]).parent
        time.sleep(0.05)
    raise AssertionError("no job was submitted")


def when(condition: Any, act: Any) -> threading.Thread:
    """Do `act` in the background once `condition` holds."""

    def wait() -> None:
        until = time.monotonic() + 90
        while not condition() and time.monotonic() < until:
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def ranks_of(run: Run) -> list[psutil.Process]:
    """Processes of a launch that live, wherever their job put them: they have its folder in their environment."""
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


def test_ranks_on_two_nodes(home: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> None:
    namespace: dict[str, Any] = {}
    ranks("4 --engine slurm --nodes 2 -o run --timeout 100 -- --lr 0.1 'two words'", GROUP + "print('I am', rank, sys.argv[1:], flush=True)\n", namespace)
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
    tell(request, f"slurm: 4 ranks on {'two nodes' if cluster.bridge else 'one host, for ' + '; '.join(cluster.notes)}, {run.wall_s:.0f} s")


def test_the_file_can_be_submitted_by_hand(home: Path) -> None:
    """With nothing but what a terminal has."""
    run = launch(script(home, "from course_utils.rank import report\nreport(x=1)\n"), 2, engine="slurm", nodes=2, dry=True, quiet=True)
    env = {name: os.environ[name] for name in ("PATH", "HOME", "SLURM_CONF") if name in os.environ}
    number = subprocess.run(
        run.command.replace("sbatch ", "sbatch --parsable "), shell=True, env=env, capture_output=True, text=True, check=True
    ).stdout.strip()
    run.job = {"id": number, "state": "", "reason": "", "nodes": ""}
    run.refresh(wait_s=limit(60))
    assert run.ok and run.values("x") == [1, 1], run


def test_a_rank_that_fails_is_named_with_its_node(home: Path, cluster: Cluster) -> None:
    with pytest.raises(RankError) as raised:
        launch(script(home, GROUP + "if rank == 1:\n    raise ValueError('no more of this')\ndist.all_reduce(t)\n"), 2, engine="slurm", nodes=2, quiet=True)
    error, run = raised.value, raised.value.run
    node = run.ranks[1].node
    assert str(error).startswith(f"rank 1 on {node} failed first: ValueError: no more of this")
    assert "line 10, in <module>\n    raise ValueError('no more of this')" in error.traceback
    assert run.values("total") == [3.0, 3.0] and run.ranks[1].ended == "ValueError" and gone(run)
    if cluster.bridge:
        assert {r.node for r in run.ranks} == {"n1", "n2"}


def test_the_code_of_a_rank_that_says_nothing(home: Path) -> None:
    with pytest.raises(RankError) as raised:
        launch(script(home, "import os, time\nif os.environ['RANK'] == '1':\n    os._exit(5)\ntime.sleep(600)\n"), 2, engine="slurm", nodes=2, quiet=True)
    run = raised.value.run
    assert str(raised.value) == f"rank 1 on {run.ranks[1].node} failed first: ended with exit code 5"
    assert run.ranks[1].exitcode == 5 and gone(run)


def test_time_counts_from_the_start_of_the_ranks(home: Path) -> None:
    """A launch takes seconds to reach its first rank, more than this timeout, and each rank still has all its time."""
    program = "import time\nfrom course_utils.rank import report\nfor i in range(600):\n    report(i=i)\n    time.sleep(0.1)\n"
    with pytest.raises(RankError) as raised:
        launch(script(home, program), 2, engine="slurm", nodes=2, timeout=2, quiet=True)
    error, run = raised.value, raised.value.run
    assert error.rank is None and "did not end within its timeout of 2 s" in str(error)
    assert [f"rank {r} is: `time.sleep(0.1)`, line 5 of train.py" for r in (0, 1)] == [error.stacks[0], error.stacks[1]]
    assert min(len(r.records) for r in run.ranks) >= 15 and gone(run)


def test_an_interrupt_cancels_the_job(home: Path) -> None:
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    folder = home / "runs" / "lesson" / "launches"
    when(lambda: len(list(folder.glob("*/rank*.pid"))) == 2, press)
    with pytest.raises(KeyboardInterrupt) as raised:
        launch(script(home, "import time\ntime.sleep(600)\n"), 2, engine="slurm", nodes=2, quiet=True)
    assert time.monotonic() - pressed[0] < limit(5)
    run = raised.value.run  # type: ignore[attr-defined]
    assert run.outcome == "interrupted" and gone(run)
    job = jobs.look(run.job["id"])
    assert job and job.state in ("CANCELLED", "COMPLETING"), job


def test_a_job_in_the_queue_can_be_interrupted(home: Path) -> None:
    (home / "slurm.toml").write_text('sbatch = ["--begin=now+1hour"]\n')
    when(lambda: job_of(home), lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as raised:
        launch(script(home, ""), 2, engine="slurm", nodes=2, quiet=True)
    job = jobs.look(raised.value.run.job["id"])  # type: ignore[attr-defined]
    assert job and job.state == "CANCELLED"


def test_a_job_outlives_the_python_that_submitted_it(home: Path) -> None:
    """Submitted by another process, which ends; found again by its file; two such jobs at once."""
    path = script(home, GROUP + "report(arg=int(sys.argv[1]))\n")
    text = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
from course_utils.launch import launch
for i in range(2):
    print(launch({path!r}, 2, [i], engine="slurm", nodes=2, detach=True, quiet=True).path)
"""
    answer = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=limit(20))
    folders = answer.stdout.split()
    assert len(folders) == 2, answer.stderr
    found = [Run.load(Path(folder, "run.json")) for folder in folders]
    assert {run.outcome for run in found} == {"waiting"} and {run.refresh().outcome for run in found} <= {"waiting", "running"}
    for i, run in enumerate(found):
        run.refresh(wait_s=limit(60))
        assert run.ok and run.values("arg") == [i, i] and run.values("total") == [3.0, 3.0], run
        assert Run.load(Path(run.path, "run.json")).outcome == "finished"
    starts = [min(float(record["time"]) for record in run.records) for run in found]
    assert abs(starts[0] - starts[1]) < limit(15), "one waited for the other"


TRAIN = """import os, signal
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))  # first of all: importing torch takes seconds
import time
from pathlib import Path
import torch, torch.distributed as dist
from course_utils.rank import report

dist.init_process_group("gloo")
rank, state = dist.get_rank(), Path(os.environ["COURSE_RUN_DIR"], f"state{os.environ['RANK']}.pt")
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
for step in range(first, 12):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    model.zero_grad()
    loss.backward()
    for p, v in zip(model.parameters(), speed):
        dist.all_reduce(p.grad)
        v.mul_(0.9).add_(p.grad)
        p.data -= 0.01 * v
    report(step=step, weight=model.weight[0, 0].item(), attempt=int(os.environ.get("SLURM_RESTART_COUNT", 0)))
    time.sleep(float(os.environ["STEP_S"]))
    stop = torch.tensor([len(told)])
    dist.all_reduce(stop)                        # the signal does not reach all ranks in the same step
    if stop.item():
        torch.save({"model": model.state_dict(), "speed": speed, "random": torch.get_rng_state(), "step": step + 1}, state)
        dist.barrier()
        Path(os.environ["REQUEUE_FILE"]).touch()
        break
dist.destroy_process_group()
"""


def test_a_job_saves_its_state_and_goes_on_exactly(home: Path, cluster: Cluster, request: pytest.FixtureRequest) -> None:
    """USR1, as Slurm sends it before the time is over: checkpoint, back into the queue, and the same training to the last digit."""
    path = script(home, TRAIN)
    whole = launch(path, 2, engine="cold", env={"STEP_S": "0"}, quiet=True)
    folder = home / "runs" / "lesson" / "launches"

    def third_step() -> bool:
        return any(len(p.read_text().splitlines()) >= 3 for p in folder.glob("*/rank0.jsonl") if p.parent != Path(whole.path))

    when(third_step, lambda: subprocess.run(["scancel", "--signal=USR1", job_of(home)[0]], timeout=10))
    begin = time.monotonic()
    run = launch(path, 2, env={"STEP_S": "0.3"}, engine="slurm", nodes=2, timeout=60, quiet=True)
    assert run.ok and run.values("step") == [*range(12)] * 2
    attempts = run.ranks[0].values("attempt")
    assert attempts == sorted(attempts) and set(attempts) == {0, 1}
    assert run.values("weight") == whole.values("weight"), "not the same training"
    tell(request, f"slurm: saved its state after step {attempts.count(0)}, queued again, and ended in {time.monotonic() - begin:.0f} s")


def test_a_link_can_be_made_slow(home: Path, cluster: Cluster, request: pytest.FixtureRequest) -> None:
    if not cluster.bridge:
        pytest.skip("the nodes share this host")
    try:
        cluster.shape("100mbit")
    except LocalSlurmError as error:
        pytest.skip(str(error))
    program = (
        GROUP + "t = torch.ones(1 << 20)\nfor i in range(3):\n    at = time.perf_counter()\n    dist.all_reduce(t)\n    report(s=time.perf_counter() - at)\n"
    )
    run = launch(script(home, program), 2, engine="slurm", nodes=2, quiet=True)
    cluster.shape(None)
    ideal = (4 << 20) * 8 / 100e6  # two ranks send each byte once
    assert 0.8 * ideal < run.samples("s").median < 2 * ideal
    tell(request, f"slurm: all-reduce of 4 MiB over 100 Mbit/s in {run.samples('s').median:.2f} s; bytes over rate are {ideal:.2f} s")


def test_torchrun_alone_on_several_nodes(home: Path, cluster: Cluster) -> None:
    """The commands that are printed for each node, given to each node, where a node's own name stands for 127.0.0.1."""
    if not cluster.bridge:
        pytest.skip("the nodes share this host")
    path = script(home, "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nt = torch.ones(1)\ndist.all_reduce(t)\nprint(t.item())\n")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    begun = [
        subprocess.Popen(["nsenter", f"--net=/proc/{cluster.pids[node][0]}/ns/net", "sh", "-c", command], env=env, stdout=subprocess.PIPE, text=True)
        for node, command in zip(cluster.nodes, torchrun_commands(path, cluster.addresses, 1, interface="eth0"), strict=True)
    ]
    try:
        assert [process.communicate(timeout=limit(60))[0] for process in begun] == ["2.0\n"] * 2
    finally:
        for process in begun:
            process.kill()


@pytest.mark.parametrize("one_host", [False, True])
def test_down_leaves_nothing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, one_host: bool) -> None:
    """Neither processes nor networks nor mounts nor files, with a job that runs and has started processes of its own; a second `up` finds the first."""

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
        subprocess.run(["sbatch", "--nodes=2", "--output=/dev/null", str(folder / "job.sh")], check=True, capture_output=True, timeout=20)

        def sleepers() -> list[psutil.Process]:
            return [p for p in psutil.process_iter(["name", "cmdline"]) if p.info["name"] == "sleep" and (p.info["cmdline"] or [])[1:] == ["611"]]

        until = time.monotonic() + limit(10)
        while len(sleepers()) < 3 and time.monotonic() < until:
            time.sleep(0.1)
        assert len(sleepers()) == 3
        command = [sys.executable, "-m", "course_utils.local_slurm", "down", "--folder", str(folder)]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert "nothing of it is left" in said.stdout, said.stderr
        assert not cluster._processes() and not [p for p in sleepers() if p.status() != psutil.STATUS_ZOMBIE]
        assert networks() == before and not folder.exists() and Path("/proc/self/mounts").read_text() == mounts
        assert local_slurm.find(folder) is None


def test_nodes_that_share_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rights are missing; the same engine, and the nodes are told apart by name in Slurm alone."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", "")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = started(Path(folder, "c"), one_host=True)
        try:
            run = launch(script(tmp_path, GROUP), 2, engine="slurm", nodes=2, quiet=True)
            assert run.ok and run.values("total") == [3.0, 3.0] and run.job and run.job["nodes"] == "n[1-2]"
            with pytest.raises(LocalSlurmError, match="share this host"):
                cluster.shape("1gbit")
        finally:
            cluster.down()
