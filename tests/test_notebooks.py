"""Run every lesson, exercise and solution from top to bottom under nbval, in the kernel of this environment.

Every cell must run without an error, the claims of a notebook are counted, and nothing may outlive it. Exercises run
unchanged: their blanks must answer "not done yet", not end in a stack trace.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from _pytest.mark import ParameterSet
from conftest import ROOT, Descendants, add_claims, load_tool, tell

from course_utils.machine.optional_packages import EXTRAS, missing

list_claims = load_tool("list_claims")
CELL_TIMEOUT_S = 180
# Whose core runs in `make test`. All lessons run whole in `make test-all`.
SHORT = ("04",)
LONG = ("01", "04", "07", "11", "12", "13", "14")  # compile, train or start other frameworks
LIMIT_S = {"notebooks": 75, "exercises": 75, "solutions": 20}  # on 2 idle cores
SLACK = 4  # a busy or slow machine may take this many times as long before the test fails

NOTEBOOKS = sorted(path for folder in LIMIT_S for path in (ROOT / folder).glob("*.ipynb"))
LESSONS = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def params(paths: list[Path]) -> list[ParameterSet]:
    return [pytest.param(path, id=name(path)) for path in paths]


def home_in(folder: Path) -> Path:
    """A course's home of its own, so that nothing of this run meets another one's. Drawn images are shared."""
    home, drawn = folder / "home", ROOT / "data" / "cache"
    (home / "data").mkdir(parents=True, exist_ok=True)
    drawn.mkdir(exist_ok=True)
    if not (home / "data" / "cache").exists():
        (home / "data" / "cache").symlink_to(drawn)
    return home


@dataclass
class Outcome:
    """What a run of a notebook left: pytest's output, seconds, and the claims (the lines of COURSE_CLAIMS_FILE)."""

    ok: bool
    text: str
    seconds: float
    left: list[str]
    claims: list[dict[str, Any]] = field(default_factory=list)

    def summary(self) -> str:
        counts = Counter(claim["status"] for claim in self.claims)
        return f"{self.seconds:.0f} s, claims: " + (
            ", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "none"
        )


def limit_s(path: Path) -> float:
    if name(path).startswith("solutions/12"):
        return 40  # two checks import other frameworks
    return 120 if path.name[:2] in LONG and path.parent.name != "solutions" else LIMIT_S[path.parent.name]


def run_notebook(
    path: Path,
    folder: Path,
    descendants: Descendants,
    extra_env: dict[str, str] | None = None,
    patience_s: float = 10,
    may_take_s: float | None = None,
) -> Outcome:
    """Run one notebook under nbval in its own pytest, so that we can tell its kernel and everything it starts apart."""
    claims = folder / "claims.jsonl"
    claims.unlink(missing_ok=True)
    env = (
        os.environ
        | descendants.env
        | {"COURSE_CLAIMS_FILE": str(claims), "COURSE_NOTEBOOK": path.name, "COURSE_HOME": str(home_in(folder))}
        | (extra_env or {})
    )
    env.pop("PYTEST_ADDOPTS", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(path),
        "--nbval-lax",
        "--nbval-current-env",
        f"--nbval-cell-timeout={CELL_TIMEOUT_S}",
    ]
    # Nothing of this repository's own pytest settings, and no cache left beside the notebook.
    stop_s = SLACK * (may_take_s or limit_s(path))
    command += [
        "-q",
        "--tb=short",
        "-o",
        "addopts=",
        "-o",
        f"timeout={2 * CELL_TIMEOUT_S}",
        "-p",
        "no:cacheprovider",
        f"--rootdir={ROOT}",
    ]
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            text, _ = child.communicate(timeout=stop_s)
        except subprocess.TimeoutExpired:
            descendants.kill()
            text = f"{child.communicate()[0]}\nstopped after {stop_s} s, {SLACK} times what it may take"
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    seconds = time.perf_counter() - start
    left = descendants.wait_gone(patience_s)
    return Outcome(child.returncode == 0, text, seconds, left, list_claims.read([claims]) if claims.exists() else [])


def show(request: pytest.FixtureRequest, path: Path, outcome: Outcome, may_take_s: float | None = None) -> None:
    """Report the run time and the claims after all tests, even if the test passes."""
    lines = [f"{name(path)}: {outcome.summary()}"]
    lines += [
        f"  {claim['status']}: {claim['sentence']} ({claim['detail']})"
        for claim in outcome.claims
        if claim["status"] != "shown"
    ]
    may_take_s = may_take_s or limit_s(path)
    if outcome.seconds > may_take_s:
        lines.append(f"  longer than the {may_take_s:.0f} s that it may take on 2 idle cores")
    tell(request, "\n".join(lines))


