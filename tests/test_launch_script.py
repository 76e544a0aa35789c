# ruff: noqa: F811 - fixtures are imported by their names
"""A script on ranks is an ordinary program: however it was started, it finds what `python script.py` and torchrun would
give it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from kernels import Kernel, close_shared_kernel, kernel, own_kernel  # noqa: F401
from test_launch_table import ENGINES, line_of, ranks

# --- what a script finds ----------------------------------------------------------------------------------------------

LOOK = """import json, os, signal, sys
__doc__ = "set by hand"
from course_utils.rank import report
main = sys.modules["__main__"]
class Thing:
    pass
import pickle, inspect
report(
    path0=sys.path[0], argv=sys.argv, cwd=os.getcwd(), name=__name__, file=__file__,
    main=main.__dict__ is globals(),
    stdin=sys.stdin.read(), pickled=type(pickle.loads(pickle.dumps(Thing()))) is Thing,
    module=Thing.__module__, source=inspect.getsource(Thing),
    handler=signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    term=int(signal.getsignal(signal.SIGTERM)),
    hup=int(signal.getsignal(signal.SIGHUP)), quit=int(signal.getsignal(signal.SIGQUIT)),
    child=int(signal.getsignal(signal.SIGCHLD)),
    blocked=[int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    builtins=type(__builtins__).__name__, package=str(__package__), spec=str(__spec__),
    globals=sorted(k for k in globals() if k.startswith("__")),
    home="COURSE_HOME" in os.environ,
    ours=[k for k in os.environ if k.startswith("COURSE_") and ("FD" in k or "PARENT" in k or "PATH" in k)],
    open=[os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd")
          if os.path.exists(f"/proc/self/fd/{fd}")],
)
"""


BACKGROUND = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
)  # what a shell without job control, and nohup, let a program in the background ignore


def _as_in_a_terminal() -> None:
    for sig in BACKGROUND:
        signal.signal(sig, signal.SIG_DFL)


def test_a_script_finds_what_python_gives_it(kernel: Kernel, tmp_path: Path) -> None:
    """Warm and cold, compared with the same file run by `python script.py`."""
    for engine in ("local", "cold"):
        got = kernel.run(ranks(engine, LOOK, "-- --lr 0.1 'two words'"))
        assert got.error is None, got.error
        seen = kernel.ask("run.ranks[1].records[0]")
        script, folder = kernel.ask("(run.script, run.path)")
        # It has its log and the file for its stack, and nothing of the notebook's.
        assert sorted(seen.pop("open")) == sorted(
            [
                "/dev/null",
                f"{folder}/rank1.log",
                f"{folder}/rank1.log",
                f"{folder}/rank1.place",
                f"{folder}/rank1.stack",
            ]
        )
        del seen["time"]
        # Python inherits what `nohup`, or `&` in a script, ignores; ranks belong to a kernel, and do not.
        plain = subprocess.run(
            [sys.executable, script, "--lr", "0.1", "two words"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=kernel.work,
            env={**os.environ, "COURSE_HOME": "x", "PYTHONPATH": str(ROOT)},
            preexec_fn=_as_in_a_terminal,
        )
        expected = json.loads(plain.stdout.split("report ", 1)[1])
        del expected["open"]
        assert seen == expected, engine
        assert seen["path0"] == str(Path(script).parent) and seen["argv"] == [script, "--lr", "0.1", "two words"]


@pytest.fixture
def background_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel of a JupyterLab that a script started with `nohup jupyter lab &`."""
    before = {sig: signal.signal(sig, signal.SIG_IGN) for sig in BACKGROUND}
    try:
        kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
    yield kernel
    kernel.close()


def test_ranks_of_a_kernel_in_the_background_are_ordinary(background_kernel: Kernel) -> None:
    """They don't inherit ignored signals, and an interrupt still reaches the kernel and its launches."""
    kernel = background_kernel
    assert kernel.ask("int(__import__('signal').getsignal(__import__('signal').SIGQUIT))") == 1, (
        "this kernel ignores nothing: the test shows nothing"
    )
    kernel.warm()
    for engine in ("local", "cold"):
        got = kernel.run(ranks(engine, LOOK))
        assert got.error is None, got.error
        for seen in kernel.ask("[rank.records[0] for rank in run.ranks]"):
            assert (seen["handler"], seen["term"], seen["hup"], seen["quit"], seen["child"], seen["blocked"]) == (
                True,
                0,
                0,
                0,
                0,
                [],
            ), engine
        kernel.start(ranks(engine, "import time\nprint('here', flush=True)\ntime.sleep(600)"))
        kernel.wait_for("here")
        kernel.interrupt()
        got = kernel.finish(30)
        assert got.error and got.error[0] == "KeyboardInterrupt", got.error
    kernel.start("print('here', flush=True); import time; time.sleep(600)")
    kernel.wait_for("here")
    kernel.interrupt()
    got = kernel.finish(30)
    assert got.error and got.error[0] == "KeyboardInterrupt", got.error


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_that_a_script_starts(kernel: Kernel, engine: str) -> None:
    """Forked and spawned workers, `mp.spawn`, a process pool: all find the script's classes, and the guard keeps them
    from running the script again."""
    script = """import os, sys
import torch, torch.multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor
from torch.utils.data import DataLoader, Dataset
from course_utils.rank import report

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return i * i

def work(i, folder):
    open(os.path.join(folder, f"{os.environ['RANK']}-{i}"), "w").close()

def cube(x):
    return x ** 3

if __name__ == "__main__":
    print("once")
    for method in ("fork", "spawn"):
        batches = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=method)
        report(method=method, sum=sum(int(b.sum()) for b in batches))
    mp.spawn(work, args=(os.environ["TMPDIR"],), nprocs=1)
    report(spawned=sorted(n for n in os.listdir(os.environ["TMPDIR"]) if n.startswith(os.environ["RANK"] + "-")))
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        report(cubes=list(pool.map(cube, [1, 2, 3])))
"""
    got = kernel.run(ranks(engine, script))
    assert got.error is None, got.error
    assert kernel.ask("run.values('sum')") == [140] * 4
    assert kernel.ask("run.values('spawned')") == [["0-0"], ["1-0"]]
    assert kernel.ask("run.values('cubes')") == [[1, 8, 27]] * 2
    assert got.text.count("once") == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_the_end_of_a_script_is_pythons(kernel: Kernel, engine: str) -> None:
    """Python waits for threads, then runs exit functions, and everything printed is there."""
    script = """import atexit, ctypes, sys, threading, time
libc = ctypes.CDLL(None)
atexit.register(lambda: (libc.printf(b" and from C"), print("last, from Python", end="")))  # neither with a newline
atexit.register(print, "exit function")
def late():
    time.sleep(0.3)
    print("thread")
threading.Thread(target=late).start()
sys.stdout.write("script")
sys.stdout.write(" ends\\n")
"""
    got = kernel.run(ranks(engine, script, n=1))
    assert got.error is None, got.error
    words = ["script ends", "thread", "exit function"]
    assert re.findall("|".join(words), got.text) == words, got.text
    assert "last, from Python" in got.text and " and from C" in got.text


def test_a_module_kept_by_one_cell_is_imported_by_the_next(kernel: Kernel) -> None:
    got = kernel.run("%%ranks --file helper_of_mine.py --no-launch\nanswer = 41")
    assert got.error is None and "helper_of_mine.py" in got.text, got.error
    cell = ranks(
        "local", "import helper_of_mine\nfrom course_utils.rank import report\nreport(answer=helper_of_mine.answer)"
    )
    assert kernel.run(cell).error is None
    assert kernel.ask("run.values('answer')") == [41, 41]
    kernel.run(
        "%%ranks --file helper_of_mine.py --no-launch\nanswer = 42"
    )  # edited: the next launch must see it, the server must not keep the old one
    assert kernel.run(cell).error is None
    assert kernel.ask("run.values('answer')") == [42, 42]


def test_tracebacks_show_the_lines_that_ran(kernel: Kernel) -> None:
    """Edit a cell and run it again, then run an earlier version once more. Line numbers are those of the cell."""
    first = ranks("local", "import os\n\nfor i in range(3):\n    assert i < 2, 'first version'\n")
    second = ranks("local", "import os\n# a new line\n\nassert os is None, 'second version'\n")
    for cell, source in (
        (first, "assert i < 2, 'first version'"),
        (second, "assert os is None, 'second version'"),
        (first, "assert i < 2, 'first version'"),
    ):
        got = kernel.run(cell)
        assert got.error and f"line {line_of(cell, 'assert')}\n    {source}" in got.error[1], got.error


def test_an_exception_that_cannot_be_printed(kernel: Kernel) -> None:
    script = "class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError('no words')\nraise Odd()\n"
    got = kernel.run(ranks("local", script))
    assert got.error and got.error[0] == "RankError" and "Odd" in got.error[1], got.error


# --- variables --------------------------------------------------------------------------------------------------------

DIFFER = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TMPDIR",
    "COURSE_RUN_DIR",
    "COURSE_LAUNCH_TMP",
}


