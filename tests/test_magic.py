# ruff: noqa: F811 - fixtures are imported by their names
"""The line of `%%ranks` and the arguments of `launch`: what they mean, and one clear sentence when they are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from kernels import Kernel, close_shared_kernel, kernel, limit  # noqa: F401

from course_utils import magic
from course_utils.engines import local
from course_utils.failure import LaunchError, RankError
from course_utils.launch import ENGINES, launch
from course_utils.magic import NothingFailed, ranks
from course_utils.results import RankResult
from course_utils.run import Run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_NOTEBOOK", "lesson.ipynb")
    return tmp_path


def a_run(outcome: str = "finished") -> Run:
    return Run([RankResult(0, 0)], "cell.py", [], "torchrun", "warm", "1 rank.", 0.1, "/x", outcome)


@pytest.fixture
def calls(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What the magic asks `launch` for, without launching."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def fake(*args: Any, **settings: Any) -> Run:
        seen.append((args, settings))
        return a_run()

    monkeypatch.setattr(magic, "launch", fake)
    return seen


# --- the line ----------------------------------------------------------------------------------------------------------


def test_defaults(calls: list[Any]) -> None:
    assert isinstance(ranks("", "x = 1\n", {}), Run)
    (script, n, args), settings = calls[0]
    assert (n, args) == ("auto", [])
    alone = {"nodes": 1, "dry": False, "detach": False}
    assert settings == {"timeout": 120.0, "engine": "auto", "gpus_per_rank": 1, "threads": None, "device": "auto", "max_restarts": 0, "quiet": False} | alone
    assert Path(script).name.startswith("cell-") and Path(script).read_text().splitlines()[1] == "x = 1"


def test_every_option(calls: list[Any]) -> None:
    namespace: dict[str, Any] = {}
    options = "--gpus-per-rank all --threads 4 --device cpu --max-restarts 0 --quiet --nodes 3 --dry --detach"
    line = f"3 -o result --timeout 2.5 --engine slurm {options} -- --lr 0.1 -o 'a b' -- x"
    assert ranks(line, "x = 1", namespace) is None and isinstance(namespace["result"], Run)
    (_, n, args), settings = calls[0]
    assert (n, args) == (3, ["--lr", "0.1", "-o", "a b", "--", "x"])
    several = {"nodes": 3, "dry": True, "detach": True}
    assert settings == {"timeout": 2.5, "engine": "slurm", "gpus_per_rank": "all", "threads": 4, "device": "cpu", "max_restarts": 0, "quiet": True} | several


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("two", "argument ranks: must be a whole number from 1 on, or 'auto'; got 'two'"),
        ("2 3", "unrecognized arguments: 3"),
        ("2 --no-such-option", "unrecognized arguments: --no-such-option"),
        ("2 -o", "expected one argument"),
        ("2 -o not-a-name", "-o 'not-a-name' is not a name"),
        ("2 -o class", "-o 'class' is not a name"),
        ("2 --timeout soon", "invalid float value: 'soon'"),
        ("2 --engine mpi", "invalid choice: 'mpi'"),
        ("2 --gpus-per-rank some", "must be a whole number from 1 on, or 'all'; got 'some'"),
        ("2 --file my-model.py", "'my-model.py' cannot be imported"),
        ("2 --file ../model.py", "cannot be imported"),
        ("2 -- 'open", "No closing quotation"),
    ],
)
def test_a_wrong_line_is_one_clear_error(calls: list[Any], line: str, words: str) -> None:
    with pytest.raises(LaunchError) as raised:
        ranks(line, "x = 1", {})
    assert words in str(raised.value) and not calls
    assert raised.value._render_traceback_() == [f"LaunchError: {raised.value}"], "the notebook would show frames of ours"


def test_a_cell_that_is_no_python(calls: list[Any], home: Path) -> None:
    with pytest.raises(LaunchError, match=r"cell-\w+\.py is not valid Python, line 3: x = = 1 \(invalid syntax\)"):
        ranks("2", "import os\nx = = 1\n", {})  # line 3 of the cell, whose line 1 is the magic
    for line in ("--no-launch --file helper.py", f"--save {home}/out"):
        with pytest.raises(LaunchError, match="not valid Python"):
            ranks(line, "def f(:\n", {})
    assert not calls and not (home / "out").exists()


def test_expected_errors(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With --expect-error a failure is shown and the notebook goes on; a success stops it. -o binds either way."""
    failed = RankError(a_run("failed"), 0, "ValueError: no", "", {})

    def fail(*_: Any, **__: Any) -> Run:
        raise failed

    monkeypatch.setattr(magic, "launch", fail)
    namespace: dict[str, Any] = {}
    assert ranks("2 --expect-error -o run", "x = 1", namespace) is None
    assert "As expected, the launch failed." in capsys.readouterr().out and namespace.pop("run") is failed.run
    with pytest.raises(RankError):
        ranks("2 -o run", "x = 1", namespace)
    assert namespace.pop("run") is failed.run
    monkeypatch.setattr(magic, "launch", lambda *_, **__: a_run())
    with pytest.raises(NothingFailed, match="expected to fail, and it succeeded"):
        ranks("2 --expect-error -o run", "x = 1", namespace)
    assert namespace["run"].ok


