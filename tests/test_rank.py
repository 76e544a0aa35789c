"""What a script may call inside a rank, with and without the course's launcher."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

from course_utils import rank


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    return tmp_path


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "rank3.jsonl").read_text().splitlines()]


def test_report_writes_one_line_a_record(folder: Path) -> None:
    import numpy
    import torch

    before = time.time()
    rank.report(
        loss=torch.tensor(0.5),
        step_s=numpy.float32(2),
        n=numpy.int64(4),
        name="a\nb",
        flag=True,
        none=None,
        curve=[1, torch.tensor([2.0]), 3.5],
    )
    rank.report(progress=(1, 10))
    first, second = records(folder)
    assert before <= first.pop("time") <= time.time()  # type: ignore[operator]
    assert first == {
        "loss": 0.5,
        "step_s": 2.0,
        "n": 4,
        "name": "a\nb",
        "flag": True,
        "none": None,
        "curve": [1, 2.0, 3.5],
    }
    assert second["progress"] == [1.0, 10.0]
    assert (folder / "rank3.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("value", [object(), {"a": 1}, b"bytes", {1, 2}, [[object()]]])
def test_report_refuses_what_json_cannot_hold(folder: Path, value: object) -> None:
    with pytest.raises(TypeError, match=r"report\(thing=\.\.\.\) got a .*; give numbers"):
        rank.report(thing=value)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("inside", [True, False], ids=["in a launch", "outside"])
@pytest.mark.parametrize("name", ["rank", "time"])
def test_report_refuses_the_names_that_every_record_carries(
    folder: Path, name: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise either the value, or what the notebook takes for the rank and the clock, would be lost silently."""
    if not inside:
        monkeypatch.delenv("COURSE_RUN_DIR")
    with pytest.raises(
        ValueError,
        match=rf"report\({name}=\.\.\.\) is not possible: every record carries the .*{name}.* take another name",
    ):
        rank.report(loss=0.5, progress=(1, 2), **{name: 7})
    assert not list(folder.iterdir())
    rank.report(**{f"{name}_s": 1, name.upper(): 2, f"{name} ": 3})  # near, and free


@pytest.mark.parametrize(
    "progress",
    [5, (1,), (1, 2, 3), "ab", {"done": 1}, (None, 2), ("half", 1), 0, (), (float("nan"), 2), (1, float("inf"))],
    ids=str,
)
def test_report_says_what_progress_takes(folder: Path, progress: object) -> None:
    with pytest.raises(
        TypeError,
        match=r"report\(progress=\.\.\.\) moves the bar and takes a pair of finite numbers, \(done, total\); got ",
    ):
        rank.report(progress=progress)  # type: ignore[arg-type]
    assert not list(folder.iterdir())


def test_report_refuses_a_tensor_with_many_elements(folder: Path) -> None:
    import torch

    with pytest.raises(TypeError, match="tolist"):
        rank.report(weights=torch.ones(3))


def test_reports_of_many_processes_are_not_torn(folder: Path) -> None:
    """Workers of a rank report into the same file."""
    code = "from course_utils.rank import report\nfor i in range(200): report(text='x' * 3000, i=i)"
    children = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert len(records(folder)) == 600 and {len(str(r["text"])) for r in records(folder)} == {3000}


def test_report_prints_outside_a_launch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COURSE_RUN_DIR", raising=False)
    rank.report(loss=0.5)
    rank.report(progress=(1, 2))
    assert capsys.readouterr().out == 'report {"loss": 0.5}\n'


@pytest.mark.parametrize(
    ("env", "devices", "backend"),
    [
        ({"COURSE_DEVICE": "cpu"}, ["cpu"], "gloo"),
        ({"COURSE_DEVICE": "cuda", "LOCAL_RANK": "1"}, ["cuda:1"], "nccl"),
        ({"COURSE_DEVICE": "cuda", "LOCAL_RANK": "1", "COURSE_GPUS_PER_RANK": "2"}, ["cuda:2", "cuda:3"], "nccl"),
        ({"COURSE_DEVICE": "shared", "LOCAL_RANK": "1"}, ["cuda:0"], "gloo"),
        ({"COURSE_DEVICE": "cpu", "COURSE_GPUS_PER_RANK": "2"}, ["cpu"], "gloo"),
    ],
)
def test_device_and_backend_follow_the_launch(
    env: dict[str, str], devices: list[str], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COURSE_DEVICE", "LOCAL_RANK", "COURSE_GPUS_PER_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert (
        [str(d) for d in rank.devices()] == devices and str(rank.device()) == devices[0] and rank.backend() == backend
    )


@pytest.mark.parametrize(
    ("there", "local_rank", "expected"), [(0, 0, "cpu"), (1, 0, "cuda:0"), (1, 1, "cpu"), (2, 1, "cuda:1")]
)
def test_device_under_plain_torchrun(
    there: int, local_rank: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    for name in ("COURSE_DEVICE", "COURSE_GPUS_PER_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert str(rank.device()) == expected


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ([], "bfloat16"),
        ([(8, 0)], "bfloat16"),
        ([(7, 5)], "float16"),
        ([(6, 0)], "float16"),
        ([(9, 0), (7, 0)], "float16"),
        ([(12, 0), (8, 6)], "bfloat16"),
    ],
    ids=str,
)
def test_all_ranks_train_in_the_type_of_the_oldest_gpu(
    capabilities: list[tuple[int, int]], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: capabilities[i])
    for local_rank in range(max(1, len(capabilities))):
        monkeypatch.setenv("COURSE_DEVICE", "cuda" if capabilities else "cpu")
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        assert rank.amp_dtype() == getattr(torch, expected)


def test_timer_measures_the_block() -> None:
    with rank.timer() as t:
        time.sleep(0.05)
    assert 0.05 <= t.seconds < 5
    with pytest.raises(KeyError), rank.timer() as t:
        raise KeyError
    assert t.seconds >= 0


def test_the_file_stands_alone(tmp_path: Path) -> None:
    """Copied next to a script, without the rest of the course, and without importing torch for report and timer."""
    shutil.copy(ROOT / "course_utils" / "rank.py", tmp_path / "rank.py")
    code = (
        "import rank, sys\nwith rank.timer() as t: pass\nrank.report(seconds=t.seconds)\n"
        "assert 'torch' not in sys.modules"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("COURSE_")}
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=env)
    assert answer.returncode == 0 and answer.stdout.startswith('report {"seconds"'), answer.stderr


def test_traces_lie_beside_the_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank.trace_path() == str(folder / "rank3.trace.json.gz")
    assert rank.trace_path("small") == str(folder / "rank3.small.json.gz")
    monkeypatch.delenv("COURSE_RUN_DIR")
    monkeypatch.delenv("RANK")
    assert rank.trace_path() == "rank0.trace.json.gz"


@pytest.mark.parametrize(
    ("env", "waits"), [({}, False), ({"RANK": "0"}, True), ({"RANK": "0", "COURSE_RUN_DIR": "here"}, False)], ids=str
)
def test_a_rank_that_nobody_supervises_waits_for_gloo(env: dict[str, str], waits: bool) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "COURSE_RUN_DIR")}
    code = """if True:
        import sys, time, types
        from course_utils import rank
        sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
        time.sleep = lambda seconds: print(seconds > 0)
    """
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean | env, check=True)
    assert answer.stdout == "True\n" * waits, answer.stderr