def test_all_engines_give_ranks_the_same_variables(kernel: Kernel) -> None:
    """Names, and values apart from addresses and identifiers, are those of torchrun."""
    script = """import json, os
from course_utils.rank import report
report(env=json.dumps(dict(os.environ)))
"""
    seen = {}
    for engine in ("local", "cold", "torchrun"):
        got = kernel.run(ranks(engine, script))
        assert got.error is None, got.error
        seen[engine] = [json.loads(text) for text in kernel.ask("run.values('env')")]
    for rank in (0, 1):
        peer = seen["torchrun"][rank]
        assert peer["RANK"] == str(rank) and len([k for k in peer if k.startswith("TORCHELASTIC_")]) >= 6
        for engine in ("local", "cold"):
            mine = seen[engine][rank]
            assert set(mine) - DIFFER == set(peer) - DIFFER, (engine, set(mine) ^ set(peer))
            assert {k for k in DIFFER if k.startswith(("MASTER", "TORCH"))} <= set(mine)
            assert {k: v for k, v in mine.items() if k not in DIFFER} == {
                k: v for k, v in peer.items() if k not in DIFFER
            }, engine
    ports = {seen[engine][0]["MASTER_PORT"] for engine in seen}
    assert len(ports) == 3, "a fixed port"


def test_what_the_kernel_leaks_is_kept_from_ranks(own_kernel: Kernel) -> None:
    own_kernel.run(
        "import os\n"
        "os.environ.update(SLURM_PROCID='3', PMI_RANK='1', RANK='7', WORLD_SIZE='9', MASTER_PORT='1', "
        "LOCAL_RANK='5', TORCHELASTIC_RUN_ID='old')\n"
        "leaks = [k for k in os.environ if k.startswith('JPY_')] + ['MPLBACKEND' in os.environ]"
    )
    assert own_kernel.ask("leaks")[0].startswith("JPY_"), "the kernel leaks nothing: the test shows nothing"
    own_kernel.run("%load_ext course_utils")
    got = own_kernel.run(
        ranks(
            "local", "import json, os\nfrom course_utils.rank import report\nreport(env=json.dumps(dict(os.environ)))"
        )
    )
    assert got.error is None, got.error
    env = json.loads(own_kernel.ask("run.values('env')[0]"))
    assert not [k for k in env if k.startswith(("JPY_", "SLURM_", "PMI"))]
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["MPLBACKEND"]) == ("0", "2", "0", "Agg")
    assert env["TORCHELASTIC_RUN_ID"] != "old" and env["MASTER_PORT"] != "1"


