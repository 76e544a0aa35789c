"""Jobs of a cluster, without a cluster: the file that Slurm would get, a site's settings, and how we read Slurm's
answers, which small programs give."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT

from course_utils.cells.magic import ranks
from course_utils.failure.errors import LaunchError, RankError
from course_utils.launching.launcher import launch
from course_utils.launching.torchrun import torchrun_commands
from course_utils.launching.under_the_cell import watch
from course_utils.results.rank_result import RankResult, read_ranks
from course_utils.results.run import Run
from course_utils.slurm import engine as slurm
from course_utils.slurm import job_file, jobs, local_cluster
from course_utils.slurm.job_placement import place_job
from course_utils.slurm.job_template import torchrun_job
from course_utils.slurm.local_cluster import starting
from course_utils.slurm.site import Site, load_site

TOOLS = ("bash", "sh", "cat", "sleep", "env", "mkdir", "rm", "touch")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate home for the course, without cluster settings, and a path without Slurm."""
    for name in ("COURSE_SLURM", "SLURM_CONF", "COURSE_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_NOTEBOOK", "lesson.ipynb")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(watch, "_advice_given", {""})  # as in a new notebook
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool, path=os.defpath) or f"/bin/{tool}")
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(home: Path, name: str, text: str) -> None:
    path = home / "bin" / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


# --- the file ---------------------------------------------------------------------------------------------------------


def written(run: Run) -> str:
    return Path(run.path, "job.sbatch").read_text()


def test_the_file_is_shown_and_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"args": ["--name", "two words", "$HOME"], "timeout": 600, "threads": 3, "env": {"A": "it's", "B": None}}
    run = launch("train.py", 8, engine="slurm", nodes=2, dry=True, **asked)
    text = written(run)
    shown = capsys.readouterr().out
    assert shown.endswith(f"\n{text}") and " ".join(shown.removesuffix(text).split()) == run.placement
    assert run.outcome == "dry" and not run.ok and run.world_size == 8
    assert run.command == f"sbatch {run.path}/job.sbatch"
    assert "not started" in repr(run) and "nan" not in repr(run)
    assert Run.load(Path(run.path, "run.json")).outcome == "dry"
    assert text.startswith("#!/bin/bash\n")
    options = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH ")]
    expected = (
        "--job-name=train --nodes=2 --ntasks-per-node=1 --cpus-per-task=12 --time=12 --signal=B:USR1@60 --requeue"
    )
    assert options == [*expected.split(), "--open-mode=append", f"--output={run.path}/launcher.log"]
    for line in (
        "export OMP_NUM_THREADS=3", "export A='it'\"'\"'s'", "unset B", "export COURSE_DEVICE=cpu",
        "export COURSE_TIMEOUT_S=600", f"cd {home} || exit",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", "port=$((10000 + SLURM_JOB_ID % 20000))",
        "srun --kill-on-bad-exit=1",
        '--nnodes="$SLURM_NNODES" --nproc-per-node=4 \\', f"    {home}/train.py --name 'two words' '$HOME' &\n",
    ):  # fmt: skip
        assert line in text, line
    assert "RDZV_TCP_STORE" not in text, "nothing is restarted"
    again = launch("train.py", 8, engine="slurm", nodes=2, max_restarts=2, dry=True, quiet=True)
    assert "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\n" in written(again) and "--max-restarts=2" in written(again)
    assert "CUDA_VISIBLE_DEVICES" not in text and "SOCKET_IFNAME" not in text, (
        "what holds for this machine alone goes to the nodes"
    )
    subprocess.run(["bash", "-n", f"{run.path}/job.sbatch"], check=True)


