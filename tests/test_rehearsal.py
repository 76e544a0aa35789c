"""Programs of the lessons with a GPU branch run on emulated GPUs, at GPU size, and fit. Here are short ones;
`make rehearse` runs all of them and writes tests/rehearsals.md."""

from __future__ import annotations

from pathlib import Path

import pytest
import rehearsal
from conftest import ROOT
from rehearsal import Program

pytestmark = pytest.mark.xdist_group("emulated")  # one warm server for all

SHORT = ("00/clocks", "03/partly", "04/hello", "05/by_hooks", "06/inside", "08/types", "08/ddp", "09/byhand")


@pytest.mark.parametrize("program", [p for p in rehearsal.programs() if p.id.startswith(SHORT)], ids=lambda p: p.id)
def test_rehearsal(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    rehearsal.write(program.lesson, tmp_path)
    _, wrong = rehearsal.judged(program, "2xT4", tmp_path, timeout=200)
    assert not wrong, wrong


def test_what_the_tables_name_is_there() -> None:
    programs = rehearsal.programs()
    there = {f"{p.lesson}/{p.name}" for p in programs}
    assert len({p.id for p in programs}) == len(programs)
    assert {*rehearsal.ARGS, *rehearsal.AFTER, *rehearsal.LINES} <= there
    assert all(any(name.startswith(short) for name in there) for short in SHORT)


def test_answers_have_no_gpu_branch() -> None:
    """Which is why none of them is rehearsed."""
    assert 'device="cpu"' in (ROOT / "exercises" / "checks" / "judging.py").read_text()
    for path in (ROOT / "solutions").glob("*.ipynb"):
        assert "cuda(" not in path.read_text() and "rank import device" not in path.read_text(), path.name