def test_changes_of_the_environment_take_effect(kernel: Kernel, tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import json, os\nfrom course_utils.rank import report\nimport torch, torch.distributed as dist, time\n"
        "import importlib.util\n"
        "extra = __import__('module_by_path').answer if importlib.util.find_spec('module_by_path') else None\n"
        "report(mine=os.environ.get('MINE'), other=os.environ.get('OTHER'), debug=str(dist.get_debug_level()), "
        "threads=torch.get_num_threads(),\n"
        "       zone=time.tzname[0], extra=extra, tmp=os.environ['TMPDIR'])\n"
    )
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "module_by_path.py").write_text("answer = 42\n")
    start = f"import os\nrun = launch({str(script)!r}, 1, "

    def launched(settings: str) -> dict[str, object]:
        got = kernel.run(start + settings + ")")
        assert got.error is None, got.error
        found = kernel.ask("{**run.ranks[0].records[0], 'engine': run.engine}")
        return {**found, "text": got.text}

    kernel.run("import os\nos.environ['MINE'] = 'from the kernel'; os.environ['OTHER'] = 'kernel'")
    got = launched("env={'OTHER': 'argument', 'TZ': 'XYZ+3'}")
    assert (got["mine"], got["other"], got["zone"], got["engine"]) == ("from the kernel", "argument", "XYZ", "warm")
    kernel.run("del os.environ['MINE']")
    got = launched("env={'OTHER': None}")
    assert (got["mine"], got["other"], got["engine"]) == (None, None, "warm")
    kernel.run("del os.environ['OTHER']")
    # Read by torch when it is imported, but we can set them again.
    got = launched("env={'TORCH_DISTRIBUTED_DEBUG': 'DETAIL', 'OMP_NUM_THREADS': '2'}")
    assert (got["debug"], got["threads"], got["engine"]) == ("DebugLevel.DETAIL", 2, "warm")
    got = launched("threads=1")
    assert (got["debug"], got["threads"], got["engine"]) == ("DebugLevel.OFF", 1, "warm")
    # Read when Python or torch starts: a new process, and the reason in a line.
    got = launched(f"env={{'PYTHONPATH': {str(tmp_path / 'lib')!r}, 'TORCH_LOGS': 'dynamo'}}")
    assert (got["extra"], got["engine"]) == (42, "cold")
    assert "Cold start, a few seconds slower: torch was imported with another value of PYTHONPATH, TORCH_LOGS." in str(
        got["text"]
    )


