"""Calibration: what it measures, what it keeps, and when it measures again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import course_utils.benchmarks.calibration as module
from course_utils.benchmarks.calibration import Calibration, calibrate
from course_utils.launching.launcher import launch
from course_utils.results.provenance import Provenance


def a_calibration(ranks: list[int]) -> Calibration:
    return Calibration(
        "cpu",
        1,
        {"float32": 1e11},
        2e10,
        {},
        {n: [(4096.0, 1e-4 * n), (2.0**20, 1e-3 * n)] for n in ranks},
        0.07,
        3.0,
        Provenance("measured", "a laptop", {"torch": "2.15"}),
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[list[int]]]:
    """Measures nothing. The list says for which numbers of ranks it would have measured."""
    calls: list[list[int]] = []

    def instead(machine: object, ranks: list[int], known: Calibration | None, started: float) -> Calibration:
        calls.append(ranks)
        return a_calibration(sorted({*ranks, *(known.all_reduce if known else ())}))

    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_measure", instead)
    yield calls


def test_it_is_measured_once_and_again_when_asked_or_when_more_is_needed(measured: list[list[int]]) -> None:
    first = calibrate(ranks=[2])
    assert calibrate(ranks=[2]) == first and len(measured) == 1, "a kept calibration is read as it was written"
    assert set(calibrate(ranks=[2, 4]).all_reduce) == {2, 4} and len(measured) == 2
    assert set(calibrate(ranks=[2]).all_reduce) == {2, 4} and len(measured) == 2, "what was known stays"
    calibrate(fresh=True, ranks=[2])
    assert len(measured) == 3


def test_a_broken_or_an_old_file_is_measured_anew(
    measured: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(ranks=[2])
    (kept,) = (tmp_path / "runs").glob(".calibration-*.json")
    kept.write_text("{half of a fi")
    calibrate(ranks=[2])
    assert len(measured) == 2
    later = time.time() + module.KEEP_S + 60
    monkeypatch.setattr(module.time, "time", lambda: later)
    calibrate(ranks=[2])
    assert len(measured) == 3


def test_the_sweep_predicts_between_measured_sizes_and_names_what_is_missing() -> None:
    calibration = a_calibration([2])
    assert calibration.sweep(2)(2.0**20) == pytest.approx(2e-3)
    assert 2e-4 < calibration.sweep(2)(2.0**16) < 2e-3
    with pytest.raises(KeyError, match=r"over 2 ranks, not over 8; calibrate\(ranks=\[8\]\) adds it"):
        calibration.sweep(8)
    assert "100 GFLOP/s" in repr(calibration) and "a laptop" in calibration._repr_html_()


def test_this_machine_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_ENGINE", "cold")  # which is only for launches that a notebook makes itself
    monkeypatch.setattr(module, "launch", lambda *a, **k: engines.append((run := launch(*a, **k)).engine) or run)
    engines: list[str] = []
    found = calibrate(ranks=[2])
    assert set(engines) == {"warm" if sys.platform == "linux" else "cold"}
    assert found.took_s < 120, "generous: about 10 s where nothing else runs"
    assert {"float32", "bfloat16"} <= set(found.matmul_flops) and all(
        rate > 1e7 for rate in found.matmul_flops.values()
    )
    assert 1e8 < found.memory_Bps < 1e14 and found.launch_s > 0
    sizes, seconds = zip(*found.all_reduce[2], strict=True)
    assert len(sizes) >= 5 and sizes[0] <= 2**12 and sizes[-1] >= 2**26
    assert all(s > 0 for s in seconds) and seconds[-1] > seconds[0]
