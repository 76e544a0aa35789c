"""The gate's own runner, on made-up tests: what fails twice is red, what passes alone is named, nothing is hidden."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, load_tool

SETTINGS = """[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = "--strict-markers"
markers = ["timed", "alone", "slow", "gpu(n)"]
"""
GOOD = "def test_good(): pass\n"
WOBBLES = """
import pathlib, pytest
@pytest.mark.parametrize("n", range({0}))
def test_wobbles(n):
    seen = pathlib.Path(__file__).with_name(f"seen-{{n}}")
    if not seen.exists():
        seen.touch()
        raise ValueError("the first time")
    print("the second time")
"""
BROKEN = "import pytest\n@pytest.mark.parametrize('n', range({0}))\ndef test_broken(n): assert False, 'always'\n"
GROUPED = """
import os, time, pathlib, pytest
@pytest.mark.parametrize("n", range(12))
@pytest.mark.xdist_group("one")
def test_grouped(n):
    time.sleep(0.05)
    seen = pathlib.Path(__file__).with_name(f"seen-{n}")
    if not seen.exists():
        seen.touch()
        pathlib.Path(__file__).with_name(os.environ["PYTEST_XDIST_WORKER"]).touch()
        assert n != 7, "the first time"
@pytest.mark.parametrize("n", range(12))
def test_others(n): time.sleep(0.05)
"""
SPOILT = """
import pathlib
state = []
def test_spoils(): state.append(1)
def test_needs_a_process_of_its_own(): assert not state
"""


Runner = Callable[..., tuple[int, str]]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The gate's runner, for made-up tests in a project of their own, without workers."""
    runner = load_tool("run_tests")
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    for name, value in {
        "ROOT": tmp_path,
        "WOBBLED": tmp_path / "artifacts" / "wobbled.jsonl",
        "MOST_WOBBLES": 2,
        "MOST_SECOND_CHANCES": 4,
        "phases": lambda everything: [("slow or not slow" if everything else "not slow", "0")],
    }.items():
        monkeypatch.setattr(runner, name, value)
    return runner


@pytest.fixture
def run(runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Runner:
    """Runs made-up tests. Returns the exit status and all that was said."""

    def run(*sources: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
        for number, source in enumerate(sources):
            (tmp_path / "tests" / f"test_made_up_{number}.py").write_text(source)
        monkeypatch.setattr(sys, "argv", ["run_tests.py", "-p", "no:cacheprovider", *options])
        code = runner.main()
        said = capfd.readouterr()
        return code, said.out + said.err

    return run


def test_all_is_well(run: Runner) -> None:
    code, said = run(GOOD)
    assert code == 0 and "1 passed, 0 failed, 0 skipped" in said and "[tests] green" in said and "wobbled" not in said


def test_what_passes_alone_is_green_and_named_with_both_outputs(run: Runner, tmp_path: Path) -> None:
    code, said = run(GOOD, WOBBLES.format(1), SPOILT)
    assert code == 0 and "4 passed, 0 failed" in said, said
    told = said.partition(" wobbled ")[2]
    for words in ("test_wobbles[0]", "the first time", "test_needs_a_process_of_its_own", "load"):
        assert words in told, told
    kept = [json.loads(line) for line in (tmp_path / "artifacts" / "wobbled.jsonl").read_text().splitlines()]
    assert len(kept) == 2 and all(one["first"] and one["second"] and one["load"] >= 0 for one in kept)


def test_a_group_stays_with_one_worker(
    runner: Any, run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one site, or one warm server, does for all of its tests. And who fails there is run again by its name."""
    monkeypatch.setattr(runner, "phases", lambda everything: [("not slow", "2")])
    code, said = run(GROUPED)
    assert code == 0 and "24 passed, 0 failed" in said and "test_grouped[7]: failed among others" in said, said
    assert len([*(tmp_path / "tests").glob("gw*")]) == 1


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (BROKEN.format(1), "failed twice:\n  tests/test_made_up_1.py::test_broken[0]"),
        (WOBBLES.format(3), "3 tests wobbled, and 2 are the most"),
        (BROKEN.format(5), "too many for a second chance"),
        ("import os\ndef test_dies(): os._exit(3)\n", "before it could tell what it found"),
        ("import nothing_of_that_name\n", "failed twice"),
        ("def broken(:\n", "failed twice"),
        ("import pytest\n@pytest.fixture\ndef f(): yield; assert 0\ndef test_end(f): pass\n", "failed twice"),
    ],
)
def test_what_is_broken_is_red(run: Runner, source: str, says: str) -> None:
    code, said = run(GOOD, source)
    assert code == 1 and says in said and "[tests] red" in said, said


def test_a_gate_in_which_everything_fails_ends_early(run: Runner) -> None:
    """Nine is the most that the gate waits for, where four get a second chance."""
    code, said = run(BROKEN.format(40))
    assert code == 1 and "too many for a second chance" in said and "9 failed" in said, said
    code, said = run(BROKEN.format(40), options=("--all",))
    assert code == 1 and "40 failed" in said, said


def test_second_chances_end_when_it_is_red_and_took_long(
    run: Runner, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GIVE_UP_AFTER_S", 0)
    code, said = run(BROKEN.format(3))
    assert code == 1 and said.count("once more, alone") == 1 and said.count("no second chance any more") == 2, said


def test_no_test_at_all_is_red(run: Runner) -> None:
    code, said = run("import pytest\n@pytest.mark.slow\ndef test_slow(): pass\n")
    assert code == 1 and "no test passed" in said, said


def test_an_option_that_pytest_does_not_know_is_red(run: Runner) -> None:
    code, said = run(GOOD, options=("--no-such-option",))
    assert code == 1 and "before it could tell what it found" in said, said
