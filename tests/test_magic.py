# ruff: noqa: F811 - fixtures are imported by their names
"""The line of `%%ranks` and the arguments of `launch`: what they mean, and one clear sentence when they're wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ROOT
from kernels import Kernel, close_shared_kernel, kernel, limit, own_kernel  # noqa: F401

from course_utils.cells import magic, magic_names
from course_utils.cells.magic import NothingFailed, OtherFailure, ranks
from course_utils.cells.magic_line import DEFAULTS, complete, ranks_options
from course_utils.failure.errors import LaunchError, RankError
from course_utils.launching import local
from course_utils.launching.launcher import launch
from course_utils.launching.options import ENGINES, LaunchOptions
from course_utils.results.rank_result import RankResult
from course_utils.results.run import Run


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


# --- the line ---------------------------------------------------------------------------------------------------------


def test_defaults(calls: list[Any]) -> None:
    assert isinstance(ranks("", "x = 1\n", {}), Run)
    (script,), settings = calls[0]
    usual = {
        "ranks": "auto", "args": [], "timeout": None, "engine": "auto", "gpus_per_rank": 1, "threads": None,
        "device": "auto", "max_restarts": 0, "quiet": False, "nodes": 1, "dry": False, "detach": False, "module": "",
        "cluster": "", "slow": {}, "one_of": 0, "host": "",
    }  # fmt: skip
    assert settings == usual
    assert Path(script).name.startswith("cell-") and Path(script).read_text().splitlines()[1] == "x = 1"


def test_every_option(calls: list[Any]) -> None:
    namespace: dict[str, Any] = {}
    options = "--gpus-per-rank all --threads 4 --device cpu --max-restarts 0 --quiet --nodes 3 --dry --detach"
    line = f"3 -o result --timeout 2.5 --engine slurm {options} -- --lr 0.1 -o 'a b' -- x"
    assert ranks(line, "x = 1", namespace) is None and isinstance(namespace["result"], Run)
    _, settings = calls[0]
    said = {
        "ranks": 3, "args": ["--lr", "0.1", "-o", "a b", "--", "x"], "timeout": 2.5, "engine": "slurm", "device": "cpu",
        "gpus_per_rank": "all", "threads": 4, "max_restarts": 0, "quiet": True, "nodes": 3, "dry": True, "detach": True,
        "module": "", "cluster": "", "slow": {}, "one_of": 0, "host": "",
    }  # fmt: skip
    assert settings == said


def test_an_option_of_a_launch_is_declared_alike_wherever_it_stands() -> None:
    """In the signature and docstring of `launch`, as a field of LaunchOptions, and in the line."""
    parameters = signature(launch).parameters
    known = {field.name: field.default for field in fields(LaunchOptions)}
    assert [*parameters] == [*known]
    for name, parameter in parameters.items():
        assert parameter.default == known[name] or name == "script", name
        assert re.search(rf"^    {name} +\S", launch.__doc__ or "", re.M), f"the docstring of launch leaves out {name}"
    in_line = vars(ranks_options([]))
    not_there = {"script", "args", "check", "env"}  # a cell, what stands after --, --expect-error, %env
    assert known.keys() - in_line.keys() == not_there


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("two", "argument ranks: must be a whole number above 0, or 'auto'; got 'two'"),
        ("2 3", "unrecognized arguments: 3"),
        ("2 --no-such-option", "unrecognized arguments: --no-such-option"),
        ("2 -o", "expected one argument"),
        ("2 -o not-a-name", "-o 'not-a-name' is not a valid name"),
        ("2 -o class", "-o 'class' is not a valid name"),
        ("2 --timeout soon", "argument --timeout: must be a time above 0: 90 or 90s, 5m or 1h; got 'soon'"),
        ("2 --timeout 0m", "must be a time above 0"),
        ("2 --timeout 5min", "must be a time above 0"),
        ("2 --timeout nan", "must be a time above 0"),
        ("2 --clutser 8xA100", "unrecognized arguments: --clutser 8xA100. Did you mean --cluster?"),
        ("2 --gpus_per_rank=2", "Did you mean --gpus-per-rank?"),
        ("2 -cluster 8xA100", "Did you mean --cluster?"),
        ("--nproc_per_node=4", "The number of ranks stands by itself: %%ranks 4"),
        ("-n 4", "The number of ranks stands by itself: %%ranks 4"),
        ("2 --lr 0.1", "What your program gets stands after --, as in %%ranks 2 -- --lr 0.1"),
        ("2 --engine mpi", "invalid choice: 'mpi'"),
        ("2 --gpus-per-rank some", "must be a whole number above 0, or 'all'; got 'some'"),
        ("2 --file my-model.py", "'my-model.py' cannot be imported"),
        ("2 --file ../model.py", "cannot be imported"),
        ("2 -- 'open", "No closing quotation"),
    ],
)
def test_a_wrong_line_is_one_clear_error(calls: list[Any], line: str, words: str) -> None:
    with pytest.raises(LaunchError) as raised:
        ranks(line, "x = 1", {})
    assert words in str(raised.value) and not calls
    assert raised.value._render_traceback_() == [f"LaunchError: {raised.value}"], (
        "the notebook would show frames of ours"
    )


def test_a_cell_that_is_no_python(calls: list[Any], home: Path) -> None:
    with pytest.raises(LaunchError, match=r"the cell is not valid Python, line 3: x = = 1 \(invalid syntax\)"):
        ranks("2", "import os\nx = = 1\n", {})  # line 3 of the cell, whose line 1 is the magic
    for line in ("--no-launch --file helper.py", f"--save {home}/out"):
        with pytest.raises(LaunchError, match="not valid Python"):
            ranks(line, "def f(:\n", {})
    assert not calls and not (home / "out").exists()


TRACEBACK = """Traceback (most recent call last):
  File "/home/me/cell.py", line 3, in <module>
    check(loss)  # else KeyError
