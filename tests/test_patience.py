"""When a launch is given up: what counts is what its processes do, and no clock."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import ROOT

from course_utils.failure.errors import RankError
from course_utils.launching.launcher import launch
from course_utils.launching.options import LaunchOptions
from course_utils.launching.request import Request
from course_utils.launching.supervisor import patience
from course_utils.launching.supervisor.patience import USUAL, Patience, PatientWatch

RANKS, PIDS = (0, 1), (10, 11)


class Machine:
    """Two processes: `rate` says how many cores each uses, `wants` whether it stands in line for one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now, self.used, self.rate = 0.0, dict.fromkeys(PIDS, 0.0), dict.fromkeys(PIDS, 0.0)
        self.wants = dict.fromkeys(PIDS, False)
        monkeypatch.setattr(patience, "_processor_seconds", self.used.get)
        monkeypatch.setattr(patience, "_wants_a_core", self.wants.__getitem__)
        monkeypatch.setattr(patience.sys, "platform", "linux")

    def go_on(self, watch: PatientWatch, seconds: float) -> str:
        """The first thing that the watch says within `seconds`."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            for pid in PIDS:
                self.used[pid] += 0.5 * self.rate[pid]
            if said := watch.say(self.now, RANKS, PIDS):
                return said
        return ""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_ranks_that_all_wait_are_stuck(machine: Machine, tmp_path: Path) -> None:
    watch = PatientWatch(Patience(idle_s=6), tmp_path, 0.0)
    assert "had only waited for 7 s" in machine.go_on(watch, 10)


def test_a_rank_that_computes_is_not_stuck_however_slowly(machine: Machine, tmp_path: Path) -> None:
    watch = PatientWatch(Patience(idle_s=6), tmp_path, 0.0)
    machine.rate[10] = 0.3
    assert machine.go_on(watch, 100) == ""


def test_a_rank_that_gets_no_core_is_not_stuck(machine: Machine, tmp_path: Path) -> None:
    """Other programs take all of them."""
    watch = PatientWatch(Patience(idle_s=6), tmp_path, 0.0)
    machine.wants[11] = True
    assert machine.go_on(watch, 100) == ""
    machine.wants[11] = False
    assert "only waited" in machine.go_on(watch, 10)


def test_a_rank_that_looks_at_a_clock_now_and_then_only_waits(machine: Machine, tmp_path: Path) -> None:
    watch = PatientWatch(Patience(idle_s=6), tmp_path, 0.0)
    for look in range(40):
        machine.wants[10] = look % 8 == 0
        machine.rate[10] = 0.04
        if said := machine.go_on(watch, 0.5):
            break
    assert "only waited" in said and machine.now < 15


def test_work_counts_from_when_the_last_rank_has_begun(machine: Machine, tmp_path: Path) -> None:
    watch = PatientWatch(Patience(idle_s=6, work_s=20, once_begun=True), tmp_path, 0.0)
    machine.rate = dict.fromkeys(PIDS, 1.0)
    assert machine.go_on(watch, 100) == "", "they import"
    (tmp_path / "rank0.begun").touch()
    assert machine.go_on(watch, 100) == ""
    (tmp_path / "rank1.begun").touch()
    began = machine.now
    assert "still running after 20 s of processor time" in machine.go_on(watch, 100)
    assert 19 < machine.now - began < 23


def test_a_disk_that_is_slow_while_ranks_import_is_given_a_minute(machine: Machine, tmp_path: Path) -> None:
    watch = PatientWatch(Patience(idle_s=6, once_begun=True), tmp_path, 0.0)
    assert machine.go_on(watch, 50) == ""
    assert "only waited" in machine.go_on(watch, 20)


def test_seconds_that_somebody_gave_are_kept(machine: Machine, tmp_path: Path) -> None:
    watch = PatientWatch(LaunchOptions(Path("x.py"), timeout=7).patience, tmp_path, 0.0)
    machine.rate[10] = 1.0
    assert machine.go_on(watch, 10) == "did not end within its timeout of 7 s"


def test_nobody_s_limit_is_that_of_ranks_that_only_wait() -> None:
    assert LaunchOptions(Path("x.py")).patience == USUAL and LaunchOptions(Path("x.py")).seconds == 120


def test_a_request_arrives_as_it_was_sent() -> None:
    request = Request("x.py", [], 1, {}, "/", "/", 9.0, str(ROOT), 1, patience=Patience(idle_s=3))
    assert Request.of(json.loads(request.to_json())) == request and asdict(request)["patience"]["work_s"] > 1e9


def test_ranks_are_asked_when_all_have_waited_and_then_ever_more_rarely(machine: Machine, tmp_path: Path) -> None:
    watch, asked = PatientWatch(USUAL, tmp_path, 0.0), []
    while not machine.go_on(watch, 0.5):
        if watch.ask():
            asked.append(machine.now)
    assert asked[0] < 8 and len(asked) == 5 and all(b > 1.5 * a for a, b in zip(asked, asked[1:], strict=False)), asked
    watch = PatientWatch(USUAL, tmp_path, machine.now)
    machine.rate[11] = 0.5
    assert machine.go_on(watch, 100) == "" and not watch.ask(), "a rank computes"


def test_real_ranks_of_which_one_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    program = tmp_path / "program.py"
    program.write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 0:\n    dist.barrier()\nelse:\n    import threading\n    threading.Event().wait()\n"
    )
    with pytest.raises(RankError) as caught:
        launch(program, 2, timeout=Patience(idle_s=2, total_s=250), quiet=True, device="cpu")
    assert "only waited for" in caught.value.cause and "barrier" in str(caught.value)


def test_a_send_that_nobody_receives_is_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo's thread turns without end once the program has let go of what `isend` returned."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    program = tmp_path / "program.py"
    program.write_text(
        "import time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndata = torch.ones(9)\n"
        "for i in range(4):\n    dist.recv(data, 0) if dist.get_rank() else dist.isend(data + i, 1)\n"
        "time.sleep(500)\n"
    )
    with pytest.raises(RankError) as caught:
        launch(program, 2, timeout=Patience(idle_s=2, total_s=60), quiet=True, device="cpu")
    assert "only waited for" in caught.value.cause


def test_a_real_rank_that_computes_outlasts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    program = tmp_path / "program.py"
    program.write_text("import time\nuntil = time.process_time() + 3\nwhile time.process_time() < until: pass\n")
    assert launch(program, 1, timeout=Patience(idle_s=1, total_s=250), quiet=True, device="cpu").ok
    with pytest.raises(RankError, match="still running after 1 s of processor time"):
        launch(program, 1, timeout=Patience(work_s=1, total_s=250), quiet=True, device="cpu")
