"""What all tests share: the course's folder, a count of GPUs that doesn't touch CUDA, and a hunt for processes left
behind."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import psutil
import pytest

from course_utils.results.rank_result import RankResult
from course_utils.results.run import Run

ROOT = Path(__file__).resolve().parent.parent
MARK = "COURSE_TEST_MARK"

# Tests with limits of seconds, and those that want the machine: run next to all others, they'd measure those too.
TIMED = ("test_launch_table", "test_shm", "test_faults", "test_gpu")
ALONE = ("test_slurm",)


def checks(module: str) -> Any:
    """A module of `exercises/checks`, for example `lesson_04.judge`."""
    from course_utils.check import judging

    judging()  # which gives the folder its name
    return importlib.import_module(f"exercise_checks.{module}")


def disturb(measured: Any) -> Any:
    """A run or a sweep, as if other programs had used all cores meanwhile."""
    for run in sum(measured.runs, []) if hasattr(measured, "runs") else [measured]:
        run.others = (1000.0, 0.0)
    return measured


def concludes_nothing(said: str, about: str, guess: Any = ...) -> None:
    """Check the words of a page about the speed of a disturbed run: why, and to measure again; no bet is judged."""
    lead = rf"Other programs used \d+\.0 of \d+ cores meanwhile, so this says nothing about {about}"
    assert re.search(lead, said), said
    assert re.search(r"Close them, then run .* again\.", said) and "You said" not in said, said
    assert ("Your bet stays open." in said) == (guess is not ...), said


NONSENSE = ("lots", "", [3], {}, True, float("nan"), float("inf"), -1, 2j, object())


def takes_nonsense(show: Callable[[Any], object], capsys: pytest.CaptureFixture[str]) -> None:
    """Check what a page says to a bet that's none: a kind word, and no traceback; nothing of the kind where there's no
    bet."""
    for guess in NONSENSE:
        show(guess)
        said = capsys.readouterr().out
        assert said.count("Your bet should be ") == 1 and "You said" not in said, (guess, said)
    show(None)
    assert "Your bet" not in capsys.readouterr().out


def made_run(
    *ranks: list[dict[str, Any]], script: Path | str = "cell.py", folder: Path | str = "", stack: str = "",
    outcome: str = "finished",
) -> Run:  # fmt: skip
    """A run whose ranks reported these records; `stack` is where rank 0 stands, which hasn't ended then."""
    results = [RankResult(i, 0, log="no such file", records=records) for i, records in enumerate(ranks)]
    if stack:
        results[0].exitcode, results[0].stack = None, stack
    return Run(results, str(script), [], "", "warm", "", 1.0, str(folder), outcome)


def program_of(lesson: str, file: str) -> str:
    """The program of a lesson's cell, by the number of the lesson and the cell's `--file`."""
    (notebook,) = (ROOT / "notebooks").glob(f"{lesson}_*.ipynb")
    cells = nbformat.read(notebook, as_version=4).cells
    (source,) = (c.source for c in cells if c.source.startswith("%%ranks") and f"--file {file} " in c.source)
    return str(source.partition("\n")[2])


def load_tool(name: str) -> ModuleType:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")


def skip_or_fail(reason: str) -> None:
    """Skip with a reason. In CI, where no test may be skipped because a program is missing, fail."""
    if in_ci():
        pytest.fail(f"{reason} (in CI this may not be skipped)", pytrace=False)
    pytest.skip(reason)


