"""Results: samples and what can be said of them, runs saved and loaded, sweeps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from course_utils import launch as launch_module
from course_utils.launch import LaunchError, sweep
from course_utils.results import RankResult
from course_utils.run import Provenance, Run, Samples, Sweep, Verdict


def a_run(values: list[float] = [1.0], **settings: Any) -> Run:  # noqa: B006
    ranks = [RankResult(r, 0, None, [{"time": 1.0, "step_s": v, "bucket_mb": 1, "rank_note": [1, 2]} for v in values], f"rank{r}.log") for r in range(2)]
    made = {"ranks": ranks, "script": "/x/cell-12345678.py", "args": ["--lr", "0.1"], "command": "torchrun cell.py", "engine": "warm", "placement": "2 ranks.",
            "wall_s": 1.5, "path": "/x", "provenance": Provenance.here("a laptop")}  # fmt: skip
    return Run(**{**made, **settings})


# --- samples -----------------------------------------------------------------------------------------------------------


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
    ],
)
def test_verdicts(verdict: Verdict, status: str) -> None:
    assert verdict.status == status and any(c.isdigit() for c in verdict.detail)


def test_a_verdict_is_no_truth_value() -> None:
    with pytest.raises(TypeError, match="three values"):
        assert FAST.faster_than(SLOW)


# --- runs --------------------------------------------------------------------------------------------------------------


def test_values_are_found_by_what_they_were_reported_with() -> None:
    run = a_run([1.0, 2.0])
    assert run.values("step_s") == [1.0, 2.0, 1.0, 2.0] and run.value("step_s", rank=1) == 2.0
    assert run.samples("step_s", bucket_mb=1, rank=0).values == (1.0, 2.0)
    with pytest.raises(KeyError, match="no record has 'loss'; reported were: bucket_mb, rank_note, step_s"):
        run.values("loss")
    with pytest.raises(KeyError, match="with {'bucket_mb': 2}"):
        run.samples("step_s", bucket_mb=2)


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    run = a_run([0.1, math.inf])
    run.ranks[1] = RankResult(1, -9, "SIGKILL", [], "log", {"time": 1.0, "type": "X", "message": "m", "traceback": "t"}, "stack")
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == run
    assert json.loads((tmp_path / "run.json").read_text())["provenance"]["versions"]["torch"]


def test_how_ranks_ended_in_words() -> None:
    assert [RankResult(0, *how).ended for how in ((0,), (3,), (-9, "SIGKILL"), (None,))] == ["finished", "exit code 3", "killed by SIGKILL", "stopped"]
    assert RankResult(0, 1, error={"type": "ValueError"}).ended == "ValueError"
    assert not a_run(outcome="timeout").ok and a_run().ok


def test_a_run_shows_itself() -> None:
    run = a_run([0.123456])
    text = repr(run)
    assert "cell-12345678.py: 2 ranks, warm, 1.50 s, finished" in text and "step_s=0.1235" in text and "by hand: torchrun cell.py" in text
    run.ranks[0].records[0]["step_s"] = "<b>"
    assert "&lt;b&gt;" in run._repr_html_() and "<b>" not in run._repr_html_()


def test_provenance_has_a_kind_of_the_course() -> None:
    here = Provenance.here("a laptop")
    assert here.kind == "measured" and here.date.count("-") == 2 and set(here.versions) == {"python", "torch"}
    with pytest.raises(ValueError, match="measured, recorded, published, predicted, emulated"):
        Provenance("guessed")


# --- sweeps ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, Any]]]:
    """What a sweep launches, without launching it."""
    seen: list[tuple[list[str], dict[str, Any]]] = []

    def launch(script: str, args: list[str], quiet: bool, **settings: Any) -> Run:
        seen.append((args, settings))
        return a_run([float(len(seen))], placement=f"{settings.get('ranks', 'auto')} ranks.")

    monkeypatch.setattr(launch_module, "launch", launch)
    return seen


def test_a_sweep_interleaves_its_points(launches: list[tuple[list[str], dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    found = sweep("x.py", {"ranks": [1, 2], "batch_size": [32, 64]}, repeats=2, args=["--fast"], timeout=9)
    once = [(r, b) for r in (1, 2) for b in (32, 64)]
    assert launches == [(["--fast", "--batch-size", str(b)], {"timeout": 9, "ranks": r}) for r, b in once * 2]
    assert found.samples("step_s", ranks=2, batch_size=32).values == (3.0, 7.0)
    assert capsys.readouterr().out == "1 ranks.\n2 ranks.\n", "each placement is said once"


def test_a_sweep_of_a_list_of_points(launches: list[tuple[list[str], dict[str, Any]]]) -> None:
    found = sweep("x.py", [{"sizes": [1, 2], "overlap": True}, {"overlap": False, "name": None, "env": {"A": "1"}}], repeats=1)
    assert launches == [(["--sizes", "1", "2", "--overlap"], {}), ([], {"env": {"A": "1"}})]
    with pytest.raises(KeyError, match="0 points of the sweep match"):
        found.at(ranks=7)


def test_an_empty_sweep_is_refused() -> None:
    for over, repeats in (([], 3), ({"ranks": []}, 3), ({"ranks": [1]}, 0)):
        with pytest.raises(LaunchError, match="at least one point"):
            sweep("x.py", over, repeats=repeats)  # type: ignore[arg-type]


def test_a_sweep_shows_itself() -> None:
    text = repr(Sweep([{"ranks": 1}, {"ranks": 2}], [[a_run()], [a_run(), a_run()]]))
    assert "{'ranks': 2}  2        1.50" in text
