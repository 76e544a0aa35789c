"""Errors that newcomers meet get a sentence of help. The messages are torch's and Python's own, made here; the table of
mistakes is in mistakes.toml."""

from __future__ import annotations

import pickle
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from course_utils.failure import advice
from course_utils.failure.advice import hint
from course_utils.failure.errors import LaunchError, RankError
from course_utils.folders import CELL
from course_utils.launching import local
from course_utils.launching.launcher import launch
from course_utils.launching.supervisor.patience import Patience


def message_of(code: str) -> tuple[str, str]:
    """The type and the message of the exception that ends a program."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    last = [line for line in done.stderr.splitlines() if line and not line.startswith(" ")][-1]
    kind, _, message = last.partition(": ")
    return kind.rpartition(".")[2], message


def test_messages_as_they_are() -> None:
    import torch
    import torch.distributed as dist

    found: dict[str, BaseException] = {}

    def tried(name: str, call: object) -> None:
        with pytest.raises(BaseException) as raised:
            call()  # type: ignore[operator]
        found[name] = raised.value

    tried("init_process_group()", lambda: dist.all_reduce(torch.ones(1)))
    tried("lies? no: pickled", lambda: pickle.dumps(lambda: 0))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tried("leave out", lambda: dist.TCPStore("127.0.0.1", port, 1, True))
    if not torch.cuda.is_available():
        tried("no such GPU", lambda: torch.ones(1, device="cuda"))
    for name, error in found.items():
        assert hint(type(error).__name__, str(error)), (name, repr(error))
    assert "keyboard" in hint(*message_of("input()"))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ValueError", "no more of this"),
        ("RuntimeError", "Connection closed by peer"),
        ("NameError", "name 'model' is not defined"),  # no notebook, so nothing is known of it
        ("KeyError", "'EADDRINUSE'"),
        ("AttributeError", "'NoneType' object has no attribute 'shape'"),
        ("SystemExit", "2"),
    ],
)
def test_nothing_is_said_without_a_reason(kind: str, message: str) -> None:
    assert hint(kind, message) == ""


@pytest.mark.parametrize(
    ("program", "env", "helps"),
    [
        (
            "x = torch.ones(4, 8, device=device(), dtype=torch.bfloat16); torch.nn.LayerNorm(8).to(device())(x)",
            {},
            "a norm that's kept in float32 wants its input in float32, too",
        ),
        (
            "torch.ones(1, device=device())",
            {"PYTORCH_ALLOC_CONF": "expandable_segments:true"},
            "with a capital letter: `expandable_segments:True`",
        ),
    ],
    ids=["a norm in two types", "settings of the allocator"],
)
def test_what_only_a_gpu_refuses(program: str, env: dict[str, str], helps: str, tmp_path: Path) -> None:
    """Seen on an H200, word for word, and emulated here."""
    script = tmp_path / "program.py"
    script.write_text(f"import torch\nfrom course_utils.rank import device\n{program}\n")
    with pytest.raises(RankError) as raised:
        launch(script, 1, cluster="1xH100", env=env, quiet=True)
    assert helps in str(raised.value)


def _of_the_notebook() -> None: ...


_of_the_notebook.__module__ = "__main__"


def test_a_name_that_the_notebook_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"batch_size": 64, "model": object(), "train": _of_the_notebook, "np": pickle, "Path": Path, "sys": sys}
    shell = SimpleNamespace(user_ns=known)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))

    def said(name: str, more: str = "") -> str:
        return hint("NameError", f"name {name!r} is not defined{more}")

    assert "programs of their own" in said("batch_size") and "-- --batch-size {batch_size}" in said("batch_size")
    assert "Define it, or import it, in this cell" in said("model")
    assert "Another cell defines the function `train`" in said("train") and "`from mine import train`" in said("train")
    assert "Begin the cell with `import pickle as np`." in said("np") and "`import sys`" in said("sys")
    assert f"`from {Path.__module__} import Path`" in said("Path")
    assert said("modle", ". Did you mean: 'model'?") == ""


def test_names_that_everybody_uses() -> None:
    """Each import is one that works."""
    assert hint("NameError", "name 'dist' is not defined") == "Begin the cell with `import torch.distributed as dist`."
    for name, line in advice._IMPORTS.items():
        found: dict[str, object] = {}
        exec(line, found)
        assert name in found, line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("!nvidia-smi", "subprocess.run('nvidia-smi', shell=True)"),
        ("files = !ls -l", "subprocess.run('ls -l', shell=True)"),
        ("!python train.py", "`!` is the notebook's"),
        ("%pip install tqdm", "Run `%pip install tqdm` in a cell of its own"),
        ("!pip install -q tqdm", "Run `!pip install -q tqdm` in a cell of its own"),
        ("%matplotlib inline", "plt.show() shows its figure under the cell"),
        ("%%time", "A cell takes one magic"),
        ("%timeit f()", "`%` is the notebook's"),
        ("nn.Linear?", "`?` is the notebook's"),
        ("x = = 1", ""),
        ("% (a, b)", ""),
        ("if x != y", ""),
        ("x = 5 % 3 +", ""),
        ("what?", "`?` is the notebook's"),
        ("print('why?'", ""),
    ],
)
def test_a_line_that_only_a_notebook_understands(tmp_path: Path, line: str, said: str) -> None:
    found = advice.about_line(line)
    assert said in found and bool(said) == bool(found)
    script = tmp_path / "cell.py"
    script.write_text(f"import os\nif True:\n    {line.strip()}\n")
    with pytest.raises(LaunchError, match="not valid Python, line 3") as raised:
        launch(script, 2)
    assert str(raised.value).endswith(f". {found}" if found else ")")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tqdm", "`%pip install tqdm`"),
        ("pandas", "`%pip install pandas`"),
        ("transformers", "`%pip install transformers`"),
        ("sklearn.metrics", "`%pip install scikit-learn`"),
        ("torch.distributd", ""),
        ("beside", "but not next to the notebook"),
        ("nowhere", "Save a cell there with `%%ranks --file nowhere.py --no-launch`"),
    ],
)
def test_a_module_that_a_cell_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    (tmp_path / "beside.py").write_text("")
    monkeypatch.chdir(tmp_path)
    cell = tmp_path / "runs" / "cell-0123abcd.py"
    cell.parent.mkdir()
    cell.write_text(f"{CELL}import {name}\n")
    traceback = f'Traceback (most recent call last):\n  File "{cell}", line 2, in <module>\n    import {name}\n'
    found = hint("ModuleNotFoundError", f"ModuleNotFoundError: No module named {name!r}", "", traceback)
    assert said in found and bool(said) == bool(found)
    if name in ("beside", "nowhere"):
        assert f"looked for {name}.py in {cell.parent}, where cells are saved, and among the installed" in found
    assert (f"sys.path.append({str(tmp_path)!r})" in found) == (name == "beside")


TABLE = tomllib.loads((Path(__file__).parent / "mistakes.toml").read_text())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("COURSE_HOME", str(home))
        yield home
        local.server.stop()


@pytest.mark.xdist_group("mistakes")  # one warm server for all
@pytest.mark.parametrize("engine", ["local", pytest.param("cold", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mistake", TABLE["mistake"], ids=lambda mistake: mistake["name"])
def test_what_a_learner_reads_first(
    home: Path, mistake: dict[str, Any], engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = home / "mistake.py"
    script.write_text(TABLE["head"] + mistake["program"])
    patience = Patience(total_s=100, deadlock_s=1 if mistake.get("hangs") else 100)
    options: dict[str, Any] = {"engine": engine, "device": "cpu", "timeout": patience}
    if mistake.get("silent"):
        run = launch(script, 2, **options)
        said = [line for line in capfd.readouterr().out.splitlines() if not line.startswith("rank ")]
        placed, ended = said
        assert placed.startswith("2 ranks on the CPU") and ended.startswith("✓ 2 ranks"), "and no warning"
        printed = "".join(Path(rank.log).read_text() for rank in run.ranks).strip()
        assert re.fullmatch(mistake["prints"], printed.replace("\n\n", "\n")), printed
        return
    with pytest.raises(RankError) as raised:
        launch(script, 2, quiet=True, **options)
    first, *rest = str(raised.value).splitlines()
    # On a busy machine the second rank may not have failed yet when the launch ends.
    expected = mistake["first"].replace("all 2 ranks failed", "(all 2 ranks failed|rank [01] failed first)")
    assert re.match(expected, first), str(raised.value)
    assert (raised.value.run.outcome == "deadlock") == mistake.get("hangs", False)
    if "help" in mistake:
        assert re.search(mistake["help"], rest[0]), f"the help isn't the second line: {raised.value}"
    elif not mistake.get("own_words"):
        assert raised.value.disagreement == first, "nobody says which rank, and where"


def test_the_table_is_about_what_people_really_do() -> None:
    threads = [mistake["thread"] for mistake in TABLE["mistake"] if "thread" in mistake]
    assert len(TABLE["mistake"]) >= 45 and len(set(threads)) == len(threads) >= 35
    for mistake in TABLE["mistake"]:
        assert len(mistake["program"].strip().splitlines()) <= 15, mistake["name"]
        assert ("prints" in mistake) == mistake.get("silent", False) != ("first" in mistake), mistake["name"]
    assert all(re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", thread) for thread in threads)