def add_claims(cache: pytest.Cache, notebook: Path, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add what a run of `notebook` claimed. Returns the claims of all its runs on the same code, in this pytest and
    earlier ones."""
    digest = hashlib.sha256()
    code = [path for folder in ("course_utils", "notebooks") for path in sorted((ROOT / folder).rglob("*.py"))]
    for path in [notebook, *code, ROOT / "data" / "published.json"]:
        digest.update(path.read_bytes())
    key = f"claims/{notebook.stem}-{digest.hexdigest()[:16]}"
    claims = cache.get(key, []) + claims
    cache.set(key, claims)
    return claims


class Descendants:
    """Processes with this object's mark in their environment: everything started with `env`, orphans too."""

    def __init__(self) -> None:
        self.value = uuid.uuid4().hex
        self.env = {MARK: self.value}

    def alive(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.value and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def wait_gone(self, seconds: float) -> list[str]:
        """Wait until none is left. Returns the command lines of those that are still there after `seconds`."""
        deadline = time.monotonic() + seconds
        while (alive := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [_describe(process) for process in alive]

    def kill(self) -> None:
        for process in self.alive():
            try:
                process.kill()
            except psutil.Error:
                pass


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid} (just gone)"


@pytest.fixture(scope="session", autouse=True)
def somewhere_to_write(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where the home can't be written to, IPython, jedi and matplotlib get another place, or they complain."""
    if not os.access(Path.home(), os.W_OK):
        own = tmp_path_factory.mktemp("home")
        for name in ("IPYTHONDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"):
            os.environ.setdefault(name, str(own / name.lower()))


@pytest.fixture(autouse=True)
def same_environment():
    """Each test leaves the environment as it found it: torch sets variables, such as TORCHINDUCTOR_CACHE_DIR when it
    first compiles, and the programs that later tests start would see them."""
    before = dict(os.environ)
    yield
    for name in [name for name in os.environ if name not in before and name != "PYTEST_CURRENT_TEST"]:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@pytest.fixture
def descendants():
    """A mark for processes (`subprocess.Popen(..., env=os.environ | descendants.env)`). At the end, those still alive
    are killed."""
    mark = Descendants()
    yield mark
    mark.kill()


def tell(request: pytest.FixtureRequest, text: str) -> None:
    """Print `text` after all tests. Works in a worker of pytest-xdist, and when the test passes."""
    request.node.user_properties.append(("told", text))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="write what passed and failed there, for tools/run_tests.py")
    parser.addoption("--lesson", metavar="NN", help="only the tests that belong to this lesson, such as 07")


def write_outcomes(terminalreporter: Any, file: Path) -> None:
    """Counts, and for each failed test what it said."""
    reports = terminalreporter.getreports("failed") + terminalreporter.getreports("error")
    failed = {
        _without_group(report.nodeid): f"{report.longreprtext}\n{report.capstdout}\n{report.capstderr}"
        for report in reports
    }
    counts = {name: len(terminalreporter.stats.get(name, [])) for name in ("passed", "skipped")}
    file.write_text(json.dumps({**counts, "failed": failed}))


def _without_group(nodeid: str) -> str:
    """The name by which a test can be run alone: xdist puts `@group` behind that of a grouped one."""
    name, _, group = nodeid.rpartition("@")
    return name if "::" in name and "]" not in group and "::" not in group else nodeid


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """A failure tells how busy the machine was."""
    report = yield
    if report.failed:
        report.sections.append(
            ("the machine", "load averages: " + ", ".join(f"{load:.1f}" for load in os.getloadavg()))
        )
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--outcomes"):
        write_outcomes(terminalreporter, Path(config.getoption("--outcomes")))
    reports = [
        report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind) if report.when == "call"
    ]
    told = [text for report in reports for key, text in report.user_properties if key == "told"]
    if told:
        terminalreporter.section("what was seen")
        terminalreporter.write_line("\n".join(sorted(told)))


def gpu_count() -> int:
    """Count GPUs with NVML, which leaves CUDA alone."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:
        return 0


def of_lesson(number: str) -> re.Pattern[str]:
    """Matches the names of tests that belong to a lesson: its module, its exercises and answers, its notebooks, and the
    explorers that it shows."""
    notebook = next((ROOT / "notebooks").glob(f"{number}_*.ipynb"), None) if re.fullmatch(r"\d\d", number) else None
    if notebook is None:
        raise pytest.UsageError(
            f"there is no lesson {number!r}; name one as in --lesson 07, or make test-lesson LESSON=07"
        )
    explorers = sorted(set(re.findall(r"\bexplore\.(\w+)\(", notebook.read_text())))
    named = "".join(rf"|\[(?:.*-)?{name}\b" for name in explorers)
    return re.compile(rf"lesson_{number}|[\[/]{number}[._\]-]{named}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests as `timed` or `alone`. All others run first, on all cores at once."""
    if number := config.getoption("--lesson"):
        wanted = of_lesson(number)
        others = [item for item in items if not wanted.search(item.nodeid)]
        items[:] = [item for item in items if wanted.search(item.nodeid)]
        config.hook.pytest_deselected(items=others)
    for item in items:
        if item.path.stem in TIMED:
            item.add_marker(pytest.mark.timed)
        if item.path.stem in ALONE:
            item.add_marker(pytest.mark.alone)


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gpu")
    if marker:
        need, there = (marker.args or (1,))[0], gpu_count()
        if there < need:
            pytest.skip(f"needs {need} GPU{'s' * (need > 1)}, and here are {there}")


@pytest.fixture(scope="session")
def chromium() -> str:
    path = load_tool("chromium").find()
    if path is None:
        skip_or_fail("no chromium is here; `make browser` says how one could be installed")
    return path