def test_an_interrupt_binds_the_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Run:
        error = KeyboardInterrupt()
        error.run = a_run("interrupted")  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(magic, "launch", stop)
    namespace: dict[str, Any] = {}
    with pytest.raises(KeyboardInterrupt):
        ranks("2 --expect-error -o run", "x = 1", namespace)
    assert namespace["run"].outcome == "interrupted"


def test_files_are_kept_under_their_content(calls: list[Any], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy that never changes for tracebacks, and a plain file for imports."""
    ranks("--file model.py --no-launch", "size = 1\n", {})
    ranks("--file model.py --no-launch", "size = 2\n", {})
    folder = home / "runs" / "lesson"
    assert "size = 2" in (folder / "model.py").read_text() and not calls
    assert sorted("size = 1" in p.read_text() for p in folder.glob("model-*.py")) == [False, True]
    assert capsys.readouterr().out == "kept as model.py\n" * 2
    assert not [p for p in folder.iterdir() if p.name.startswith(".")], "a partial file is left"


# --- arguments of launch -----------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"script": "no_such.py"}, "there is no script"),
    ({"script": "."}, "there is no script"),
    ({"script": None}, "is not the path of a script"),
    ({"script": "a\0b.py"}, "is not the path of a script"),
    ({"script": "broken.py"}, r"broken.py is not valid Python, line 2: x = = 1"),
    ({"script": "nulls.py"}, "is not valid Python"),
    ({"ranks": 0}, "ranks must be a whole number from 1 on, or 'auto'; got 0"),
    ({"ranks": -1}, "got -1"),
    ({"ranks": "many"}, "got 'many'"),
    ({"ranks": 2.0}, "got 2.0"),
    ({"ranks": 5000}, "is the most here"),
    ({"engine": "mpi"}, f"unknown engine 'mpi'; choose {', '.join(ENGINES)}"),
    ({"timeout": 0}, "timeout must be a number of seconds above 0"),
    ({"timeout": float("nan")}, "timeout must be"),
    ({"timeout": "10"}, "timeout must be"),
    ({"timeout": True}, "timeout must be"),
    ({"nodes": 2}, "nodes must be 1, got 2"),
    ({"gpus_per_rank": 0}, "gpus_per_rank must be"),
    ({"threads": 0}, "threads must be"),
    ({"device": "gpu"}, "device must be"),
    ({"max_restarts": -1}, "max_restarts must be"),
    ({"max_restarts": True}, "max_restarts must be"),
    ({"max_restarts": 1, "engine": "local"}, "engine 'local' does not restart"),
    ({"args": "--lr 0.1"}, "args must be a list"),
    ({"args": 3}, "args must be a list"),
    ({"env": ["A=1"]}, "env must be a dict"),
    ({"env": {"A=B": "1"}}, "env must be a dict"),
    ({"env": {1: "1"}}, "env must be a dict"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=[str(w) for w, _ in WRONG])
def test_wrong_arguments_start_nothing(home: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], words: str) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr(local.server, "why_cold", lambda *_: pytest.fail("a server was started"))
    monkeypatch.setattr(local, "start_cold", lambda *_: pytest.fail("something was started"))
    Path("good.py").write_text("")
    Path("broken.py").write_text("import os\nx = = 1\n")
    Path("nulls.py").write_bytes(b"x = 1\0")
    with pytest.raises(LaunchError, match=words.replace("(", r"\(")) as raised:
        launch(**{"script": "good.py", **wrong})
    assert len(str(raised.value).splitlines()) == 1 and not (home / "runs" / "lesson" / "launches").exists()


# --- in a notebook -----------------------------------------------------------------------------------------------------


def test_a_wrong_line_in_a_notebook(kernel: Kernel) -> None:
    for line, words in (("0", "ranks must be a whole number from 1 on"), ("-1", "got -1"), ("2 --engine mpi", "invalid choice"), ("two", "got 'two'")):
        got = kernel.run(f"%%ranks {line}\nprint('never')")
        assert got.error and got.error[0] == "LaunchError" and words in got.error[1] and got.text == "", got
        assert "Traceback" not in got.shown_error and got.seconds < limit(2)


def test_the_magic_in_a_notebook(kernel: Kernel) -> None:
    got = kernel.run("n, name = 1, 'run_of_mine'\n")
    got = kernel.run("%%ranks {n} -o {name} -- --value $n\nimport sys\nprint(sys.argv[1:])")  # IPython fills names in
    assert got.error is None and "rank 0 | ['--value', '1']" in got.text and kernel.ask("run_of_mine.world_size") == 1
    got = kernel.run("%%ranks 1\nfrom course_utils.rank import report\nreport(x=1)")
    assert got.value and "1 ranks, warm" in got.value and "x=1" in got.value, "without -o the Run is the value of the cell"
    got = kernel.run("%%ranks 1 -o run --expect-error\nraise ValueError('on purpose')")
    assert got.error is None and "As expected, the launch failed." in got.text and "ValueError: on purpose" in got.text
    assert kernel.ask("run.ok") is False
    got = kernel.run("%%ranks 1 --expect-error\npass")
    assert got.error and got.error[0] == "NothingFailed"
    got = kernel.run("print(get_ipython().find_cell_magic('ranks').__doc__)")
    assert "--expect-error" in got.text and "arguments of the script" in got.text


# --- a folder that runs elsewhere --------------------------------------------------------------------------------------

TRAVELS = """import sys
import torch.distributed as dist
import shape_of_mine
from course_utils.rank import backend, device, report

if __name__ == "__main__":
    dist.init_process_group(backend())
    report(rank=dist.get_rank(), sides=shape_of_mine.sides(), device=str(device()))
    foreign = [m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None) and "REPOSITORY" in m.__file__]
    assert not foreign, foreign
    dist.destroy_process_group()