def test_the_file_runs_as_it_is_meant_to(home: Path) -> None:
    """By bash, with an srun that shows its words: as many as were meant, and the exit code is kept; with a request to
    be queued again, that is made."""
    program(home, "srun", 'for word in "$@"; do echo "[$word]"; done; [ -z "$SAVED" ] || : > "$REQUEUE_FILE"; exit 7')
    program(home, "hostname", "echo first")
    program(home, "scontrol", 'echo "$@" > "$COURSE_RUN_DIR/scontrol"')
    run = launch("train.py", 2, args=["a b", "'"], engine="slurm", nodes=2, dry=True, quiet=True)
    env = {**os.environ, "SLURM_JOB_ID": "20003", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "1"}
    answer = subprocess.run(["bash", f"{run.path}/job.sbatch"], env=env, capture_output=True, text=True)
    assert answer.returncode == 7 and Path(run.path, "exitcode").read_text() == "7\n", answer.stderr
    words = answer.stdout.splitlines()
    assert words[2:5] == [f"[{sys.executable}]", "[-m]", "[torch.distributed.run]"]
    assert words[0] == "[--kill-on-bad-exit=1]"
    assert "[--rdzv-endpoint=first:10003]" in words and "[--rdzv-id=20003-0]" in words
    assert words[-3:] == [f"[{home}/train.py]", "[a b]", "[']"]
    Path(run.path, "exitcode").unlink()
    answer = subprocess.run(
        ["bash", f"{run.path}/job.sbatch"], env={**env, "SAVED": "1"}, capture_output=True, text=True
    )
    assert Path(run.path, "scontrol").read_text() == "requeue 20003\n" and not Path(run.path, "exitcode").exists()


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("code", [0, 7, 138])
def test_a_warning_makes_the_file_and_nothing_else(home: Path, signals: int, code: int) -> None:
    """The shell keeps waiting for srun, however often it's warned, and keeps its exit code. A file from an earlier
    attempt is removed before the start."""
    program(
        home,
        "srun",
        '[ -e "$SAVE_FILE" ] && exit 99; : > "$COURSE_RUN_DIR/begun"; until [ -e "$COURSE_RUN_DIR/go" ]; do sleep'
        f" 0.02; done; exit {code}",
    )
    program(home, "hostname", "echo first")
    run = launch("train.py", 2, engine="slurm", nodes=2, dry=True, quiet=True)
    folder = Path(run.path)
    (folder / "save_now").touch()
    env = {**os.environ, "SLURM_JOB_ID": "20003", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "1"}
    with subprocess.Popen(["bash", f"{run.path}/job.sbatch"], env=env) as shell:
        try:
            for _ in range(signals):
                wait_for(lambda: (folder / "begun").exists())
                shell.send_signal(signal.SIGUSR1)
                wait_for(lambda: (folder / "save_now").exists())
                (folder / "save_now").unlink()
            assert shell.poll() is None, "the shell ended with its ranks still saving"
            (folder / "go").touch()
            assert shell.wait(timeout=10) == code and (folder / "exitcode").read_text() == f"{code}\n"
        finally:
            (folder / "go").touch()
            shell.kill()


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("restarts", [0, 3])
def test_the_plain_file_has_what_the_course_submits(restarts: int) -> None:
    """There's one template: the file to take home differs from that of a launch only in the course's own lines."""
    asked = {"nodes": 4, "gpus_per_node": 2, "cpus_per_gpu": 3, "minutes": 90, "warn_s": 300, "max_restarts": restarts}
    text = torchrun_job("code/train.py", ["--name", "two words"], **asked)
    for line in (
        "#SBATCH --job-name=train\n", "#SBATCH --nodes=4 ", "#SBATCH --cpus-per-task=6 ",
        "#SBATCH --gpus-per-node=2 ", "#SBATCH --time=90 ",
        "#SBATCH --signal=B:USR1@300 ",
        "#SBATCH --requeue ", "#SBATCH --open-mode=append ", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        "port=$((10000 + SLURM_JOB_ID % 20000))",
        "srun --kill-on-bad-exit=1 torchrun \\\n", '--nproc-per-node="$SLURM_GPUS_ON_NODE"',
        '--rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \\\n',
        "    code/train.py --name 'two words' &\n",
    ):  # fmt: skip
        assert line in text, line
    assert ("--max-restarts=3" in text) == ("export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in text) == bool(restarts)
    assert "course" not in text.lower()
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_the_magic_has_the_options(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    ranks("4 --engine slurm --nodes 2 --dry -o run --timeout 30 -- --lr 1", "import torch\n", namespace)
    assert "--nproc-per-node=2" in written(namespace["run"]) and written(namespace["run"]) in capsys.readouterr().out
    ranks("4 --engine torchrun --nodes 2 --dry -o run -- --lr 1", "import torch\n", namespace)
    assert namespace["run"].outcome == "dry" and "--node-rank=1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"nodes": 0}, "nodes must be a whole number above 0; got 0"),
        ({"nodes": True}, "got True"),
        ({"nodes": 2.0}, "got 2.0"),
        ({"ranks": 3}, "3 ranks can't be spread evenly over 2 nodes"),
        ({"ranks": "many"}, "ranks must be a whole number above 0, or 'auto'; got 'many'"),
        ({"threads": 0}, "threads must be"),
        ({"gpus_per_rank": -1}, "gpus_per_rank must be"),
        ({"device": "shared"}, "device must be auto, cuda, cpu or comparable on several nodes"),
        ({"env": {"A B": "1"}}, "'A B' can't be the name"),
        (
            {"engine": "local"},
            "engine 'local' starts ranks on this machine only; nodes must be 1, got 2, or choose engine 'slurm'",
        ),
        ({"engine": "torchrun"}, "start torchrun on each node yourself: dry=True"),
        ({"engine": "auto", "dry": True}, "engine 'auto' has nothing to show"),
        ({"engine": "torchrun", "detach": True}, "engine 'torchrun' can't detach"),
    ],
    ids=str,
)
def test_wrong_arguments(home: Path, wrong: dict[str, Any], words: str) -> None:
    program(home, "sbatch", "exit 1")
    program(home, "scontrol", "exit 1")
    with pytest.raises(LaunchError) as raised:
        launch(**{"script": "train.py", "engine": "slurm", "nodes": 2, **wrong})
    assert words in str(raised.value) and len(str(raised.value).splitlines()) == 1