ValueError: no"""
FAILED = RankError(
    a_run("failed"), 0, "ValueError: the loss is 'nan' (2 of 4)", TRACEBACK, {1: "rank 1 waits in all_reduce"}
)
TIMED_OUT = RankError(
    a_run("timeout"),
    None,
    "the launch did not end within its timeout of 3 s",
    "",
    {0: "rank 0 waits in all_reduce: `raise ValueError`, line 12 of cell.py"},
)


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: Any, **__: Any) -> Run:
        raise error

    monkeypatch.setattr(magic, "launch", fail)


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        (FAILED, "ValueError"),
        (FAILED, "'the loss is'"),
        (FAILED, "\"is 'nan'\""),  # a quote in quotes
        (FAILED, r"'\(2 of \d\)$'"),
        (FAILED, "-o run --timeout 3 --expect-error=finite|nan"),
        (FAILED, "'rank 0 failed first: ValueError'"),
        (FAILED, "'(?i)valueerror.*LOSS'"),
        (TIMED_OUT, "timeout"),
        (TIMED_OUT, "'did not end within its timeout of 3 s'"),
        (RankError(a_run("failed"), 1, "killed by SIGKILL", "", {}), "SIGKILL"),
        (RankError(a_run("failed"), 1, "RuntimeError: two\nlines", "", {}), "^lines|lines$"),
    ],
)
def test_the_expected_failure(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: RankError, pattern: str
) -> None:
    """With --expect-error, a matching failure is shown and the notebook goes on. -o still binds the run."""
    failing(monkeypatch, error)
    namespace: dict[str, Any] = {}
    option = "" if "--expect-error" in pattern else "--expect-error "
    assert ranks(f"2 {option}{pattern} -o run", "x = 1", namespace) is None
    assert capsys.readouterr().out == f"As expected, the launch failed.\n\n{error}\n"
    assert namespace.pop("run") is error.run
    with pytest.raises(RankError):
        ranks("2 -o run", "x = 1", namespace)
    assert namespace.pop("run") is error.run


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        (FAILED, "TypeError"),
        (FAILED, "valueerror"),
        (FAILED, "KeyError"),  # which only a line of the program says
        (FAILED, "all_reduce"),  # where another rank stood
        (FAILED, "timeout"),
        (TIMED_OUT, "ValueError"),  # which only a line says where a rank stood
        (TIMED_OUT, "all_reduce"),
    ],
)
def test_another_failure_than_the_expected_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: RankError, pattern: str
) -> None:
    """A failure that doesn't match fails the cell, with the pattern and everything that happened. So does a timeout."""
    failing(monkeypatch, error)
    namespace: dict[str, Any] = {}
    with pytest.raises(OtherFailure) as raised:
        ranks(f"2 --expect-error {pattern} -o run", "x = 1", namespace)
    said = str(raised.value)
    assert said == f"this launch was expected to fail with {pattern!r}, but it failed in another way:\n\n{error}"
    assert raised.value._render_traceback_() == [f"OtherFailure: {said}"] and raised.value.__cause__ is error
    assert namespace["run"] is error.run and "As expected" not in capsys.readouterr().out


