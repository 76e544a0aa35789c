"""A local Slurm ends with the process that it was lent to, even if that is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from conftest import ROOT

from course_utils.slurm import local_cluster
from course_utils.slurm.local_cluster import starting
from course_utils.slurm.local_cluster.cluster import MARK, start_time

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def made_up(folder: Path, pid: int) -> None:
    """The file of a cluster that has one process."""
    folder.mkdir()
    raw = {
        "folder": str(folder),
        "nodes": ["n1", "n2"],
        "addresses": ["127.0.0.1"] * 2,
        "pids": {"n1": [pid, start_time(pid)]},
    }
    (folder / "cluster.json").write_text(json.dumps(raw))


def gone(process: subprocess.Popen[bytes], seconds: float = 15.0) -> bool:
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    return process.poll() is not None


def test_it_takes_the_cluster_down_when_its_user_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    user = subprocess.Popen(["sleep", "60"])
    daemon = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: str(folder)})
    made_up(folder, daemon.pid)
    guard = subprocess.Popen(
        [sys.executable, "-m", "course_utils.slurm.local_cluster.guard", str(user.pid), str(folder)], cwd=ROOT
    )
    time.sleep(1.0)
    assert guard.poll() is None and daemon.poll() is None, "it waits while the user lives"
    user.kill()
    user.wait()
    assert gone(guard) and gone(daemon)
    assert not folder.exists()


def test_it_ends_with_the_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    made_up(folder, os.getpid())
    guard = subprocess.Popen(
        [sys.executable, "-m", "course_utils.slurm.local_cluster.guard", str(os.getpid()), str(folder)], cwd=ROOT
    )
    time.sleep(0.5)
    (folder / "cluster.json").unlink()
    assert gone(guard) and guard.returncode == 0


def test_down_names_the_cluster_again_that_was_named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node has its own SLURM_CONF, which must be back after the local one."""
    monkeypatch.setattr(starting, "PROGRAMS", ())  # nothing is started: it finds the one that is made up
    monkeypatch.setenv("SLURM_CONF", "/etc/site/slurm.conf")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "c")
        daemon = subprocess.Popen(["sleep", "60"])  # shows no mark, like one that has just begun
        made_up(folder, daemon.pid)
        cluster = local_cluster.up(nodes=2, folder=folder)
        assert os.environ["SLURM_CONF"] == cluster.conf
        cluster.down()
    assert gone(daemon) and os.environ["SLURM_CONF"] == "/etc/site/slurm.conf"