def test_a_folder_that_slurm_cannot_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(home / "a folder"))
    with pytest.raises(LaunchError, match="without spaces"):
        launch("train.py", 2, engine="slurm", nodes=2, dry=True)


def test_torchrun_on_several_nodes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = launch("train.py", 4, args=["a b"], engine="torchrun", nodes=2, dry=True)
    command = f"--nproc-per-node=2 --master-addr=FIRST-NODE --master-port=29500 {home}/train.py 'a b'"
    expected = "".join(f"# on node {i}\ntorchrun --nnodes=2 --node-rank={i} {command}\n" for i in range(2))
    shown = capsys.readouterr().out
    assert shown.endswith(f"\n{run.command}") and run.command.startswith(expected)
    assert " ".join(shown.removesuffix(run.command).split()) == run.placement
    assert run.command.removeprefix(expected).startswith("# If a node's own name resolves to 127.x.x.x")
    (home / "slurm.toml").write_text('gpus_per_node = 4\ninterface = "ib0"\n')
    run = launch("train.py", engine="torchrun", nodes=2, dry=True, quiet=True)
    assert run.command.count("GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0 torchrun ") == 2
    assert "--nproc-per-node=4" in run.command
    assert (
        torchrun_commands("t.py", ["10.0.0.1", "10.0.0.2", "10.0.0.3"], 8, max_restarts=1)[2]
        == "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes=3 --node-rank=2 --nproc-per-node=8 --max-restarts=1"
        " --master-addr=10.0.0.1 --master-port=29500 t.py"
    )
    with pytest.raises(ValueError, match="at least one node"):
        torchrun_commands("t.py", [])


# --- a site -----------------------------------------------------------------------------------------------------------

