"""Launches with random faults: each ends in the right error, and leaves no process, port, file or shared memory.

COURSE_FAULTS sets how many. COURSE_FAULT_SEED repeats a series (its seed is printed); so does `python tests/faults.py
COUNT SEED`, by hand.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import Descendants
from faults import KINDS, SCRIPT, draw, run_fault

from course_utils.launching import local
from course_utils.launching.launcher import launch


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: the path of a Unix socket, which torch makes below it to share memory, has room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        yield Path(name)


@pytest.fixture
def marked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Descendants]:
    """A warm server in this process. Its ranks carry a mark, and keep their runs and temporary files in `folder`."""
    mark = Descendants()
    (folder / "tmp").mkdir()
    for name, value in {**mark.env, "COURSE_HOME": str(folder), "TMPDIR": str(folder / "tmp")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", None)
    local.server.stop()
    yield mark
    local.server.stop()
    left = mark.wait_gone(5)
    mark.kill()
    assert not left, left


def inject(count: int, usual_seed: int, marked: Descendants, folder: Path) -> None:
    seed = int(os.environ.get("COURSE_FAULT_SEED") or usual_seed)
    print(f"{count} launches, seed {seed}")
    script = folder / "fault.py"
    script.write_text(SCRIPT)
    first = launch(script, 1, ["--kind", "success", "--victim", 0, "--place", "before"], quiet=True)
    assert first.engine == "warm"

    def of_launches() -> list[psutil.Process]:
        return [p for p in marked.alive() if p.pid not in (os.getpid(), local.server())]

    for fault in draw(count, seed):
        try:
            run_fault(fault, script, of_launches)
        except BaseException as error:
            raise AssertionError(f"{fault} (seed {seed}): {error}") from error
        assert not list((folder / "tmp").glob("course-*/course-*")), f"{fault} (seed {seed}) left temporary files"


@pytest.mark.timeout(600)
def test_faults(marked: Descendants, folder: Path) -> None:
    """The same ones each time."""
    inject(int(os.environ.get("COURSE_FAULTS") or 10), 2, marked, folder)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_faults(marked: Descendants, folder: Path) -> None:
    inject(int(os.environ.get("COURSE_FAULTS") or 200), random.randrange(10**6), marked, folder)


def test_a_series_can_be_repeated_and_holds_every_kind() -> None:
    faults = draw(40, 7)
    assert faults == draw(40, 7) != draw(40, 8)
    assert {f.kind for f in faults} == set(KINDS) and {f.engine for f in faults} == {"local", "cold"}
    assert all(f.victim < f.ranks for f in faults)
