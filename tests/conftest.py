"""What all tests share: the course's folder, a count of GPUs that doesn't touch CUDA, and a hunt for processes left
behind."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

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


def pytest_terminal_summary(terminalreporter: Any) -> None:
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as `timed` or `alone`. All others run first, on all cores at once."""
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
