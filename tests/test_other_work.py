"""What other programs did while a launch ran: decided from numbers, and seen on this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from course_utils.launching import sweeps
from course_utils.launching.under_the_cell.cell import busy_machine
from course_utils.machine import busy
from course_utils.machine.busy import BusyTimes, disturbed, look, others
from course_utils.results.provenance import Provenance
from course_utils.results.rank_result import RankResult
from course_utils.results.run import Run
from course_utils.results.samples import Verdict


@pytest.mark.parametrize(
    ("busy", "own", "idle", "found"),
    [
        (2.0, 2.0, 2.0, (0.0, 1.0)),  # all of it was ours
        (4.0, 2.0, 0.0, (1.0, 0.0)),  # one core was another program's
        (1.9, 2.0, 2.1, (0.0, 1.05)),  # counted in ticks, so ours may seem more than all
        (0.0, 0.0, 0.0, None),  # a sandbox whose numbers don't move
    ],
)
def test_what_others_took(busy: float, own: float, idle: float, found: tuple[float, float] | None) -> None:
    got = others(BusyTimes(10.0, 100.0, 50.0, 1.0), BusyTimes(12.0, 100.0 + busy, 50.0 + idle, 1.0 + own))
    assert got == (None if found is None else pytest.approx(found))


def test_nothing_is_said_of_what_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = BusyTimes(10.0, 1.0, 1.0, 0.0)
    assert others(None, now) is None and others(now, None) is None
    assert others(now, BusyTimes(10.3, 2.0, 1.0, 0.0)) is None, "too short to tell"
    for text in (None, "", "cpu  1 2 3", "gone"):
        monkeypatch.setattr(busy, "STAT", tmp_path / "stat")
        if text is not None:
            (tmp_path / "stat").write_text(text)
        assert look() is None


@pytest.mark.parametrize(
    ("other", "free", "cores", "said"),
    [(1.4, 0.0, 2, True), (0.3, 0.0, 2, False), (1.4, 1.0, 2, False), (30.0, 34.0, 64, False), (70.0, 1.0, 8, True)],
)
def test_when_it_matters(other: float, free: float, cores: int, said: bool) -> None:
    words = disturbed([(other, free)], cores)
    assert words == (f"Other programs used {min(other, cores):.1f} of {cores} cores meanwhile" if said else "")
    assert disturbed([], cores) == "", "nothing is known"


def measured(
    *others: float | None, reports: Sequence[dict[str, object]] = ({"step_s": 0.1},), kind: str = "measured"
) -> list[Run]:
    """Runs on two cores of which other programs took so many; None where the system didn't say."""
    ranks = [RankResult(0, 0, records=list(reports))]
    return [
        Run(ranks, "s.py", [], "", "warm", "1 rank.", 1.0, "", provenance=Provenance(kind),
            others=None if taken is None else (taken, 2.0 - taken))
        for taken in others
    ]  # fmt: skip


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("run", "sweep"):
        monkeypatch.setattr(f"course_utils.results.{module}.usable_cores", lambda: 2)


@pytest.mark.parametrize(
    ("taken", "kind", "says"),
    [
        (1.9, "measured", "Other programs used 1.9 of 2 cores meanwhile"),
        (0.3, "measured", ""),
        (None, "measured", ""),
        (1.9, "emulated", ""),
        (1.9, "recorded", ""),
    ],
)
def test_a_run_says_whether_it_was_disturbed(taken: float | None, kind: str, says: str, two_cores: None) -> None:
    (run,) = measured(taken, kind=kind)
    assert run.disturbed == says
    assert sweeps.Sweep([{}], [[run]]).disturbed == says


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([[0.0, 0.0, 1.9], [0.0, 1.9, 0.0]], False),  # the median of three doesn't mind one
        ([[0.0, 0.0, 0.0], [0.0, 1.9, 1.9]], True),  # one point is enough to turn a comparison round
        ([[None, None, 1.9], [0.0]], True),
        ([[], [None]], False),
        ([], False),
    ],
)
def test_a_sweep_is_disturbed_where_half_the_repeats_of_a_point_are(
    points: list[list[float | None]], says: bool, two_cores: None
) -> None:
    swept = sweeps.Sweep([{"n": i} for i in range(len(points))], [measured(*taken) for taken in points])
    assert bool(swept.disturbed) == says