EXAMPLES = {
    "gpus": ["#SBATCH --partition=gpu\n", "#SBATCH --gpus-per-node=4", "#SBATCH --mem=0", "--cpus-per-task=32",
             "export COURSE_DEVICE=cuda"],
    "account": ["#SBATCH --account=proj1234\n", "#SBATCH --qos=normal\n", "#SBATCH --constraint=nvlink\n",
                "#SBATCH --gres=gpu:a100:4"],
    "modules": ["\nmodule load cuda/13.0 gcc/13\nsource ", "\n    python -m torch", "export NCCL_SOCKET_IFNAME=ib0\n",
                "#SBATCH --exclusive\n", "NCCL_DEBUG=WARN\n"],
    "pyxis": ["node%n.log --container-image=nvcr.io/nvidia/pytorch:26.10-py3"
              " --container-mounts=/home:/home,/scratch:/scratch \\\n"],
    "apptainer": ["\n    apptainer exec --nv --bind /scratch /scratch/images/pytorch.sif python -m"
                  " torch.distributed.run \\\n", "\nmodule load apptainer\n"],
    "cpus": ["export COURSE_DEVICE=cpu", "export GLOO_SOCKET_IFNAME=eth0\n", "#SBATCH --mem=32G",
             "export MALLOC_TRIM_THRESHOLD_="],
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_of_a_site(home: Path, name: str) -> None:
    shutil.copy(ROOT / "data" / "slurm" / f"{name}.toml", home / "slurm.toml")
    text = written(run := launch("train.py", 8, engine="slurm", nodes=2, dry=True, quiet=True))
    for words in EXAMPLES[name]:
        assert words in text, text
    subprocess.run(["bash", "-n", f"{run.path}/job.sbatch"], check=True)


def test_all_examples_are_tested() -> None:
    assert {path.stem for path in (ROOT / "data" / "slurm").glob("*.toml")} == set(EXAMPLES)


def test_where_the_settings_are_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_site() == Site()
    (home / "user" / ".config" / "course").mkdir(parents=True)
    (home / "user" / ".config" / "course" / "slurm.toml").write_text('partition = "mine"\n')
    assert load_site().partition == "mine"
    (home / "slurm.toml").write_text('partition = "course"\n')
    assert load_site().partition == "course"
    (home / "other.toml").write_text('partition = "named"\n')
    monkeypatch.setenv("COURSE_SLURM", str(home / "other.toml"))
    assert load_site().partition == "named"
    monkeypatch.setenv("COURSE_SLURM", str(home / "missing.toml"))
    with pytest.raises(ValueError, match="can't read"):
        load_site()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partition = gpu", "can't read"),
        ('partion = "gpu"', "sets 'partion', which isn't a setting; choose from partition, account"),
        ("partition = 3", 'partition must be like "text in one line"; got 3'),
        ("gpus_per_node = -1", "gpus_per_node must be like 4"),
        ("gpus_per_node = true", "gpus_per_node must be like 4"),
        ('modules = "cuda"', 'modules must be like ["a list", "of text"]'),
        ('setup = ["a\\nb"]', "setup must be like"),
        ("env = { A = 1 }", "env must be like"),
    ],
)
def test_a_wrong_setting(home: Path, text: str, words: str) -> None:
    (home / "slurm.toml").write_text(text + "\n")
    with pytest.raises(LaunchError) as raised:
        launch("train.py", 2, engine="slurm", nodes=2, dry=True)
    assert words in str(raised.value) and len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("site", "asked", "expected"),
    [
        (Site(), (2, "auto", 1, "auto", None), (2, "cpu", 1, 1)),
        (Site(), (1, "auto", 1, "auto", None), (2, "cpu", 1, 1)),
        (Site(gpus_per_node=8, cpus_per_rank=6), (2, "auto", 1, "auto", None), (16, "cuda", 1, 6)),
        (Site(gpus_per_node=8), (2, "auto", 2, "auto", None), (8, "cuda", 2, 1)),
        (Site(gpus_per_node=8), (2, "auto", "all", "auto", None), (2, "cuda", 8, 1)),
        (Site(gpus_per_node=8), (2, 4, "all", "auto", 2), (4, "cuda", 4, 2)),
        (Site(gpus_per_node=1), (2, "auto", 1, "auto", None), (2, "cuda", 1, 1)),
        (Site(gpus_per_node=4), (2, 16, 1, "auto", None), (16, "cpu", 1, 1)),
        (Site(gpus_per_node=4), (2, "auto", 1, "cpu", None), (2, "cpu", 1, 1)),
    ],
)
def test_the_devices_of_a_job(site: Site, asked: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    got = place_job(site, *asked)
    assert (got.ranks, got.device, got.gpus_per_rank, got.threads) == expected, got.sentence
    assert got.backend == ("nccl" if got.device == "cuda" else "gloo") and got.env["COURSE_DEVICE"] == got.device


# --- Slurm's answers --------------------------------------------------------------------------------------------------

LINE = (
    "JobId=12 JobName=my job UserId=a(0) JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=0"
    " BatchFlag=1 Reboot=0 ExitCode={code} RunTime={time} TimeLimit=00:04:00 StartTime=2026-11-01T10:00:00"
    " ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} NumNodes=2\n"
)


def line(state: str, reason: str = "None", code: str = "0:0", time: str = "00:00:07", nodes: str = "n[1-2]") -> str:
    return LINE.format(state=state, reason=reason, code=code, time=time, nodes=nodes)


def test_what_scontrol_says() -> None:
    assert jobs.parse(line("RUNNING")) == jobs.Job("RUNNING", "", "n[1-2]", 7.0, 0)
    got = jobs.parse(line("PENDING", "Resources", nodes="(null)", time="00:00:00"))
    assert (got.waits, got.ended, got.reason, got.nodes) == (True, False, "Resources", "")
    got = jobs.parse(line("FAILED", "NonZeroExitCode", "1:0", "2-01:00:01"))
    assert (got.ended, got.run_s, got.code) == (True, 2 * 86400 + 3601, 1)
    assert jobs.parse(line("CANCELLED", code="0:15")).code == -15
    assert not jobs.parse(line("COMPLETING")).ended and math.isnan(jobs.parse(line("PENDING", time="INVALID")).run_s)
    with pytest.raises(jobs.NoAnswer, match="isn't about a job"):
        jobs.parse("slurm_load_jobs error")


def test_a_job_that_slurm_forgot(home: Path) -> None:
    program(home, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert jobs.look("12") is None  # no sacct here
    program(home, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert jobs.look("12") is None
    program(home, "sacct", "echo 'CANCELLED by 1000|0:15|n[1-2]|61'")
    assert jobs.look("12") == jobs.Job("CANCELLED", "", "n[1-2]", 61.0, -15)
    program(home, "sacct", "exit 0")
    assert jobs.look("12") is None


def test_a_dead_cluster_is_not_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ANSWER_S", 0.2)
    program(home, "scontrol", "exec sleep 100")
    with pytest.raises(jobs.NoAnswer, match="scontrol has not answered"):
        jobs.look("12")
    program(home, "scancel", "echo 'scancel: error: Invalid job id 12' >&2; exit 1")
    jobs.cancel("12")  # it has ended: nothing to cancel
    program(home, "scancel", "echo 'scancel: error: Access/permission denied' >&2; exit 1")
    with pytest.raises(jobs.NoAnswer, match="permission denied"):
        jobs.cancel("12")


def test_an_interrupt_does_not_reach_slurms_programs(home: Path) -> None:
    """The signal goes to the kernel's whole process group."""
    program(home, "scontrol", f"exec '{sys.executable}' -c 'import os; print(\"JobState=\" + str(os.getpgrp()))'")
    job = jobs.look("12")
    assert job and int(job.state) != os.getpgrp()


def test_no_slurm_one_line_and_the_file(home: Path) -> None:
    with pytest.raises(LaunchError, match="there is no Slurm here") as raised:
        launch("train.py", 2, engine="slurm", nodes=2, quiet=True)
    assert len(str(raised.value).splitlines()) == 1
    path = Path(str(raised.value).rpartition("sbatch ")[2])
    assert path.read_text().startswith("#!/bin/bash")


def test_a_job_that_slurm_refuses(home: Path) -> None:
    program(home, "scontrol", "exit 1")
    said = "invalid partition specified: gpu", "Batch job submission failed"
    program(home, "sbatch", "".join(f"echo 'sbatch: error: {words}' >&2; " for words in said) + "exit 1")
    words = "Slurm didn't take the job: .*invalid partition.*its file is .*job.sbatch"
    with pytest.raises(LaunchError, match=words) as raised:
        launch("train.py", 2, engine="slurm", nodes=2, quiet=True)
    assert len(str(raised.value).splitlines()) == 1


def fake_slurm(home: Path, *answers: str) -> None:
    """sbatch gives job 12. Its state is one answer after the other; the last one stays."""
    for i, answer in enumerate(answers):
        (home / f"answer{i}").write_text(answer)
    (home / "asked").write_text("0")
    program(home, "sbatch", f"env > {home}/given; echo 12")
    text = (
        f"n=$(cat {home}/asked); [ -e {home}/answer$((n+1)) ] && echo $((n+1)) > {home}/asked; cat {home}/answer$n; ["
        f" -s {home}/answer$n ] || "
    )
    program(home, "scontrol", text + "{ echo 'Invalid job id specified' >&2; exit 1; }")
    program(home, "scancel", f'echo "$@" > {home}/cancelled')


def once_submitted(monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], object]) -> None:
    """Do something with the folder of each job whose file has been written."""
    real = slurm.write

    def write(request: Any, *rest: Any) -> Path:
        path = real(request, *rest)
        act(path.parent)
        return path

    monkeypatch.setattr(slurm, "write", write)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "LOOK_S", (0.01, 0.01))