""".replace("REPOSITORY", str(ROOT / "course_utils"))


def test_a_saved_folder_runs_under_plain_torchrun(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks("--file corner_of_mine.py --no-launch", "n = 4\n", {})
    ranks("--file shape_of_mine.py --no-launch", "from corner_of_mine import n\ndef sides():\n    return n\n", {})
    capsys.readouterr()
    target = tmp_path / "a folder"
    ranks(f"--save '{target}' --no-launch", TRAVELS, {})
    said = capsys.readouterr().out
    assert f"cd '{target}' && torchrun --standalone --nproc-per-node=2 cell.py" in said
    assert sorted(str(p.relative_to(target)) for p in target.rglob("*.py")) == [
        "cell.py", "corner_of_mine.py", "course_utils/__init__.py", "course_utils/rank.py", "shape_of_mine.py",
    ]  # fmt: skip
    # As on another machine: none of our variables, and neither the repository nor what is installed from it on the path.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("COURSE_", "PYTHON"))}
    clean |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "cell.py"]
    answer = subprocess.run(command, cwd=target, env=clean, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert sorted(line for line in answer.stdout.splitlines() if line.startswith("report")) == [
        f'report {{"rank": {r}, "sides": 4, "device": "cpu"}}' for r in (0, 1)
    ]


def test_what_only_works_in_the_notebook_cannot_travel(home: Path, tmp_path: Path) -> None:
    for source in ("from course_utils.launch import launch", "from course_utils import figures", "import course_utils.claim as c"):
        with pytest.raises(LaunchError, match="needs the notebook; a script that travels may use rank, workloads"):
            ranks(f"--save {tmp_path}/out --no-launch", source, {})
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="cannot be written"):
        ranks(f"--save {tmp_path}/file/sub --no-launch", "x = 1", {})


def test_a_name_with_a_dash_keeps_it(tmp_path: Path) -> None:
    from course_utils.bundle import save_bundle

    (tmp_path / "train-small.py").write_text("x = 1\n")
    save_bundle(tmp_path / "train-small.py", tmp_path / "out")
    assert (tmp_path / "out" / "train-small.py").exists()