def test_a_comparison_of_disturbed_runs_shows_nothing() -> None:
    for status in ("shown", "not shown", "contradicted"):
        verdict = Verdict(status, "1 s against 2 s")
        assert verdict.unless("") is verdict
        assert verdict.unless("Other programs were there") == Verdict("not shown", "other programs were there")


@pytest.mark.parametrize(
    ("reports", "says"),
    [
        ([{"step_s": 0.1}], True),
        ([{"took_ms": 0.1}], True),
        ([{"seconds": 0.1}], True),
        ([{"images_per_s": 300.0, "loss": 1.0}], True),
        ([{"copy_Bps": 1e9}], True),
        ([{"total": 3}, {"loss": 0.5, "images": 64, "time": 1.7e9}], False),
        ([{"samples_per_rank": 3, "peak_bytes": 10, "losses": 2}], False),
        ([], False),
    ],
)
def test_only_what_timed_something_hears_of_a_busy_machine(reports: list[dict[str, object]], says: bool) -> None:
    machine: Any = SimpleNamespace(cores=2)
    words = busy_machine(measured(1.9, reports=reports), machine)
    assert words == says * (
        "A busy machine. Other programs used 1.9 of 2 cores meanwhile, so these times are too long. Close them, then"
        " run the cell again."
    )
    assert busy_machine(measured(0.1, reports=reports), machine) == ""


SPIN = "import time\nwhile time.process_time() < {seconds}: pass"


def passed(work: Callable[[], object]) -> tuple[float, float]:
    """Core seconds of all programs and of our own while `work` ran."""
    before = look()
    work()
    after = look()
    assert before and after
    return after.busy - before.busy, after.own - before.own


@pytest.mark.skipif(look() is None, reason="this system does not count its work")
def test_what_a_rank_does_is_our_own_once_it_has_ended() -> None:
    """However busy the machine is: it's processor time that is compared. Only others still count as others."""
    busy, own = passed(lambda: subprocess.run([sys.executable, "-c", SPIN.format(seconds=1)], check=True))
    assert 0.9 < own < 2.5 and busy > own - 0.1
    processes: list[subprocess.Popen[bytes]] = []

    def begin_one_and_leave_it() -> None:
        processes.append(subprocess.Popen([sys.executable, "-c", SPIN.format(seconds=600)]))
        while sum(psutil.Process(processes[0].pid).cpu_times()[:2]) < 1:
            time.sleep(0.05)

    busy, own = passed(begin_one_and_leave_it)
    processes[0].kill()
    processes[0].wait()
    assert own < 0.5 and busy > 0.9, "it has not ended, so it is somebody else's"


@pytest.mark.parametrize(
    "used, times", [([1.9, 1.9, 1.9], 1), ([0.0, 1.9, 1.9], 1), ([0.0, 0.0, 1.9], 0), ([0.0] * 3, 0), ([1.9], 0)]
)
def test_a_sweep_on_a_busy_machine_says_so_while_there_is_something_to_save(
    used: list[float], times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the first launch that suffered, and not a second time at the end. Where only the last one suffered there is
    nothing to save: then the median of all decides."""
    left = iter(used)

    def launch(*_: object, **__: object) -> Run:
        return measured(next(left))[0]

    monkeypatch.setattr(sweeps, "launch", launch)
    monkeypatch.setattr(sweeps.Machine, "here", lambda: SimpleNamespace(cores=2))
    sweeps.sweep("s.py", {"ranks": [1]}, repeats=len(used))
    shown = capsys.readouterr().out
    assert " ".join(shown.split()).count(sweeps.MEASURE_AGAIN) == times
    assert ("A busy machine. Other programs used 1.9 of 2 cores" in shown) == (used == [1.9])
