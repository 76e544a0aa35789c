"""A recording comes back as it was measured, says where it comes from, and names nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT, load_tool

from course_utils import recorded
from course_utils.results.provenance import Provenance
from course_utils.results.rank_result import RankResult
from course_utils.results.run import Run
from course_utils.results.sweep import Sweep

record = load_tool("record")
MACHINE = "AMD EPYC, 16 cores, 128 GiB, 8 x H100"


def a_run(folder: Path, step_s: list[float], ranks: int = 2, **changes: object) -> Run:
    script = folder / "secret" / "step.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text("print('a step')\n")
    results = [
        RankResult(
            r,
            0,
            records=[{"time": 1.5, "step_s": s, "phase": "a", "unit": "images/s"} for s in step_s],
            log=str(script),
        )
        for r in range(ranks)
    ]
    run = Run(
        results, str(script), ["--batch-size", "8"], f"python {script}", "local", "2 ranks on CPU", 1.25, str(folder)
    )
    run.provenance = Provenance("measured", MACHINE, {"torch": "2.15.0"}, "2026-11-21")
    for key, value in changes.items():
        setattr(run, key, value)
    return run


def test_a_sweep_comes_back_with_its_machine(tmp_path: Path) -> None:
    points = [{"ranks": 1}, {"ranks": 2}]
    sweep = Sweep(points, [[a_run(tmp_path, [0.1 * n, 0.12 * n], n) for _ in range(3)] for n in (1, 2)])
    path = record.save("04_scaling", sweep, tmp_path / "out")
    assert path.name == "04_scaling.amd-epyc-16-cores-128-gib-8-x-h100.json"
    (back,) = recorded.sweeps("04_scaling", tmp_path / "out")
    assert back.points == points and [len(runs) for runs in back.runs] == [3, 3]
    samples = back.samples("step_s", ranks=2)
    assert samples.values == pytest.approx(sweep.samples("step_s", ranks=2).values)
    assert (samples.provenance.kind, samples.provenance.machine, samples.provenance.date) == (
        "recorded",
        MACHINE,
        "2026-11-21",
    )
    assert recorded.runs("04_scaling", tmp_path / "out") == [] and recorded.sweeps("04_scal", tmp_path / "out") == []


def test_a_run_keeps_its_records_and_no_place(tmp_path: Path) -> None:
    run = a_run(tmp_path, [0.123456789])
    run.ranks[0].records.append({"label": "forward", "start_s": 1.0, "end_s": 2.0})  # for a timeline: left out
    path = record.save("02_rates", run, tmp_path / "out")
    assert (
        '{ "step_s": 0.123457, "phase": "a", "unit": "images/s" }' in path.read_text()
        and "start_s" not in path.read_text()
    )
    assert "secret" not in path.read_text() and json.loads(path.read_text())["source"] == ["print('a step')"]
    (back,) = recorded.runs("02_rates", tmp_path / "out")
    assert back.ok and back.world_size == 2
    assert back.values("step_s", phase="a", unit="images/s") == [0.123457, 0.123457]


@pytest.mark.parametrize("change", [{"outcome": "failed"}, {"provenance": Provenance("recorded", MACHINE)}])
def test_what_failed_or_was_recorded_before_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="failed|not measured"):
        record.save("x", a_run(tmp_path, [1.0], **change), tmp_path)
    assert not list(tmp_path.glob("*.json"))


def test_what_was_emulated_says_so_in_the_name_of_its_machine(tmp_path: Path) -> None:
    run = a_run(tmp_path, [0.1], provenance=Provenance("emulated", "16xH100", {"torch": "2.15.0"}, "2026-11-21"))
    path = record.save("12_sixteen", Sweep([{"by": "DDP"}], [[run]]), tmp_path / "out")
    assert path.name == "12_sixteen.emulated-16xh100.json" and not record.faults(path)
    (back,) = recorded.sweeps("12_sixteen", tmp_path / "out")
    assert back.runs[0][0].provenance.machine == "emulated 16xH100"


def test_nothing_recorded_is_an_empty_list() -> None:
    assert recorded.sweeps("99_never") == [] and recorded.runs("99_never") == []


def test_a_lesson_is_recorded_from_its_tagged_cells(tmp_path: Path) -> None:
    """The recorder in its own process: it runs every cell, and saves the variable that a tag names."""
    program = (
        "%%ranks 2 -o steps --device cpu\nfrom course_utils.rank import report\n\nif __name__ == '__main__':\n"
        "    report(step_s=0.5)\n"
    )
    sources = ["%load_ext course_utils", program, "after = steps.world_size"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.cells[1].metadata["tags"] = ["core", "record=steps"]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(notebook, tmp_path / "notebooks" / "99_made_up.ipynb")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import record; from pathlib import Path\n"
        f"(path,) = record.lessons([], Path({str(tmp_path / 'notebooks')!r}))\n"
        f"record.record(path, Path({str(tmp_path / 'out')!r}))"
    )
    env = os.environ | {"COURSE_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env, cwd=tmp_path
    )
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
    assert record.paths(text) == named


@pytest.mark.parametrize("where", ["an argument", "a report"])
def test_a_result_that_names_a_path_is_refused_and_nothing_is_written(tmp_path: Path, where: str) -> None:
    run = a_run(tmp_path, [1.0])
    if where == "an argument":
        run.args += ["--data", "/home/ada/images"]
    else:
        run.ranks[1].records[0]["kept"] = ["/scratch/ada/a.pt"]
    with pytest.raises(ValueError, match=r"names /(home|scratch)/ada/.*report no path"):
        record.save("x", run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def spoil(raw: dict, *place: object, value: object = None) -> None:
    """Set what lies at `place` in a recording, or take it away."""
    for key in place[:-1]:
        raw = raw[key]
    if value is None:
        del raw[place[-1]]
    else:
        raw[place[-1]] = value


REPEAT = ("points", 0, "repeats", 0)
SPOILT = [
    ((), ("date",), None, "has no date"),
    ((), ("date",), "yesterday", "has the date yesterday"),
    ((), ("machine",), "of /home/ada", "names /home/ada"),
    ((), ("machine",), "another", "should be called 02_rates.another.json"),
    ((), ("source",), [], "has no source"),
    ((), ("versions",), {"python": "3.12"}, "does not say which torch"),
    ((), ("host",), "ada-laptop", "has host, which nobody reads"),
    ((), ("kind",), "story", "is neither a run nor a sweep"),
    ((), ("points", 0, "args"), [8], "point 0 has args that aren't a list of words"),
    ((), ("points", 0, "note"), "x", "point 0 needs a point, args and repeats, and nothing else"),
    ((), ("points", 0, "repeats"), [], "point 0 has repeats that aren't"),
    (REPEAT, ("wall_s",), "1 s", "point 0 took 1 s s"),
    (REPEAT, ("wall_s",), True, "point 0 took True s"),
    (REPEAT, ("wall_s",), -1.0, "point 0 took -1.0 s"),
    (REPEAT, ("ranks",), [], "point 0 has ranks that aren't lists of records"),
    (REPEAT, ("ranks", 0, 0, "step_s"), {"deep": 1}, "point 0 has ranks that aren't lists of records"),
    (REPEAT, ("ranks", 0, 0, "text"), "x" * record.MOST_BYTES, "takes more than 200,000 bytes"),
]


@pytest.mark.parametrize(("inside", "place", "value", "fault"), SPOILT, ids=lambda value: str(value)[:40])
def test_a_recording_that_is_not_whole_is_known(
    tmp_path: Path, inside: tuple, place: tuple, value: object, fault: str
) -> None:
    path = record.save("02_rates", a_run(tmp_path, [1.0]), tmp_path / "out")
    assert record.faults(path) == [], "as it was made"
    raw = json.loads(path.read_text())
    spoil(raw, *inside, *place, value=value)
    path.write_text(json.dumps(raw))
    assert any(found.startswith(fault) for found in record.faults(path)), record.faults(path)


def test_what_is_no_recording_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    good = record.save("02_rates", a_run(tmp_path, [1.0]), tmp_path / "out")
    for text, fault in (("{half", "is no JSON"), ("[]", "is no object"), ("{}", "has no name")):
        path.write_text(text)
        assert record.faults(path)[0].startswith(fault)
    command = [sys.executable, record.__file__, "--check", str(good)]
    assert subprocess.run(command).returncode == 0
    ended = subprocess.run([*command, str(path)], capture_output=True, text=True)
    assert ended.returncode == 1 and "x.json has no name" in ended.stderr


def test_a_recording_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"takes [\d,]+ bytes, and a recording at most 200,000"):
        record.save("02_rates", a_run(tmp_path, [0.123456] * 3000), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_recordings_of_the_course_are_whole() -> None:
    for path in (ROOT / "data" / "recorded").glob("*.json"):
        assert record.faults(path) == [], path.name
        raw = json.loads(path.read_text())
        assert recorded.sweeps(raw["name"], path.parent) or recorded.runs(raw["name"], path.parent), path.name


def test_every_lesson_records_something() -> None:
    """So `make record` gives a whole set for a machine, by one command."""
    assert [path.name[:2] for path in record.lessons([])] == [f"{i:02d}" for i in range(13)]
