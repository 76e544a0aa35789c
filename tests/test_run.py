"""Results: samples and what you can say about them, saved and loaded runs, and sweeps."""

from __future__ import annotations

import json
import math
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from course_utils.launching import sweeps as sweeps_module
from course_utils.launching.launcher import LaunchError, _save
from course_utils.launching.sweeps import sweep
from course_utils.results import run as run_module
from course_utils.results.provenance import Provenance
from course_utils.results.rank_result import RankResult, RanksDiffer
from course_utils.results.run import Run
from course_utils.results.samples import Samples, Verdict
from course_utils.results.sweep import Sweep


def a_run(values: list[float] = [1.0], **settings: Any) -> Run:  # noqa: B006
    ranks = [
        RankResult(
            r,
            0,
            None,
            [{"time": 1.0, "step_s": v, "bucket_mb": 1, "rank_note": [1, 2]} for v in values],
            f"rank{r}.log",
        )
        for r in range(2)
    ]
    made = {
        "ranks": ranks,
        "script": "/x/cell-12345678.py",
        "args": ["--lr", "0.1"],
        "command": "torchrun cell.py",
        "engine": "warm",
        "placement": "2 ranks.",
        "wall_s": 1.5,
        "path": "/x",
        "provenance": Provenance.here("a laptop"),
    }
    return Run(**{**made, **settings})


# --- samples ----------------------------------------------------------------------------------------------------------


def test_quartiles() -> None:
    s = Samples([4, 1, 3, 2], "step_s")
    assert (s.q1, s.median, s.q3, len(s)) == (1.75, 2.5, 3.25, 4)
    one = Samples([7])
    assert (one.q1, one.median, one.q3) == (7, 7, 7)
    assert "step_s: 2.5 (1.75 to 3.25) s, 4 values, measured" in repr(s)
    with pytest.raises(ValueError, match="no samples of loss"):
        Samples([], "loss")


def test_samples_agree_with_numpy() -> None:
    import numpy

    values = numpy.random.default_rng(0).normal(size=37)
    s = Samples(values)
    assert numpy.allclose([s.q1, s.median, s.q3], numpy.percentile(values, [25, 50, 75]))


def test_map_keeps_the_provenance() -> None:
    where = Provenance("recorded", "8 x A100")
    rate = Samples([0.5, 0.25], "step_s", where).map(lambda s: 64 / s, "images_per_s")
    assert rate.values == (128, 256) and rate.name == "images_per_s" and rate.provenance is where


FAST, SLOW, WIDE = Samples([1.0, 1.05, 1.1]), Samples([2.0, 2.1, 2.2]), Samples([0.9, 1.5, 3.0])


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (FAST.faster_than(SLOW), "shown"),
        (SLOW.faster_than(FAST), "contradicted"),
        (WIDE.faster_than(SLOW), "not shown"),
        (FAST.faster_than(WIDE), "shown"),  # 1.075 lies below 1.2
        (FAST.faster_than(SLOW, 1.5), "shown"),
        (FAST.faster_than(SLOW, 2.0), "not shown"),
        (FAST.faster_than(SLOW, 3.0), "not shown"),  # only the opposite contradicts: less gain than claimed does not
        (SLOW.more_than(FAST), "shown"),
        (SLOW.more_than(FAST, 3), "not shown"),
        (SLOW.faster_than(FAST, 3), "contradicted"),
        (FAST.more_than(SLOW), "contradicted"),
        (FAST.not_slower_than(FAST), "shown"),
        (SLOW.not_slower_than(FAST), "contradicted"),
        (Samples([1.08, 1.09, 1.1]).not_slower_than(FAST), "not shown"),  # apart, but by less than a tenth
        (FAST.near(1.05, 0.02), "shown"),
        (FAST.near(1.0, 0.02), "not shown"),
        (FAST.near(2.0, 0.02), "contradicted"),
        (Samples([0.0, 0.0, 0.0], "left_bytes").near(0, 0.1), "shown"),
        (Samples([-1.0, 0.5, 2.0]).near(0, 0.1), "not shown"),  # no fraction of nothing is more than nothing
        (Samples([1.0, 1.5, 2.0]).near(0, 0.1), "contradicted"),
        (Samples([0.0]).near(-2.0, 0.5), "not shown"),
    ],
)
def test_verdicts(verdict: Verdict, status: str) -> None:
    assert verdict.status == status and any(c.isdigit() for c in verdict.detail)


