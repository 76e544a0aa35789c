"""What is recorded comes back as it was measured, says where it comes from, and names nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT

from course_utils import recorded
from course_utils.results import RankResult
from course_utils.run import Provenance, Run, Sweep

MACHINE = "AMD EPYC, 16 cores, 128 GiB, 8 x H100"


def a_run(folder: Path, step_s: list[float], ranks: int = 2, **changes: object) -> Run:
    script = folder / "secret" / "step.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text("print('a step')\n")
    results = [RankResult(r, 0, records=[{"time": 1.5, "step_s": s, "phase": "a", "unit": "images/s"} for s in step_s], log=str(script)) for r in range(ranks)]
    run = Run(results, str(script), ["--batch-size", "8"], f"python {script}", "local", "2 ranks on CPU", 1.25, str(folder))
    run.provenance = Provenance("measured", MACHINE, {"torch": "2.15.0"}, "2026-11-21")
    for key, value in changes.items():
        setattr(run, key, value)
    return run


def test_a_sweep_comes_back_with_its_machine(tmp_path: Path) -> None:
    points = [{"ranks": 1}, {"ranks": 2}]
    sweep = Sweep(points, [[a_run(tmp_path, [0.1 * n, 0.12 * n], n) for _ in range(3)] for n in (1, 2)])
    path = recorded.save("04_scaling", sweep, tmp_path / "out")
    assert path.name == "04_scaling.amd-epyc-16-cores-128-gib-8-x-h100.json"
    (back,) = recorded.sweeps("04_scaling", tmp_path / "out")
    assert back.points == points and [len(runs) for runs in back.runs] == [3, 3]
    samples = back.samples("step_s", ranks=2)
    assert samples.values == pytest.approx(sweep.samples("step_s", ranks=2).values)
    assert (samples.provenance.kind, samples.provenance.machine, samples.provenance.date) == ("recorded", MACHINE, "2026-11-21")
    assert recorded.runs("04_scaling", tmp_path / "out") == [] and recorded.sweeps("04_scal", tmp_path / "out") == []


def test_a_run_keeps_its_records_and_no_place(tmp_path: Path) -> None:
    path = recorded.save("02_rates", a_run(tmp_path, [0.123456789]), tmp_path / "out")
    assert "secret" not in path.read_text() and json.loads(path.read_text())["source"] == ["print('a step')"]
    (back,) = recorded.runs("02_rates", tmp_path / "out")
    assert back.ok and back.world_size == 2 and back.values("step_s", phase="a", unit="images/s") == [0.123457, 0.123457]


@pytest.mark.parametrize("change", [{"outcome": "failed"}, {"provenance": Provenance("recorded", MACHINE)}])
def test_what_failed_or_was_recorded_before_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="failed|not measured"):
        recorded.save("x", a_run(tmp_path, [1.0], **change), tmp_path)
    assert not list(tmp_path.glob("*.json"))


def test_nothing_recorded_is_an_empty_list() -> None:
    assert recorded.sweeps("99_never") == [] and recorded.runs("99_never") == []


def test_a_lesson_is_recorded_from_its_tagged_cells(tmp_path: Path) -> None:
    """The recorder as a process of its own: it runs every cell, and saves the variable that a tag names."""
    program = "%%ranks 2 -o steps --device cpu\nfrom course_utils.rank import report\n\nif __name__ == '__main__':\n    report(step_s=0.5)\n"
    sources = ["%load_ext course_utils", program, "after = steps.world_size"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.cells[1].metadata["tags"] = ["core", "record=steps"]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(notebook, tmp_path / "notebooks" / "99_made_up.ipynb")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / '.ci')!r}); import record; from pathlib import Path\n"
        f"(path,) = record.lessons([], Path({str(tmp_path / 'notebooks')!r}))\nrecord.record(path, Path({str(tmp_path / 'out')!r}))"
    )
    env = os.environ | {"COURSE_HOME": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (run,) = recorded.runs("99_steps", tmp_path / "out")
    assert run.values("step_s") == [0.5, 0.5] and run.provenance.kind == "recorded"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("see /home/ada/runs/x.json", ["/home/ada/runs/x.json"]),
        ("~/notes/a", ["~/notes/a"]),
        ("images/s", []),
        ("https://example.org/a/b", []),
        ("1 / 2", []),
        ("a /tmp/x and /tmp/x", ["/tmp/x", "/tmp/x"]),
    ],
)
def test_a_path_is_known_from_a_unit(text: str, named: list[str]) -> None:
    assert recorded.paths(text) == named


@pytest.mark.parametrize("where", ["an argument", "a report"])
def test_a_result_that_names_a_path_is_refused_and_nothing_is_written(tmp_path: Path, where: str) -> None:
    run = a_run(tmp_path, [1.0])
    if where == "an argument":
        run.args += ["--data", "/home/ada/images"]
    else:
        run.ranks[1].records[0]["kept"] = ["/scratch/ada/a.pt"]
    with pytest.raises(ValueError, match=r"names /(home|scratch)/ada/.*report no path"):
        recorded.save("x", run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def faults(path: Path) -> list[str]:
    """What is wrong with a recording that somebody wants to add."""
    raw = json.loads(path.read_text())
    found = [f"names {named}" for named in recorded.paths(raw)]
    found += [f"has no {key}" for key in ("machine", "date", "source") if not raw.get(key)]
    found += ["does not say which torch"] * ("torch" not in raw["versions"])
    return found + ["cannot be read back"] * (not recorded.sweeps(raw["name"], path.parent) and not recorded.runs(raw["name"], path.parent))


def test_recordings_of_the_course_are_whole(tmp_path: Path) -> None:
    good = recorded.save("02_rates", a_run(tmp_path, [1.0]), tmp_path / "out")
    assert faults(good) == [], "a recording that was just made"
    good.write_text(json.dumps(json.loads(good.read_text()) | {"date": "", "machine": "of /home/ada"}))
    assert faults(good) == ["names /home/ada", "has no date"]
    for path in (ROOT / "data" / "recorded").glob("*.json"):
        assert faults(path) == [], path.name