def test_a_job_from_the_queue_to_its_end(
    home: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_slurm(home, *[line("PENDING", "Priority", nodes="")] * 2, line("RUNNING"), line("COMPLETED"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # of the job that the notebook itself runs in
    monkeypatch.setenv("SLURM_CONF", "/etc/of/mine")
    run = launch("train.py", 2, engine="slurm", nodes=2)
    assert run.ok and run.wall_s == 7 and run.engine == "slurm"
    assert run.job == {"id": "12", "state": "COMPLETED", "reason": "", "nodes": "n[1-2]"}
    assert run.provenance.machine == "2 nodes of a Slurm cluster"
    said = capsys.readouterr().out
    assert said.count("job 12 waits (Priority)\n") == 1 and "job 12 runs on n[1-2]\n" in said
    assert "job 12 is submitted: " in said
    given = (home / "given").read_text().splitlines()
    assert not [name for name in given if name.startswith("SLURM_") and name != "SLURM_CONF=/etc/of/mine"]
    assert "SLURM_CONF=/etc/of/mine" in given
    assert Run.load(Path(run.path, "run.json")).job == run.job


def test_a_job_whose_node_fails_is_queued_again(
    home: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queued_again = [line("PENDING", "BeginTime", nodes="")] * 3
    fake_slurm(home, *[line("RUNNING")] * 2, *queued_again, line("RUNNING", nodes="n[3-4]"), line("COMPLETED"))

    def leave(folder: Path) -> None:
        (folder / "rank0.pid").write_text("9 n1")
        (folder / "launcher.log").write_text("srun: error: Node failure on n2\n")

    once_submitted(monkeypatch, leave)
    assert launch("train.py", 2, engine="slurm", nodes=2).ok
    said = capsys.readouterr().out.splitlines()
    assert said[said.index("job 12 runs on n[1-2]") :] == [
        "job 12 runs on n[1-2]",
        "job 12 is queued again, because node n2 failed",
        "job 12 waits (BeginTime)",
        "job 12 runs on n[3-4]",
        "✓ 2 ranks, 7.0 s",
    ]


def test_a_shared_file_system_is_asked_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of 64 ranks that runs for 30 s. We list its folder twice a second until the ranks begin, and then not again
    before their time is over."""
    now = [100.0]
    monkeypatch.setattr(
        slurm, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    )
    running = {
        "cause": "running",
        "code": 1,
        "wall_s": 1.0,
        "job": {"id": "12", "state": "RUNNING", "reason": "", "nodes": "n[1-8]"},
    }
    monkeypatch.setattr(jobs, "outcome", lambda *_: running)
    listed: list[str] = []
    real = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: listed.append(pattern) or real(self, pattern))
    job = slurm.JobHandle("12", SimpleNamespace(folder=str(tmp_path), timeout=600.0), "", quiet=True, detach=False)  # type: ignore[arg-type]
    for i in range(600):
        if i == 400:
            (tmp_path / "rank63.pid").write_text("9 n8")
        assert job.wait(0.05) is None
    assert 38 <= len(listed) <= 42 and set(listed) == {"rank*.pid"}


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (line("NODE_FAIL", "NodeDown", "1:0"), r"job 12 on n\[1-2\] ended: NODE_FAIL NodeDown"),
        (line("FAILED", "NonZeroExitCode", "1:0"), r"job 12 on n\[1-2\] ended: FAILED NonZeroExitCode"),
        (line("OUT_OF_MEMORY", "OutOfMemory", "0:125"), "OUT_OF_MEMORY"),
        (line("TIMEOUT", "TimeLimit", "0:15"), "did not end within its timeout"),
        (line("CANCELLED", code="0:15"), "job 12 was cancelled"),
        ("", "is not known to Slurm any more"),
    ],
)
def test_ends_that_no_rank_tells(home: Path, quick: None, end: str, words: str) -> None:
    fake_slurm(home, line("RUNNING"), end)
    with pytest.raises(RankError, match=words) as raised:
        launch("train.py", 2, engine="slurm", nodes=2, quiet=True)
    assert raised.value.rank is None and not raised.value.run.ok


def test_a_job_that_is_left_to_itself(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_slurm(home, line("PENDING", nodes=""))
    run = launch("train.py", 2, engine="slurm", nodes=2, detach=True)
    assert run.outcome == "waiting" and not (home / "cancelled").exists()
    path = Path(run.path, "run.json")
    assert f"Run.load('{path}').refresh()" in capsys.readouterr().out
    folder = Path(run.path)
    (home / "answer0").write_text(line("RUNNING"))
    (folder / "rank0.pid").write_text("17 n1")
    (folder / "rank0.jsonl").write_text('{"x": 1, "time": 1}\n{"x": 2, "ti')
    run = Run.load(path).refresh()
    assert run.outcome == "running" and run.values("x") == [1] and run.ranks[0].node == "n1" and "runs" in repr(run)
    (home / "answer0").write_text(line("COMPLETED"))
    assert Run.load(path).refresh().ok and Run.load(path).outcome == "finished"
    for code, outcome in (("0\n", "finished"), ("1\n", "failed")):
        (home / "answer0").write_text("")  # forgotten
        (folder / "exitcode").write_text(code)
        assert Run.load(path).refresh().outcome == outcome
    (folder / "exitcode").unlink()
    assert Run.load(path).refresh().outcome == "lost"


def test_only_a_job_can_be_looked_at_again() -> None:
    with pytest.raises(ValueError, match="only a Slurm job"):
        Run([RankResult(0, 0)], "a.py", [], "", "warm", "", 1.0, "/x").refresh()


def test_a_failed_rank_is_named_with_its_node(home: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """From what ranks leave, and from the tables that the torchrun of each node writes."""
    fake_slurm(home, line("FAILED", "NonZeroExitCode", "1:0"))
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time      : now\n  host      : {}\n"
        "  rank      : {} (local_rank: 0)\n  exitcode  : {} (pid: 9)\n"
    )

    def leave(folder: Path) -> None:
        for rank, node, code in ((0, "n1", -15), (1, "n2", 5)):
            (folder / f"rank{rank}.pid").write_text(f"9 {node}")
            (folder / f"node{rank}.log").write_text(table.format(node, rank, code))

    once_submitted(monkeypatch, leave)
    with pytest.raises(RankError, match="rank 1 on n2 failed first: ended with exit code 5") as raised:
        launch("train.py", 2, engine="slurm", nodes=2, quiet=True)
    assert [r.signal for r in raised.value.run.ranks] == ["SIGTERM", None] and "1 on n2" in repr(raised.value.run)


def test_slurm_that_falls_silent(home: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SILENT_S", 0.3)
    fake_slurm(home, line("RUNNING"))
    program(home, "scontrol", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(RankError, match="is not known to Slurm any more"):
        launch("train.py", 2, engine="slurm", nodes=2, quiet=True)
    assert not (home / "cancelled").exists()


def test_time_counts_from_the_start_of_the_ranks(home: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that waits and starts for longer than its timeout is left alone; it is ended that long after its ranks
    began."""
    fake_slurm(home, line("RUNNING"))
    program(home, "scancel", f'echo "$@" > {home}/cancelled; cat {home}/late > {home}/answer0')
    (home / "late").write_text(line("CANCELLED"))
    began: list[float] = []

    def begin(folder: Path) -> None:
        began.append(float((home / "cancelled").exists()))
        for rank in (0, 1):
            stack = 'Current thread 1:\n  File "/x/train.py", line 1 in <module>\n'
            (folder / f"rank{rank}.stack").write_text(stack)
            (folder / f"rank{rank}.pid").write_text("9 n1")

    once_submitted(monkeypatch, lambda folder: threading.Timer(1.0, begin, [folder]).start())
    with pytest.raises(RankError, match="did not end within its timeout of 0.3 s"):
        launch("train.py", 2, engine="slurm", nodes=2, timeout=0.3, quiet=True)
    assert began == [0.0] and (home / "cancelled").read_text() == "12\n"


def test_the_folder_of_a_job_that_may_run_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from course_utils import folders

    monkeypatch.setattr(folders, "KEEP", 1)
    fake_slurm(home, line("RUNNING"))
    kept = launch("train.py", 2, engine="slurm", nodes=2, detach=True, quiet=True).path
    ended = launch("train.py", 2, engine="slurm", nodes=2, dry=True, quiet=True).path
    time.sleep(0.05)  # for the clock of the file system, by which the oldest is found
    for _ in range(2):
        folders.new_run_folder()
    assert Path(kept, "job.sbatch").exists() and not Path(ended, "job.sbatch").exists()


@pytest.mark.parametrize("of_a_job", [False, True])
def test_what_a_rank_left_is_read_once(tmp_path: Path, of_a_job: bool) -> None:
    for name in ("job.sbatch", "exitcode") if of_a_job else ():
        (tmp_path / name).touch()
    (tmp_path / "rank0.log").write_text("hello\n")
    (tmp_path / "rank0.error.json").write_text(
        json.dumps({"time": 1, "type": "E", "message": "m", "traceback": "Traceback\n"})
    )
    for _ in range(2):
        (result,) = read_ranks(tmp_path, 1, {})
    assert result.ended == "E" and (tmp_path / "rank0.log").read_text() == "hello\nTraceback\n"


def test_a_look_at_a_job_changes_no_file_of_its_ranks(home: Path) -> None:
    """They may be writing right now, on other machines: no file is made, changed or removed."""
    fake_slurm(home, line("RUNNING"))
    run = launch("train.py", 3, engine="slurm", nodes=3, detach=True, quiet=True)
    folder = Path(run.path)
    (folder / "rank0.log").write_text("step 1\n")
    (folder / "rank0.error.json").write_text(
        json.dumps({"time": 1, "type": "E", "message": "m", "traceback": "Traceback\n"})
    )
    (folder / "rank1.stack").touch()

    def left() -> dict[str, tuple[str, int]]:
        return {p.name: (p.read_text(), p.stat().st_mtime_ns) for p in folder.iterdir() if p.name != "run.json"}

    before = left()
    assert not [name for name in before if name.endswith(".log") and name != "rank0.log"]
    run = Run.load(folder / "run.json").refresh()
    assert left() == before
    assert run.ranks[0].error and [run.log(rank) for rank in (0, 1)] == ["step 1\nTraceback\n", ""]
    assert (run.ranks[2].log, run.log(2)) == (str(folder / "rank2.log"), "")


# --- the local Slurm --------------------------------------------------------------------------------------------------


def test_a_local_slurm_that_cannot_be(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine without Slurm: the programs are made up, and the machine's own are ignored."""
    monkeypatch.setattr(starting, "PATH", str(home / "bin"))
    for nodes in (1, 9, "2", True):
        with pytest.raises(local_cluster.LocalSlurmError, match="2 to 8 nodes"):
            local_cluster.up(nodes)  # type: ignore[arg-type]
    for name in starting.PROGRAMS:
        program(home, name, "exit 1")
    with pytest.raises(local_cluster.LocalSlurmError, match="too long a path"):
        local_cluster.up(2, folder=home / ("x" * 100))
    (home / "full").mkdir()
    (home / "full" / "file").touch()
    with pytest.raises(local_cluster.LocalSlurmError, match="holds something else|too long"):
        local_cluster.up(2, folder=home / "full")
    assert (home / "full" / "file").exists()


def test_a_local_slurm_without_its_programs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "PATH", str(home / "bin"))
    with pytest.raises(
        local_cluster.LocalSlurmError,
        match="munged, slurmctld, .* are missing; on Debian or Ubuntu, as root: apt-get install",
    ):
        local_cluster.up(2)
    assert local_cluster.find(home / "nothing") is None


def test_a_link_that_cannot_be_made_slow() -> None:
    shared = local_cluster.SlurmCluster("/x", ["n1", "n2"], ["127.0.0.1"] * 2)
    with pytest.raises(local_cluster.LocalSlurmError, match="share this host"):
        shared.shape("1gbit")
    for rate in ("fast", "1", "-1gbit", "1gbit; reboot"):
        with pytest.raises(local_cluster.LocalSlurmError, match="a rate is a number and its unit"):
            shared.shape(rate)


def test_the_warning_comes_when_ranks_have_had_their_time() -> None:
    assert job_file.WARN_S < job_file.MARGIN_S, "the warning would come while the ranks still have their time"


def test_how_processes_are_tracked_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(starting, "FREEZER", tmp_path / "none")
    with pytest.raises(local_cluster.LocalSlurmError, match="linuxproc, pgid, cgroup; got 'systemd'"):
        local_cluster.up(2, proctrack="systemd")
    with pytest.raises(local_cluster.LocalSlurmError, match="needs root and a writable"):
        local_cluster.up(2, proctrack="cgroup")