def test_a_launch_that_should_have_failed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {}
    monkeypatch.setattr(magic, "launch", lambda *_, **__: a_run())
    with pytest.raises(NothingFailed, match="^this launch was expected to fail with 'no way', but it succeeded$"):
        ranks("2 --expect-error 'no way' -o run", "x = 1", namespace)
    assert namespace["run"].ok
    failing(monkeypatch, LaunchError("ranks must be a whole number; got ValueError"))
    with pytest.raises(LaunchError):  # nothing was started: that is no failure of the program
        ranks("2 --expect-error ValueError", "x = 1", namespace)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2 --expect-error", "name the failure that you expect: "),
        ("2 --expect-error -o run", "name the failure that you expect: "),
        ("2 --expect-error ''", "name the failure that you expect: "),
        ("2 --expect-error=", "name the failure that you expect: "),
        ("2 --expect-error .*", "--expect-error '.*' matches any failure"),
        ("2 --expect-error 'a|'", "--expect-error 'a|' matches any failure"),
        ("2 --expect-error '(no'", "--expect-error '(no' is not a regular expression (missing )"),
        ("2 --expect-error ValueError --dry --engine slurm", "don't wait for an end"),
        ("2 --expect-error ValueError --detach --engine slurm", "don't wait for an end"),
        ("2 --expect-error ValueError --no-launch", "don't wait for an end"),
    ],
)
def test_an_expectation_that_says_nothing(calls: list[Any], line: str, words: str) -> None:
    with pytest.raises(LaunchError) as raised:
        ranks(line, "x = 1", {})
    assert words in str(raised.value) and len(str(raised.value).splitlines()) == 1 and not calls


def test_a_pattern_of_several_words_needs_quotes(calls: list[Any]) -> None:
    with pytest.raises(LaunchError, match="unrecognized arguments: by zero; a pattern with spaces needs quotes"):
        ranks("2 --expect-error division by zero", "x = 1", {})
    assert not calls


def test_an_interrupt_binds_the_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Run:
        error = KeyboardInterrupt()
        error.run = a_run("interrupted")  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(magic, "launch", stop)
    namespace: dict[str, Any] = {}
    with pytest.raises(KeyboardInterrupt):
        ranks("2 --expect-error interrupt -o run", "x = 1", namespace)
    assert namespace["run"].outcome == "interrupted"