def test_a_verdict_is_no_truth_value() -> None:
    with pytest.raises(TypeError, match="three values"):
        assert FAST.faster_than(SLOW)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_values_are_found_by_what_they_were_reported_with() -> None:
    run = a_run([1.0, 2.0])
    assert run.values("step_s") == [1.0, 2.0, 1.0, 2.0] and run.value("step_s", rank=1) == 2.0
    assert run.samples("step_s", bucket_mb=1, rank=0).values == (1.0, 2.0)
    with pytest.raises(KeyError, match="no record has 'loss'; reported were: bucket_mb, rank_note, step_s"):
        run.values("loss")
    with pytest.raises(KeyError, match="with {'bucket_mb': 2}"):
        run.samples("step_s", bucket_mb=2)


def reported(*ranks: list[dict[str, Any]]) -> Run:
    return a_run(ranks=[RankResult(r, 0, None, records) for r, records in enumerate(ranks)])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0.5, 0.5),
        (0.1 + 0.2, 0.3),  # the same sum in another order
        (1e8, 1e8 + 8),  # of float32
        (math.nan, math.nan),
        (math.inf, math.inf),
        (2, 2.0),
        ("cuda", "cuda"),
        (None, None),
        ([0.1 + 0.2, [1, math.nan]], [0.3, [1, math.nan]]),
    ],
)
def test_a_value_that_all_ranks_share(first: Any, second: Any) -> None:
    run = reported([{"x": 7}, {"x": first}], [{"y": 1}, {"x": second}, {"other": 1}], [{"other": 1}])
    assert repr(run.value("x")) == repr(first)


@pytest.mark.parametrize(
    ("first", "second"),
    [(0.5, 0.51), (0.0, 1e-9), (1, 2), (math.nan, 0.5), (math.inf, -math.inf), ("a", "b"), (1.0, None), (1.0, "1.0")]
    + [([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0, 2.1]), ([1.0], 1.0), (10**400, 1.0), ("x" * 200, "y" * 200)],
)
def test_a_value_in_which_ranks_differ(first: Any, second: Any) -> None:
    """The last value of each rank counts. The message names what works instead."""
    run = reported([{"x": 3.0}, {"x": 3.0}], [{"x": 1, "epoch": 1}, {"x": first, "epoch": 2}], [{"x": 3.0}])
    assert first == 3.0 or pytest.raises(RanksDiffer, run.value, "x")
    run = reported([{"x": first, "epoch": 2}], [{"x": first, "epoch": 1}, {"x": second, "epoch": 2}])
    with pytest.raises(RanksDiffer, match="the ranks differ in 'x': .* on rank 0, .* on rank 1") as error:
        run.value("x", epoch=2)
    said = str(error.value)
    assert ".values('x', epoch=2) has them all, .value('x', epoch=2, rank=0) is one rank's" in said and len(said) < 300
    assert repr(run.value("x", epoch=2, rank=1)) == repr(second) and len(run.values("x", epoch=2)) == 2
    assert error.value._render_traceback_() == [f"RanksDiffer: {said}"], "Jupyter shows the message alone"


def test_any_name_that_can_be_reported_can_be_asked_for() -> None:
    run = a_run()
    run.ranks = [
        RankResult(
            0, 0, None, [{"time": 1.0, "key": 1, "self": 2, "where": 3}, {"time": 2.0, "key": 4, "self": 5, "where": 6}]
        )
    ]
    assert (
        run.values("self", key=4) == [5]
        and run.value("key", self=2) == 1
        and run.samples("key", where=3).values == (1.0,)
    )
    assert run.ranks[0].values("where", key=1, self=2) == [3]
    swept = Sweep([{"key": 1, "self": 2}], [[run]])
    assert swept.at(self=2) == [run] and swept.samples("where", key=1).values == (4.5,)


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    run = a_run([0.1, math.inf])
    run.ranks[1] = RankResult(
        1, -9, "SIGKILL", [], "log", {"time": 1.0, "type": "X", "message": "m", "traceback": "t"}, "stack"
    )
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == run
    assert json.loads((tmp_path / "run.json").read_text())["provenance"]["versions"]["torch"]