def test_the_compiler_is_switched_off_and_on_without_a_new_python(kernel: Kernel, tmp_path: Path) -> None:
    """Dynamo reads it as it's imported, which the warm server has done."""
    script = tmp_path / "compiles.py"
    script.write_text(
        "import torch\nfrom course_utils.rank import report\nseen = []\n"
        "def backend(graph, inputs):\n    seen.append(1)\n    return graph.forward\n"
        "y = torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))\n"
        "report(compiled=len(seen), y=y.item())\n"
    )
    for off, compiled in (("'1'", 0), ("'0'", 1), ("'1'", 0), ("None", 1)):
        got = kernel.run(f"run = launch({str(script)!r}, 1, env={{'TORCH_COMPILE_DISABLE': {off}}})")
        assert got.error is None, got.error
        assert kernel.ask("(run.value('compiled'), run.value('y'), run.engine)") == (compiled, 2, "warm"), off


def test_temporary_files_go_where_the_notebook_says(kernel: Kernel, tmp_path: Path) -> None:
    script = (
        "import os\nfrom course_utils.rank import report\nreport(tmp=os.environ['TMPDIR'])\n"
        "open(os.path.join(os.environ['TMPDIR'], 'x'), 'w').close()"
    )
    for chosen, expected in ((str(tmp_path), tmp_path), (str(tmp_path / "missing"), kernel.tmp)):
        kernel.run(f"import os; os.environ['TMPDIR'] = {chosen!r}")
        assert kernel.run(ranks("local", script)).error is None
        kernel.run(f"os.environ['TMPDIR'] = {str(kernel.tmp)!r}")
        assert {Path(folder).parents[1] for folder in kernel.ask("run.values('tmp')")} == {expected}
    assert len(list(tmp_path.iterdir())) == 1, "each launch made a folder"


def test_a_wrong_value_of_a_variable_is_the_ranks_error(kernel: Kernel) -> None:
    """As in a new process, where importing torch.distributed would raise it. OpenMP ignores what it can't read."""
    kernel.run("from pathlib import Path\nPath('empty.py').write_text('import torch.distributed')")
    got = kernel.run("launch('empty.py', 1, env={'TORCH_DISTRIBUTED_DEBUG': 'LOUD'})")
    assert got.error and got.error[0] == "RankError" and "TORCH_DISTRIBUTED_DEBUG" in got.error[1], got.error
    assert kernel.run("launch('empty.py', 1, env={'OMP_NUM_THREADS': 'many'})").error is None