def test_files_are_kept_under_their_content(calls: list[Any], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy that never changes for tracebacks, and a plain file for imports."""
    ranks("--file model.py --no-launch", "size = 1\n", {})
    ranks("--file model.py --no-launch", "size = 2\n", {})
    folder = home / "runs" / "lesson" / "latest"
    assert "size = 2" in (folder / "model.py").read_text() and not calls
    assert sorted("size = 1" in p.read_text() for p in folder.glob("model-*.py")) == [False, True]
    assert capsys.readouterr().out == "saved as model.py\n" * 2
    assert not [p for p in folder.iterdir() if p.name.startswith(".")], "a partial file is left"


# --- defaults of a notebook -------------------------------------------------------------------------------------------


def test_the_line_goes_before_the_defaults(calls: list[Any]) -> None:
    defaults = {"timeout": 7.0, "device": "cpu", "engine": "cold", "threads": 3}
    for line, expected in (
        ("2", defaults),
        ("2 --timeout 120 --device auto --engine auto --threads auto", {**DEFAULTS, "timeout": 120.0}),
        ("2 --timeout 5", defaults | {"timeout": 5.0}),
        ("2 --timeout 5m", defaults | {"timeout": 300.0}),
        ("2 --timeout=1.5h", defaults | {"timeout": 5400.0}),
        ("2 --timeout 90s", defaults | {"timeout": 90.0}),
        ("2 --max-restarts 1", defaults | {"engine": "auto"}),  # as COURSE_ENGINE: cold can't restart ranks
        ("2 --max-restarts 1 --engine cold", defaults),  # which the line asks for itself: launch refuses it
    ):
        ranks(line, "x = 1", {}, defaults)
        settings = calls.pop()[1]
        assert {name: settings[name] for name in DEFAULTS} == expected, line
    ranks("2 --max-restarts 1", "x = 1", {}, defaults | {"engine": "slurm"})
    assert calls.pop()[1]["engine"] == "slurm"


@pytest.fixture
def shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    return InteractiveShell()  # one of its own, with the settings as they come


def configure(shell: Any, line: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> str:
    """What `%config` says."""
    caplog.clear()
    capsys.readouterr()
    shell.run_line_magic("config", line)
    return capsys.readouterr().out + caplog.text


def test_config_sets_what_lines_leave_out(
    shell: Any, calls: list[Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    magic.register(shell)
    for line in ("timeout = 300", "device = 'comparable'", "engine = 'cold'", "threads = 2"):
        assert configure(shell, f"Ranks.{line}", capsys, caplog) == ""
    shell.run_cell_magic("ranks", "2 --threads 1", "x = 1")
    wanted = {"timeout": 300.0, "device": "comparable", "engine": "cold", "threads": 1}
    assert wanted.items() <= calls.pop()[1].items()
    assert "Ranks.timeout=<" in configure(shell, "Ranks", capsys, caplog)
    configure(shell, "Ranks.threads = None", capsys, caplog)
    shell.run_line_magic("ranks", "2 -m this")
    assert calls.pop()[1]["threads"] is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("timeout = 'x'", "a number of seconds above 0, not the str 'x'"),
        ("timeout = '300'", "a number of seconds above 0, not the str '300'"),
        ("timeout = 0", "a number of seconds above 0, not the int 0"),
        ("timeout = float('nan')", "a number of seconds above 0, not the float nan"),
        ("timeout = True", "a number of seconds above 0, not the bool True"),
        ("device = 'gpu'", "any of ['auto', 'cuda', 'cpu', 'shared', 'comparable'], not the str 'gpu'"),
        ("engine = 'mpi'", "any of ['auto', 'local', 'cold', 'torchrun', 'slurm'], not the str 'mpi'"),
        ("threads = 0", "a whole number above 0 or None, not the int 0"),
        ("threads = 1.5", "a whole number above 0 or None, not the float 1.5"),
        ("threads = True", "a whole number above 0 or None, not the bool True"),
    ],
)
def test_config_refuses_what_makes_no_sense(
    shell: Any,
    calls: list[Any],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    line: str,
    words: str,
) -> None:
    magic.register(shell)
    configure(shell, "Ranks.timeout = 11", capsys, caplog)
    assert words.replace(" or None", "") in configure(shell, f"Ranks.{line}", capsys, caplog).replace(" or None", "")
    shell.run_cell_magic("ranks", "2", "x = 1")
    assert calls.pop()[1].items() >= (dict(DEFAULTS) | {"timeout": 11.0}).items(), "the refused value was taken"
    # IPython itself remembers what it was told, and gives it to the next one.
    magic.register(shell)
    said = capsys.readouterr().out
    assert "Your settings of Ranks are dropped, because one of them can't be used" in said and "trait" in said
    shell.run_cell_magic("ranks", "2", "x = 1")
    assert calls.pop()[1].items() >= DEFAULTS.items()
    assert len([c for c in shell.configurables if isinstance(c, magic.Ranks)]) == 1


def test_config_knows_a_name_that_is_nearly_right(shell: Any) -> None:
    magic.register(shell)
    with pytest.warns(UserWarning, match="`timeuot` not recognized by `Ranks`.  Did you mean `timeout`"):
        shell.run_line_magic("config", "Ranks.timeuot = 3")


def test_two_shells_have_defaults_of_their_own(shell: Any, calls: list[Any]) -> None:
    other = type(shell)()
    for each in (shell, other):
        magic.register(each)
    shell.run_line_magic("config", "Ranks.timeout = 300")
    other.run_cell_magic("ranks", "2", "x = 1")
    assert calls.pop()[1]["timeout"] is None
    shell.run_cell_magic("ranks", "2 -o run", "x = 1")
    assert calls.pop()[1]["timeout"] == 300.0 and "run" in shell.user_ns and "run" not in other.user_ns


def test_the_magics_come_and_go(shell: Any, calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    from IPython.core.completer import provisionalcompleter

    def there() -> tuple[bool, ...]:
        find = (shell.find_cell_magic, shell.find_line_magic)
        magics = [find[0]("ranks"), find[1]("ranks"), find[0]("exercise")]
        configurable = [c for c in shell.configurables if type(c).__name__ == "Ranks"]
        with provisionalcompleter():
            hints = [c.text for c in shell.Completer.completions("%%ranks --dev", 13)]
        return (*(m is not None for m in magics), len(configurable) == 1, hints == ["--device"])

    def names() -> dict[str, set[str]]:
        return {kind: set(magics) for kind, magics in shell.magics_manager.magics.items()}

    before = names()
    magic.unregister(shell)  # there is nothing yet, and nothing happens
    assert not any(there())
    for _ in range(2):
        magic.register(shell)
        magic.register(shell)
        assert all(there())
    shell.run_line_magic("config", "Ranks.timeout = 300")
    magic.unregister(shell)
    assert not any(there())
    assert names() == before
    magic.register(shell)
    shell.run_cell_magic("ranks", "2", "x = 1")
    assert calls.pop()[1]["timeout"] == 300.0, "IPython keeps what was configured"


NAMES = [  # a cell, and what its error holds; an empty string where IPython goes on
    ("%%rank 2 -o run\npass", "There is no %%rank. You probably mean\n\n    %%ranks 2 -o run"),
    ("%%rnaks\npass", "    %%ranks"),
    ("%%Ranks 2\npass", "    %%ranks 2"),
    ("%% ranks 2\npass", "    %%ranks 2"),
    ("%%excercise 04.1\npass", "    %%exercise 04.1"),
    ("%rank 2 train.py", "    %ranks 2 train.py"),
    ("%exercise 04.1\npass", "    %%exercise 04.1"),
    ("# mine\n%%ranks 2\npass", "%%ranks has to be the first line of its cell: move the comment below it."),
    ("\n\n%%ranks 2\npass", ""),
    ("%%ranks 2\npass", ""),
    ("# mine\n%ranks 2 train.py", ""),
    ("%%time\npass", ""),
    ("%%nothing_like_it\npass", ""),
    ("%rerun", ""),
    ("x = 5\n%%rank", ""),
    ("'''\n%%rank\n'''", ""),
    ("", ""),
    ("# only a comment", ""),
]


def test_a_name_that_is_nearly_right(shell: Any, calls: list[Any]) -> None:
    magic.register(shell)
    shell.register_magic_function(lambda line: None, magic_kind="line", magic_name="rerun")
    for cell, words in NAMES:
        said = magic_names.mistake(cell, shell)
        assert words in said if words else not said, (cell, said)
    assert shell.check_complete("%%rank 2")[0] == "incomplete"
    magic.unregister(shell)
    magic_names.watch(shell)  # as a kernel of the lab begins
    assert "Run the first code cell" in str(shell.run_cell("%%ranks 2\npass").error_before_exec)
    magic.register(shell)
    assert shell.run_cell("%%ranks 2\npass").success and calls


def test_one_percent_too_few(calls: list[Any]) -> None:
    with pytest.raises(LaunchError, match="write %%ranks to run a cell"):
        ranks("2", None, {})


def test_the_extension_comes_and_goes_in_a_notebook(own_kernel: Kernel) -> None:
    assert own_kernel.run("%load_ext course_utils\nfrom course_utils.launching import local").error is None
    server = own_kernel.ask("local.server()")
    assert own_kernel.run("%load_ext course_utils").text.startswith("The course_utils extension is already loaded")
    assert own_kernel.run("%config Ranks.timeout = 'x'").text.strip().endswith("not the str 'x'.")
    assert own_kernel.run("%unload_ext course_utils").error is None
    got = own_kernel.run("%%ranks 1\npass")
    assert "Cell magic `%%ranks` not found" in got.text + got.shown_error
    assert server is not None and not psutil.pid_exists(server), "torch stays in memory"
    for _ in range(2):
        assert own_kernel.run("%reload_ext course_utils").error is None
    got = own_kernel.run("%%ranks 1 -o run\nprint('again')")
    assert got.error is None and "rank 0 | again" in got.text and own_kernel.ask("run.engine") == "warm"


def test_the_pages_of_help(shell: Any) -> None:
    """What Jupyter's pager shows: plain text that isn't wrapped there."""
    magic.register(shell)
    for name, words in (
        ("%%ranks", ("--expect-error PATTERN", "--device comparable", "%config Ranks.timeout = 300", "N or auto")),
        ("%ranks", ("%ranks 2 train.py -- --epochs 3",)),
        ("%%exercise", ("`%%exercise 04.1`",)),
    ):
        page = shell.object_inspect_mime(name)["text/plain"]
        for word in words:
            assert word in page, (name, word)
    lines = magic.Ranks.run_on_ranks.__doc__.splitlines()
    assert max(map(len, lines)) <= 92 and "==SUPPRESS==" not in page
    assert not [line for line in lines if "%(" in line]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%%ranks --ti", ["--timeout"]),
        ("%%ranks 2 --device c", ["cuda", "cpu", "comparable"]),
        ("%%ranks 2 --engine ", ["auto", "local", "cold", "torchrun", "slurm"]),
        ("%%ranks 2 --needs l", ["lightning"]),
        ("%%ranks 2 -o ", []),
        ("%%ranks 2 --timeout ", []),
        ("%%ranks 2 -- --ti", []),
        ("%%ranks 'an open quote --ti", ["--timeout"]),
        ("%%ranks ", []),
        ("%%ranks", []),
    ],
)
def test_completion_of_options(line: str, expected: list[str]) -> None:
    word = "" if line.endswith(" ") else line.split()[-1]
    assert complete(line, word) == expected


# --- Tab and Shift-Tab below the first line ---------------------------------------------------------------------------

PROGRAM = """%%ranks 2 --device cpu
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from course_utils.rank import device

class Net(nn.Module):
    def __init__(self, width: int, depth=2):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, rows: torch.Tensor):
        hidden = self.layer(rows)
        HERE