def test_a_run_of_an_older_course_loads_and_a_newer_one_says_what_to_do(tmp_path: Path) -> None:
    path, run = tmp_path / "run.json", a_run()
    run.save(path)
    raw = json.loads(path.read_text())
    assert raw["schema"] == run_module.SCHEMA
    path.write_text(json.dumps({k: v for k, v in raw.items() if k != "schema"}))
    assert Run.load(path) == run
    path.write_text(json.dumps(raw | {"schema": run_module.SCHEMA + 1, "colour": "blue"}))
    with pytest.raises(
        ValueError, match=r"run.json was written by a newer version of this course .*: update the course"
    ) as raised:
        Run.load(path)
    assert len(str(raised.value).splitlines()) == 1


def test_a_run_is_saved_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a save is stopped halfway (a full disk, a kill), the old file is still there, and nothing next to it."""
    path, run = tmp_path / "run.json", a_run()
    run.save(path)
    real = Path.write_text

    def half(self: Path, text: str) -> int:
        real(self, text[: len(text) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space"):
        a_run([2.0]).save(path)
    assert Run.load(path) == run and [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_readers_beside_a_writer_find_whole_files(tmp_path: Path) -> None:
    """Like two notebooks that look at the same job."""
    path = tmp_path / "run.json"
    runs = [a_run([float(i)] * 300) for i in range(2)]
    runs[0].save(path)
    writers = [threading.Thread(target=lambda run=run: [run.save(path) for _ in range(20)]) for run in runs]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert len(Run.load(path).records) == 600
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_full_disk_costs_no_run(tmp_path: Path) -> None:
    run = a_run(path=str(tmp_path / "gone"))
    said = _save(run)
    assert said.startswith("The run couldn't be saved in ") and "set COURSE_HOME" in said
    assert _save(a_run(path=str(tmp_path))) == "" and (tmp_path / "run.json").exists()


def test_how_ranks_ended_in_words() -> None:
    assert [RankResult(0, *how).ended for how in ((0,), (3,), (-9, "SIGKILL"), (None,))] == [
        "finished",
        "exit code 3",
        "killed by SIGKILL",
        "stopped",
    ]
    assert RankResult(0, 1, error={"type": "ValueError"}).ended == "ValueError"
    assert not a_run(outcome="timeout").ok and a_run().ok


def test_a_run_shows_itself() -> None:
    run = a_run([0.123456])
    text = repr(run)
    assert (
        "cell-12345678.py: 2 ranks, warm, 1.50 s, finished" in text
        and "step_s=0.1235" in text
        and "torchrun" not in text
    )
    assert "<summary" in run._repr_html_() and "<code>torchrun cell.py</code>" in run._repr_html_(), "behind a click"
    silent = reported([], [])
    assert repr(silent).splitlines() == ["cell-12345678.py: 2 ranks, warm, 1.50 s, finished"]
    assert "<table" not in silent._repr_html_() and "torchrun cell.py" in silent._repr_html_()
    assert repr(a_run(ranks=[RankResult(0, 0)])).startswith("cell-12345678.py: 1 rank, ")
    run.ranks[0].records[0]["step_s"] = "<b>"
    assert "&lt;b&gt;" in run._repr_html_() and "<b>" not in run._repr_html_()


def test_provenance_has_a_kind_of_the_course() -> None:
    here = Provenance.here("a laptop")
    assert here.kind == "measured" and here.date.count("-") == 2 and set(here.versions) == {"python", "torch"}
    with pytest.raises(ValueError, match="measured, recorded, published, predicted, emulated"):
        Provenance("guessed")


# --- sweeps -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, Any]]]:
    """What a sweep would launch, without launching it."""
    seen: list[tuple[list[str], dict[str, Any]]] = []

    def launch(script: str, args: list[str], quiet: bool, **settings: Any) -> Run:
        seen.append((args, settings))
        return a_run([float(len(seen))], placement=f"{settings.get('ranks', 'auto')} ranks.")

    monkeypatch.setattr(sweeps_module, "launch", launch)
    return seen


def test_a_sweep_interleaves_its_points(
    launches: list[tuple[list[str], dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = sweep("x.py", {"ranks": [1, 2], "batch_size": [32, 64]}, repeats=2, args=["--fast"], timeout=9)
    once = [(r, b) for r in (1, 2) for b in (32, 64)]
    assert launches == [(["--fast", "--batch-size", str(b)], {"timeout": 9, "ranks": r}) for r, b in once * 2]
    assert found.samples("step_s", ranks=2, batch_size=32).values == (3.0, 7.0)
    said = capsys.readouterr().out.splitlines()
    assert said[:-1] == ["1 ranks.", "2 ranks."], "each placement is said once"
    assert re.fullmatch(r"✓ 8 launches, \d\.\d s", said[-1])


def test_a_sweep_of_a_list_of_points(launches: list[tuple[list[str], dict[str, Any]]]) -> None:
    found = sweep(
        "x.py", [{"sizes": [1, 2], "overlap": True}, {"overlap": False, "name": None, "env": {"A": "1"}}], repeats=1
    )
    assert launches == [(["--sizes", "1", "2", "--overlap"], {}), ([], {"env": {"A": "1"}})]
    with pytest.raises(KeyError, match="0 points of the sweep match"):
        found.at(ranks=7)


def test_a_quiet_sweep_shows_nothing(
    launches: list[tuple[list[str], dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = sweep("x.py", {"ranks": [1, 2]}, repeats=1, quiet=True)
    assert [len(runs) for runs in found.runs] == [1, 1] and launches == [([], {"ranks": 1}), ([], {"ranks": 2})]
    said = capsys.readouterr()
    assert said.out == "" == said.err
    sweep("x.py", {"ranks": [1]}, repeats=1, quiet=False)
    assert re.fullmatch(r"1 ranks.\n✓ 1 launch, \d\.\d s\n", capsys.readouterr().out)


class Full(Exception):
    """An error that doesn't come from the course."""