def test_the_working_folder_is_the_notebooks(kernel: Kernel) -> None:
    kernel.run("import os\nos.makedirs('elsewhere', exist_ok=True)\n%cd -q elsewhere")
    got = kernel.run(ranks("local", "import os\nprint(os.getcwd())", n=1))
    assert f"rank 0 | {kernel.work / 'elsewhere'}" in got.text
    kernel.run("os.rmdir(os.getcwd())")
    got = kernel.run(ranks("local", "print('never')", n=1))
    assert got.error and got.error[0] == "LaunchError" and "working folder" in got.error[1], got.error
    kernel.run(f"%cd -q {kernel.work}")


# --- a fresh process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_random_numbers_are_fresh_on_each_rank_and_launch(kernel: Kernel, engine: str) -> None:
    script = """import random, tempfile, uuid
import numpy, torch
from course_utils.rank import report
report(python=random.random(), numpy=float(numpy.random.rand()), torch=torch.rand(1).item(), seed=torch.initial_seed(),
       default=float(numpy.random.default_rng().random()), uuid=str(uuid.uuid4()),
       name=next(tempfile._get_candidate_names()))
"""
    seen: dict[str, list[object]] = {}
    for _ in range(2):
        assert kernel.run(ranks(engine, script)).error is None
        for record in kernel.ask("[r.records[0] for r in run.ranks]"):
            for name, value in record.items():
                seen.setdefault(name, []).append(value)
    assert {name: len(set(values)) for name, values in seen.items()} == dict.fromkeys(seen, 4), seen


def test_what_the_kernel_did_with_torch_has_no_effect(own_kernel: Kernel) -> None:
    """A thread pool in the kernel makes a fork of it hang in its first matrix product, so ranks are not forked from
    it."""
    got = own_kernel.run(
        "%load_ext course_utils\nimport torch\ntorch.set_num_threads(2)\n"
        "a = torch.randn(700, 700, requires_grad=True)\n(a @ a).sum().backward()\ntorch.manual_seed(0)\n"
        "torch.set_default_dtype(torch.float64)\nprint(torch.get_num_threads())"
    )
    assert got.text.strip() == "2", got.error
    script = """import torch, torch.distributed as dist
from course_utils.rank import report
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
loss = (torch.randn(300, 300) @ torch.randn(300, 300)).mean() + model(torch.randn(64, 300)).square().mean()
loss.backward()
report(threads=torch.get_num_threads(), dtype=str(loss.dtype), seed=torch.initial_seed())
dist.destroy_process_group()
"""
    got = own_kernel.run(ranks("local", script, "--timeout 60 --threads 2"))
    assert got.error is None, got.error
    assert own_kernel.ask("run.engine") == "warm"
    assert (
        own_kernel.ask("run.values('threads')") == [2, 2]
        and own_kernel.ask("run.values('dtype')") == ["torch.float32"] * 2
    )
    assert 0 not in own_kernel.ask("run.values('seed')")


def test_a_launch_from_a_forked_process_and_from_a_thread(own_kernel: Kernel) -> None:
    """A child of the kernel has no server of its own. It must neither use the kernel's nor end it."""
    own_kernel.warm()
    got = own_kernel.run(
        "from pathlib import Path\nPath('one.py').write_text('from course_utils.rank import report; report(one=1)')\n"
        "import multiprocessing, threading\ndef in_child(queue):\n"
        "    queue.put((local.server(), launch('one.py', 1, engine='cold', quiet=True).value('one')))\n"
        "context = multiprocessing.get_context('fork'); queue = context.SimpleQueue()\n"
        "child = context.Process(target=in_child, args=(queue,)); child.start(); found = queue.get(); child.join()\n"
        "results = []\n"
        "thread = threading.Thread(target=lambda: results.append(launch('one.py', 1, quiet=True).value('one'))); "
        "thread.start(); thread.join()"
    )
    assert got.error is None, got.error
    assert own_kernel.ask("found") == (None, 1) and own_kernel.ask("results") == [1]
    assert own_kernel.ask("local.server()") == own_kernel.server