def check(path: Path, outcome: Outcome) -> None:
    failed = re.findall(r"^FAILED .*$", outcome.text, re.M)
    # What failed first is usually why the rest did.
    first = outcome.text.find("Notebook cell execution failed")
    assert outcome.ok, "\n".join([*failed, outcome.text[max(first, 0) :][:6000]])
    assert not outcome.left, f"left running: {outcome.left}"
    assert not re.search(r"^[^\n]*\b0 passed|no tests ran", outcome.text, re.M), f"no cell was run: {outcome.text}"


def core_of(path: Path, folder: Path) -> Path:
    """A copy of a lesson with only the cells of its core."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [
        cell for cell in notebook.cells if cell.cell_type != "code" or "core" in cell.metadata.get("tags", [])
    ]
    copy = folder / path.parent.name / path.name
    copy.parent.mkdir()
    nbformat.write(notebook, copy)
    return copy


@pytest.mark.notebooks
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", params([path for path in LESSONS if path.name[:2] in SHORT]))
def test_core_of_a_lesson_runs(
    path: Path, tmp_path: Path, descendants: Descendants, request: pytest.FixtureRequest, pytestconfig: pytest.Config
) -> None:
    """A copy in another folder, without the deeper sections. Other tests run at the same time, so who is faster is told
    and judged later, in the slow tests, from all runs together."""
    outcome = run_notebook(core_of(path, tmp_path), tmp_path, descendants)
    show(request, path, outcome)
    check(path, outcome)
    assert outcome.claims, "a lesson without a claim checks nothing"
    add_claims(pytestconfig.cache, path, outcome.claims)


@pytest.mark.slow
@pytest.mark.notebooks
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", params([p for p in NOTEBOOKS if p.parent.name == "exercises"]))
def test_exercises_run_as_they_are_handed_out(
    path: Path, tmp_path: Path, descendants: Descendants, request: pytest.FixtureRequest
) -> None:
    outcome = run_notebook(path, tmp_path, descendants)
    show(request, path, outcome)
    check(path, outcome)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.notebooks
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", params(LESSONS))
def test_claims_hold_when_the_machine_is_quiet(
    path: Path, tmp_path: Path, descendants: Descendants, request: pytest.FixtureRequest, pytestconfig: pytest.Config
) -> None:
    """What a lesson is about must be seen, and nothing may come out the wrong way round: in the runs of the tests
    before, or in one of three more. A headline that this machine cannot run is left out."""
    claims = add_claims(pytestconfig.cache, path, [])
    for _ in range(3):  # a neighbour on the same host may take a core for a minute
        seen = any(claim["headline"] for claim in claims)  # a disturbed run doesn't come to it
        if seen and not (list_claims.unshown_headlines(claims) or list_claims.contradicted(claims)):
            break
        outcome = run_notebook(path, tmp_path, descendants)
        show(request, path, outcome)
        check(path, outcome)
        claims = add_claims(pytestconfig.cache, path, outcome.claims)
    assert any(claim["headline"] for claim in claims), "no claim of this lesson is its headline"
    if not any(missing(framework) for framework in EXTRAS):
        assert not [c for c in claims if any(f"needs {title}" in c["detail"] for title, *_ in EXTRAS.values())]
    if unseen := list_claims.unshown_headlines(claims):
        pytest.fail(f"not shown in any run: {unseen}", pytrace=False)
    if wrong := list_claims.contradicted(claims):
        pytest.fail(f"the wrong way round in each run: {wrong}", pytrace=False)


def test_a_failing_cell_and_a_process_left_behind_are_seen(tmp_path: Path, descendants: Descendants) -> None:
    """The runner itself: it must not pass what it should catch."""
    import nbformat

    def notebook(*sources: str) -> Path:
        (tmp_path / "notebooks").mkdir(exist_ok=True)
        path = tmp_path / "notebooks" / "99_made_up.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources]), path)
        return path

    claim = (
        "import json, os; open(os.environ['COURSE_CLAIMS_FILE'], 'a').write(json.dumps({'sentence': 'one', 'status':"
        " 'shown'}) + chr(10))"
    )
    good = run_notebook(notebook("x = 1", claim), tmp_path, descendants)
    check(Path("notebooks/99.ipynb"), good)
    assert good.summary().endswith("claims: 1 shown")
    bad = run_notebook(notebook("x = 1", "x / 0"), tmp_path, descendants)
    assert not bad.ok and "ZeroDivisionError" in bad.text
    lingering = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True)"
    )
    assert "time.sleep(60)" in str(run_notebook(notebook(lingering), tmp_path, descendants, patience_s=1).left)