@pytest.mark.parametrize("quiet", [False, True], ids=["", "quiet"])
@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt("stopped"),
        LaunchError("too many ranks"),
        OSError(28, "No space left on device"),
        Full(),
        SystemExit(1),
    ],
    ids=repr,
)
def test_a_sweep_that_fails_late_keeps_what_ran(
    error: BaseException,
    quiet: bool,
    launches: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    well = sweeps_module.launch

    def launch(script: str, **settings: Any) -> Run:
        if len(launches) == 4:
            raise error
        return well(script, **settings)

    monkeypatch.setattr(sweeps_module, "launch", launch)
    with pytest.raises(type(error)) as caught:
        sweep("x.py", {"ranks": [1, 2, 4]}, repeats=3, quiet=quiet)
    kept = caught.value.sweep  # type: ignore[attr-defined]
    assert caught.value is error and isinstance(kept, Sweep)
    assert [len(runs) for runs in kept.runs] == [2, 1, 1]
    assert kept.samples("step_s", ranks=1).values == (1.0, 4.0)
    said = capsys.readouterr().out
    assert said == "" if quiet else "stopped after 4 of 9 launches" in said and "sys.last_value.sweep" in said


def test_a_sweep_that_fails_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LaunchError, match="there is no script") as caught:
        sweep("missing.py", {"ranks": [1, 2]})
    kept = caught.value.sweep  # type: ignore[attr-defined]
    assert kept.runs == [[], []] and capsys.readouterr().out == "", "nothing ran, so nothing is kept"
    assert [line.split() for line in repr(kept).splitlines()[1:]] == [["1", "0"], ["2", "0"]]
    with pytest.raises(KeyError, match="stopped before a run of {'ranks': 2} had ended"):
        kept.samples("step_s", ranks=2)


@pytest.mark.parametrize("values", ["0.1", b"1", 2, None])
def test_a_sweep_over_one_value_needs_a_list(values: object, launches: list[Any]) -> None:
    """A word is no list of its letters."""
    with pytest.raises(LaunchError, match="a sweep over lr needs a list of values, even for one; got"):
        sweep("x.py", {"ranks": [1, 2], "lr": values})  # type: ignore[dict-item]
    assert not launches


def test_an_empty_sweep_is_refused() -> None:
    for over, repeats in (([], 3), ({"ranks": []}, 3), ({"ranks": [1]}, 0)):
        with pytest.raises(LaunchError, match="at least one point"):
            sweep("x.py", over, repeats=repeats)  # type: ignore[arg-type]


def test_a_sweep_shows_itself() -> None:
    text = repr(Sweep([{"ranks": 1}, {"ranks": 2}], [[a_run()], [a_run(), a_run()]]))
    assert [line.split() for line in text.splitlines()] == [
        ["ranks", "repeats", "wall", "time"],
        ["1", "1", "1.50", "s"],
        ["2", "2", "1.50", "s"],
    ]