first = Net(4)
model = first.to(device())
wrapped = DDP(model)
x = torch.ones(3)
loss = wrapped(x).sum()
with open("file") as f, open("other") as g:
    for step, batch in enumerate([x]):
        y = x + 1
        HERE
"""
COMPLETED = [  # what is typed, and a name that is among those that may follow
    ("dist.all_re", "all_reduce"),
    ("torch.nn.fun", "functional"),
    ("DDP(", "device_ids="),
    ("DDP(model, dev", "device_mesh="),
    ("model.forw", "forward"),
    ("model.lay", "layer"),
    ("wrapped.mod", "module"),
    ("loss.back", "backward"),
    ("y.su", "sum"),
    ("Net(wi", "width="),
    ("ste", "step"),
    ("import torch.dis", "distributed"),
    ("from torch.distributed import barrier, all_re", "all_reduce"),
    ("from course_utils.rank import re", "report"),
    ("loss = loss.mean(); loss.back", "backward"),
    ("torch.ones(3).su", "sum"),
    ("dist.all_reduce(x, op=dist.ReduceOp.SU", "SUM"),
    ("'don' + dist.all_re", "all_reduce"),
]
NOTHING = ("# dist.all_re", "'dist.all_re", "zzz.", "1 + ", "this_is_nowhere", "f(x)(y)[0].", "((((", "x.__cla_", "\\")


def typed(text: str, nth: int = 2) -> tuple[str, int]:
    """The program with `text` at one of its places, and where the cursor stands."""
    before, between, after = PROGRAM.split("HERE")
    code = (f"{before}{text}{between}pass{after}", f"{before}pass{between}{text}{after}")[nth - 1]
    return code, len(f"{before}{text}") if nth == 1 else len(f"{before}pass{between}{text}")


def test_completion_of_the_program_in_a_cell(kernel: Kernel) -> None:
    """By the process that has torch, while the kernel doesn't import it, and in time for the next cell."""

    def ask(kind: str, code: str, at: int) -> dict[str, Any]:
        request = getattr(kernel.client, kind)(code, at)
        while (message := kernel.client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != request:
            pass
        return message["content"]

    slowest = 0.0
    for text, name in COMPLETED:
        begun = time.perf_counter()
        found = ask("complete", *typed(text))
        slowest = max(slowest, time.perf_counter() - begun)
        assert name in found["matches"], (text, found["matches"][:20])
        word = text[len(text) - (found["cursor_end"] - found["cursor_start"]) :]
        assert all(match.startswith(word) for match in found["matches"]), text
    assert slowest < limit(1)
    for text in NOTHING[:4]:
        assert not set(ask("complete", *typed(text))["matches"]) & {"all_reduce", "absolute"}, text
    for code, name in (
        (typed("self.lay", 1), "layer"),
        (typed("hidden.su", 1), "sum"),
        (typed("row", 1), "rows"),
        (("\n%%exercise 04.1\nimport torch\ntorch.nn.fun", 44), "functional"),
        (("%%ranks 2 --dev", 15), "--device"),
    ):
        assert name in ask("complete", *code)["matches"], code[0][-30:]
    said = ask("inspect", *typed("dist.all_reduce("))["data"]["text/plain"]
    assert re.match(r"all_reduce\(tensor(: torch\.Tensor)?, op", said), said  # torch 2.10 says no types there
    assert "def forward(self, rows" in ask("inspect", *typed("model.forward"))["data"]["text/plain"]
    assert ask("inspect", *typed("zzz"))["found"] is False and ask("inspect", "print", 5)["found"]
    assert kernel.run("pass").seconds < limit(1) and kernel.ask("'torch' in __import__('sys').modules") is False


def test_completion_never_raises_and_never_runs_the_program(tmp_path: Path) -> None:
    from course_utils.launching.completion import answer

    harm = f"open({str(tmp_path / 'harm')!r}, 'w')\n"
    for text in (*(text for text, _ in COMPLETED[::3]), *NOTHING):
        code, at = typed(text)
        for source in (code, code[:at], harm + code, code.replace("\n", "\r\n"), "\0" + code):
            for what in ("names", "help"):
                answer({"source": source, "at": min(at, len(source)), "what": what, "imports": True})
    assert not list(tmp_path.iterdir())


# --- arguments of launch ----------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"script": "no_such.py"}, "there is no script"),
    ({"script": "."}, "there is no script"),
    ({"script": None}, "name what to run"),
    ({"script": "a\0b.py"}, "is not the path of a script"),
    ({"script": "broken.py"}, r"broken.py is not valid Python, line 2: x = = 1"),
    ({"script": "nulls.py"}, "is not valid Python"),
    ({"ranks": 0}, "ranks must be a whole number above 0, or 'auto'; got 0"),
    ({"ranks": -1}, "got -1"),
    ({"ranks": "many"}, "got 'many'"),
    ({"ranks": 2.0}, "got 2.0"),
    ({"ranks": 5000}, r"take \d+ at most"),
    ({"engine": "mpi"}, f"unknown engine 'mpi'; choose {', '.join(ENGINES)}"),
    ({"timeout": 0}, "timeout must be a number of seconds above 0"),
    ({"timeout": float("nan")}, "timeout must be"),
    ({"timeout": "10"}, "timeout must be"),
    ({"timeout": True}, "timeout must be"),
    ({"nodes": 2}, "nodes must be 1, got 2"),
    ({"gpus_per_rank": 0}, "gpus_per_rank must be"),
    ({"threads": 0}, "threads must be"),
    ({"device": "gpu"}, "device must be"),
    ({"device": "cuda", "ranks": 31}, "write auto instead of cuda.* --cluster 31xA100"),
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
def test_wrong_arguments_start_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr(local.server, "why_cold", lambda *_: pytest.fail("a server was started"))
    monkeypatch.setattr(local, "start_cold", lambda *_: pytest.fail("something was started"))
    Path("good.py").write_text("")
    Path("broken.py").write_text("import os\nx = = 1\n")
    Path("nulls.py").write_bytes(b"x = 1\0")
    with pytest.raises(LaunchError, match=words.replace("(", r"\(")) as raised:
        launch(**{"script": "good.py", **wrong})
    assert len(str(raised.value).splitlines()) == 1 and not list(home.rglob("launches"))


def test_course_engine_is_about_launches_that_leave_the_engine_open(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("COURSE_ENGINE", "mpi")
    Path("good.py").write_text("")
    with pytest.raises(LaunchError, match="unknown engine 'mpi'"):
        launch("good.py", 1)
    with pytest.raises(LaunchError, match="ranks must be"):  # looked at after the engine
        launch("good.py", 0, engine="local")
    with pytest.raises(LaunchError, match="unknown engine 'mpi'"):
        ranks("1", "x = 1", {})
    with pytest.raises(LaunchError, match="ranks must be"):
        ranks("0", "x = 1", {}, dict(DEFAULTS) | {"engine": "local"})


def test_course_engine_does_not_reach_the_check_of_an_exercise(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COURSE_ENGINE", "mpi")
    answer = (ROOT / "tests" / "right_answers" / "04" / "1_strided.py").read_text()
    magic.exercise("04.1", answer, {})
    assert "✓ 04.1" in capsys.readouterr().out


# --- in a notebook ----------------------------------------------------------------------------------------------------


def test_a_wrong_line_in_a_notebook(kernel: Kernel) -> None:
    for line, words in (
        ("0", "ranks must be a whole number above 0"),
        ("-1", "got -1"),
        ("2 --engine mpi", "invalid choice"),
        ("two", "got 'two'"),
    ):
        got = kernel.run(f"%%ranks {line}\nprint('never')")
        assert got.error and got.error[0] == "LaunchError" and words in got.error[1] and got.text == "", got
        assert "Traceback" not in got.shown_error and got.seconds < limit(2)


def test_the_magic_in_a_notebook(kernel: Kernel) -> None:
    got = kernel.run("n, name = 1, 'run_of_mine'\n")
    got = kernel.run("%%ranks {n} -o {name} -- --value $n\nimport sys\nprint(sys.argv[1:])")  # IPython fills names in
    assert got.error is None and "rank 0 | ['--value', '1']" in got.text and kernel.ask("run_of_mine.world_size") == 1
    got = kernel.run("%%ranks 1\nfrom course_utils.rank import report\nreport(x=1)")
    assert got.value and "1 rank, warm" in got.value and "x=1" in got.value, (
        "without -o the Run is the value of the cell"
    )
    got = kernel.run(
        "%%ranks 1 -o run --expect-error 'ValueError: on (purpose|porpoise)'\nraise ValueError('on purpose')"
    )
    assert got.error is None and "As expected, the launch failed." in got.text and "ValueError: on purpose" in got.text
    assert kernel.ask("run.ok") is False
    got = kernel.run("%%ranks 1 --expect-error ValueError\npass")
    assert got.error and got.error[0] == "NothingFailed"
    got = kernel.run("%%ranks 1 -o run --expect-error ValueError\nraise TypeError('else')")
    assert got.error and got.error[0] == "OtherFailure" and "TypeError: else" in got.shown_error
    assert "'ValueError'" in got.shown_error and "magic.py" not in got.shown_error
    got = kernel.run("%%ranks 1 --timeout 1 --expect-error ValueError\nimport time\ntime.sleep(60)  # ValueError")
    assert got.error and got.error[0] == "OtherFailure" and "did not end within its timeout" in got.shown_error
    got = kernel.run("%%ranks 1 --expect-error 'a {{2}} and {1 + 1}'\nraise ValueError('no')")
    assert got.error and "'a {2} and 2'" in got.error[1], "IPython fills in braces, as the page says"


# --- a folder that runs elsewhere -------------------------------------------------------------------------------------

TRAVELS = """import sys
import torch.distributed as dist
import shape_of_mine
from course_utils.rank import backend, device, report

if __name__ == "__main__":
    dist.init_process_group(backend())
    report(of=dist.get_rank(), sides=shape_of_mine.sides(), device=str(device()))
    foreign = [m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None) and "REPOSITORY" in m.__file__]
    assert not foreign, foreign
    dist.barrier()  # nothing else here makes a rank wait for another that still connects
    dist.destroy_process_group()
""".replace("REPOSITORY", str(ROOT / "course_utils"))


def test_a_saved_folder_runs_under_plain_torchrun(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    # As on another machine: none of our variables, and neither the repository nor what is installed from it on the
    # path.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("COURSE_", "PYTHON"))}
    clean |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "cell.py"]
    answer = subprocess.run(command, cwd=target, env=clean, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert sorted(line for line in answer.stdout.splitlines() if line.startswith("report")) == [
        f'report {{"of": {r}, "sides": 4, "device": "cpu"}}' for r in (0, 1)
    ]


def test_what_only_works_in_the_notebook_cannot_travel(home: Path, tmp_path: Path) -> None:
    for source in (
        "from course_utils.launching.launcher import launch",
        "from course_utils import launch",
        "from course_utils import figures",
        "import course_utils.cells.claims as c",
    ):
        with pytest.raises(
            LaunchError, match="needs the notebook; a script that runs elsewhere can use rank, workloads"
        ):
            ranks(f"--save {tmp_path}/out --no-launch", source, {})
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="can't write to the folder"):
        ranks(f"--save {tmp_path}/file/sub --no-launch", "x = 1", {})


def test_a_name_with_a_dash_keeps_it(tmp_path: Path) -> None:
    from course_utils.launching.bundle import save_bundle

    (tmp_path / "train-small.py").write_text("x = 1\n")
    save_bundle(tmp_path / "train-small.py", tmp_path / "out")
    assert (tmp_path / "out" / "train-small.py").exists()


# --- plt.show() -------------------------------------------------------------------------------------------------------

SHOWS = """import os, matplotlib.pyplot as plt
for _ in range(2):
    plt.plot([1, 2])
    print("half a line", end=" ")
    plt.show()
print("open:", plt.get_fignums(), os.environ["MPLBACKEND"])
"""


@pytest.mark.parametrize("engine", ["local", pytest.param("cold", marks=pytest.mark.slow)])
def test_a_figure_of_a_rank_is_shown_under_the_cell(kernel: Kernel, engine: str) -> None:
    got = kernel.run(f"%%ranks 2 --device cpu -o run --engine {engine}\n{SHOWS}")
    assert got.error is None, got.shown_error
    assert sorted(text for kind, text in got.displays if kind == "display_data" and "figure" in text) == [
        f"rank {rank}, figure {number}" for rank in (0, 1) for number in (1, 2)
    ]
    assert "rank 1 | half a line figure 2\n" in got.text and "rank 0 | open: [] Agg\n" in got.text
    assert not kernel.ask("[line for line in open(run.ranks[0].log) if 'Warning' in line]")


def test_many_figures_and_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from course_utils.launching.under_the_cell import shown_figures

    lines = []
    for number in range(1, shown_figures.MOST + 3):
        (tmp_path / f"rank0.figure{number}.png").write_bytes(b"PNG")
        lines.append(f"rank 0 | figure: {tmp_path}/rank0.figure{number}.png\n")
    gone = f"rank 0 | figure: {tmp_path}/rank1.figure1.png\n"
    text = "".join(["rank 0 | a\n", gone, *lines, "rank 0 | figure: none.png\n"])
    shown_figures.Figures().write(text, sys.stdout)
    assert capsys.readouterr().out == text, "a terminal shows the path"
    with pytest.MonkeyPatch.context() as patch:
        seen: list[str] = []
        patch.setattr(shown_figures, "notebook_kernel", lambda: True)
        patch.setattr(shown_figures, "_display", lambda png, name: seen.append(name))
        shown_figures.Figures().write(text, sys.stdout)
    out = capsys.readouterr().out
    assert len(seen) == shown_figures.MOST - 1 and out.count("(a cell shows 16 figures)") == 3
    assert out.startswith(f"rank 0 | a\nrank 0 | figure 1: {tmp_path}/rank1.figure1.png\n"), "a file that has gone"
    assert out.endswith("rank 0 | figure: none.png\n")
