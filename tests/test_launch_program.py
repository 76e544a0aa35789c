# ruff: noqa: F811 - fixtures are imported by their names
"""A program does the same here as under torchrun, warm and cold: what it leaves, what it sets, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from kernels import Kernel, close_shared_kernel, kernel, limit, own_kernel  # noqa: F401
from test_launch_table import ALL_ENGINES, ENGINES, GROUP, ranks

from course_utils.launching import local
from course_utils.launching.program import environment, module_file
from course_utils.launching.request import Request
from course_utils.launching.supervisor.termination import HANDLER_S

# --- what it imports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_a_helper_that_was_edited_a_moment_ago_is_seen(kernel: Kernel, tmp_path: Path, engine: str) -> None:
    """Python itself takes bytecode for fresh whose source has the same size and was changed in the same second."""
    program, helper = tmp_path / "program.py", tmp_path / "edited.py"
    program.write_text("import edited\nprint('got', edited.A)\n")
    for value in (1, 2, 3):
        helper.write_text(f"A = {value}\n")
        os.utime(helper, (now := int(time.time()), now))  # all three in one second, or so it looks
        cell = kernel.run(f"launch({str(program)!r}, 1, engine={engine!r})")
        assert cell.error is None and f"got {value}" in cell.text, cell.text


def test_bytecode_of_a_file_that_nobody_edits_is_kept(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import settled\nprint('got', settled.A)\n")
    (tmp_path / "settled.py").write_text("A = 1\n")
    os.utime(tmp_path / "settled.py", (time.time() - 60,) * 2)
    for _ in range(2):
        cell = kernel.run(f"launch({str(tmp_path / 'program.py')!r}, 1)")
        assert cell.error is None and "got 1" in cell.text, cell.text
    assert [path.name.partition(".")[0] for path in (tmp_path / "__pycache__").iterdir()] == ["settled"]


# --- the end ----------------------------------------------------------------------------------------------------------

LEFT_OPEN = """import bz2, csv, gzip, io, json, os, zipfile
import kept_files
where = os.environ["WHERE"] + "/" + os.environ.get("RANK", "0")
f = open(where + ".csv", "w"); csv.writer(f).writerow([1, 2])
def cycle(): return f
text = gzip.open(where + ".gz", "wt"); text.write("packed" * 100)
raw = bz2.BZ2File(where + ".bz2", "w"); raw.write(b"small" * 100)
archive = zipfile.ZipFile(where + ".zip", "w"); archive.writestr("a.txt", "inside")
print("to a file", file=open(where + ".txt", "w"))
kept_files.log = open(where + ".module", "w"); kept_files.log.write("of a module")
both = open(where + ".both", "w+b"); both.write(b"read and write")
class Journal:
    def __init__(self):
        self.file, self.myself = open(where + ".journal", "w"), self
    def __del__(self):
        self.file.write(json.dumps("last words"))
        print("finalised")
journal = Journal()
"""


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_files_that_are_left_open_are_written(kernel: Kernel, tmp_path: Path, engine: str) -> None:
    """The output is byte for byte that of `python script.py`."""
    (tmp_path / "left.py").write_text(LEFT_OPEN)
    (tmp_path / "kept_files.py").write_text("log = None\n")
    for name in ("plain", "ranks"):
        (tmp_path / name).mkdir()
    plain = subprocess.run(
        [sys.executable, tmp_path / "left.py"],
        env={**os.environ, "WHERE": str(tmp_path / "plain")},
        capture_output=True,
        text=True,
    )
    assert plain.returncode == 0 and plain.stdout == "finalised\n", plain.stderr
    got = kernel.run(
        f"run = launch({str(tmp_path / 'left.py')!r}, 2, engine={engine!r}, env={{'WHERE':"
        f" {str(tmp_path / 'ranks')!r}}})"
    )
    assert got.error is None and got.text.count("finalised") == 2, (got.error, got.text)

    def contents(folder: str, rank: int) -> dict[str, bytes]:
        return {path.suffix: read(path) for path in (tmp_path / folder).glob(f"{rank}.*")}

    assert len(contents("plain", 0)) == 8
    for rank in (0, 1):
        assert contents("ranks", rank) == contents("plain", 0), rank


def read(path: Path) -> bytes:
    """The contents of a file, without the timestamps in packed files."""
    import bz2
    import gzip
    import zipfile

    if path.suffix == ".zip":
        return zipfile.ZipFile(path).read("a.txt")
    return (
        gzip.decompress(path.read_bytes())
        if path.suffix == ".gz"
        else bz2.decompress(path.read_bytes())
        if path.suffix == ".bz2"
        else path.read_bytes()
    )


@pytest.mark.timed
@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_failed_finishes_its_exit_handlers(kernel: Kernel, engine: str) -> None:
    """Like an upload at exit. One that only waits for other ranks, or for a thread, holds up nobody, and an interrupt
    ends it."""
    late = (
        "import atexit, os, time\ndef finish():\n    time.sleep({seconds})\n"
        "    open(os.environ['COURSE_RUN_DIR'] + '/late', 'w').write('all of it')\n"
    )
    late += "atexit.register(finish)\nif os.environ['RANK'] == '0':\n    raise ValueError('boom')\ntime.sleep(600)\n"
    got = kernel.run(ranks(engine, late.format(seconds=4)))
    assert got.error and got.error[1].startswith("rank 0 failed first: ValueError: boom"), got.error
    assert kernel.ask("open(run.path + '/late').read()") == "all of it"
    assert "rank 1 is: `time.sleep(600)`, line 9" in got.error[1], got.error[1]
    waits = (
        GROUP + "import atexit\natexit.register(dist.barrier)\nif rank == 0:\n    raise ValueError('boom')\nimport"
        " time\ntime.sleep(600)\n"
    )
    got = kernel.run(ranks(engine, waits))
    assert got.error and got.error[1].startswith("rank 0 failed first: ValueError: boom") and got.seconds < HANDLER_S, (
        got.seconds
    )
    kernel.start(ranks(engine, "print('begun')\n" + late.format(seconds=600)))
    kernel.wait_for("begun")
    time.sleep(3.0)
    began = time.monotonic()
    kernel.interrupt()
    kernel.finish()
    assert time.monotonic() - began < HANDLER_S


SAVES_AT_THE_END = """import os, signal, sys, time
def save(number, frame):
    time.sleep(1.5)
    open(os.path.join(os.environ["COURSE_RUN_DIR"], f"saved{os.environ['RANK']}"), "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(os.path.join(os.environ["COURSE_RUN_DIR"], f"ready{os.environ['RANK']}"), "w").close()
if os.environ["RANK"] == "1":
    while not os.path.exists(os.path.join(os.environ["COURSE_RUN_DIR"], "ready0")):
        time.sleep(0.01)
    print("both are ready", flush=True)
"""


@pytest.mark.timed
@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_a_handler_of_sigterm_has_time_to_save(kernel: Kernel, engine: str) -> None:
    """When another rank fails, and when the user stops the launch. torchrun gives 30 s."""
    saved = "sorted(p.name for p in __import__('pathlib').Path(run.path).glob('saved*'))"
    got = kernel.run(ranks(engine, SAVES_AT_THE_END + "    raise ValueError('a neighbour')\ntime.sleep(600)\n"))
    assert got.error and "rank 1 failed first: ValueError: a neighbour" in got.error[1], got.error
    assert kernel.ask(saved) == ["saved0"]
    kernel.start(ranks(engine, SAVES_AT_THE_END + "time.sleep(600)\n"))
    kernel.wait_for("both are ready")
    kernel.interrupt()
    got = kernel.finish()
    assert got.error and got.error[0] == "KeyboardInterrupt" and kernel.ask(saved) == ["saved0", "saved1"]


@pytest.mark.timed
def test_a_handler_that_is_never_called_costs_seconds_only(kernel: Kernel) -> None:
    """A rank inside a C call doesn't notice SIGTERM. A second interrupt ends one that takes its time."""
    deaf = """import ctypes, os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    raise ValueError("gone")
mutex = ctypes.create_string_buffer(64)
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)     # the second time it waits for ever, in C
"""
    got = kernel.run(ranks("local", deaf))
    assert got.error and "ValueError: gone" in got.error[1] and got.seconds < HANDLER_S, got.seconds
    slow = SAVES_AT_THE_END.replace("time.sleep(1.5)", "time.sleep(600)") + "time.sleep(600)\n"
    kernel.start(ranks("local", slow))
    kernel.wait_for("both are ready")
    began = time.monotonic()
    kernel.interrupt()
    time.sleep(1.0)
    kernel.interrupt()
    got = kernel.finish()
    assert got.error and got.error[0] == "KeyboardInterrupt" and time.monotonic() - began < HANDLER_S


# --- the environment --------------------------------------------------------------------------------------------------

SETS = """import os
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
os.environ.setdefault("TORCH_LOGS", "+dynamo")
import logging
import torch, torch.distributed as dist
from course_utils.rank import report
dist.init_process_group("gloo")
report(debug=str(dist.get_debug_level()), level=logging.getLogger("torch._dynamo").level)
dist.barrier()    # gloo lets nobody leave who is still being connected to
dist.destroy_process_group()
"""


@pytest.mark.parametrize("engine", ["auto", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_variables_that_a_script_sets_before_torch_take_effect_on_every_rank(kernel: Kernel, engine: str) -> None:
    got = kernel.run(ranks(engine, SETS))
    assert got.error is None, got.error
    assert kernel.ask("run.values('debug')") == ["DebugLevel.DETAIL"] * 2 and kernel.ask("run.values('level')") == [
        10,
        10,
    ]
    if engine == "auto":
        assert kernel.ask("run.engine") == "cold"
        assert (
            "slower: the script sets TORCH_DISTRIBUTED_DEBUG, TORCH_LOGS, which torch reads when it is imported."
            in got.text
        )


def sets(tmp_path: Path, text: str) -> tuple[set[str], set[str]]:
    script = tmp_path / "script.py"
    script.write_text(text)
    found = environment(script, tmp_path)
    return found.before_torch, found.after_torch


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("import os\nos.environ['A'] = '1'\nimport torch\nos.environ['B'] = '1'", {"A"}, {"B"}),
        ("import os as o, torch.nn as nn\no.environ['A'] = '1'", set(), {"A"}),
        ("from os import environ as e\ne['A'] = '1'\ne |= {'B': '2'}\ndel e['C']", {"A", "B", "C"}, set()),
        ("import os\nenv = os.environ\nenv.update(A='1', **{'B': '2'})\nenv.pop('C', None)", {"A", "B", "C"}, set()),
        ("import os\nos.putenv('A', '1')\nos.environ['A'], x = '1', 2", {"A"}, set()),
        (
            "import os\nfor k, v in {'A': '1', 'B': '2'}.items():\n    os.environ[k] = v\nimport torch",
            {"A", "B"},
            set(),
        ),
        (
            (
                "import os\ndef main():\n    import torch\nif __name__ == '__main__':\n    os.environ['A'] = '1'\n"
                "    main()"
            ),
            {"A"},
            set(),
        ),
        ("import os\ntry:\n    import torch\nexcept ImportError:\n    raise\nos.environ['A'] = '1'", set(), {"A"}),
        (
            "import os\nmine = dict(os.environ)\nmine['A'] = '1'\nprint(os.environ['B'], os.environ.get('C'))",
            set(),
            set(),
        ),
        ("import os\nprint('os.environ[\"A\"] = 1')  # os.environ['B'] = 1", set(), set()),
        ("import helper\nimport torch", {"H"}, set()),
        ("from package.inner import x\nimport torch", {"P"}, set()),
    ],
)
def test_what_a_script_sets_is_read_from_its_text(tmp_path: Path, text: str, before: set[str], after: set[str]) -> None:
    (tmp_path / "helper.py").write_text("import os\nos.environ['H'] = '1'\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("from . import deeper\nx = 1\n")
    (tmp_path / "package" / "deeper.py").write_text("import os\nos.environ['P'] = '1'\n")
    assert sets(tmp_path, text) == (before, after)


def test_a_variable_that_matters_to_no_import_leaves_the_start_warm(kernel: Kernel) -> None:
    """So does one that's set after torch was imported, as in an ordinary program. By then only what the compiler reads
    later counts."""
    import_first = "import torch\nimport os\n"
    for text, engine in (
        ("import os\nos.environ['MY_OWN'] = '1'\nimport torch", "warm"),
        (import_first + "os.environ['OMP_NUM_THREADS'] = '1'", "warm"),
        (import_first + "os.environ['TORCHINDUCTOR_MAX_AUTOTUNE'] = '1'", "cold"),
    ):
        assert kernel.run(ranks("auto", text, n=1)).error is None
        assert kernel.ask("run.engine") == engine, text


@pytest.mark.parametrize("engine", ["auto", "cold"])
def test_a_module_beside_the_script_hides_pythons_own(kernel: Kernel, tmp_path: Path, engine: str) -> None:
    (tmp_path / "statistics.py").write_text("mine = 'my own statistics'\n")
    (tmp_path / "main.py").write_text("import statistics\nprint(statistics.mine)\n")
    got = kernel.run(f"run = launch({str(tmp_path / 'main.py')!r}, 1, engine={engine!r})")
    assert got.error is None and "my own statistics" in got.text, (got.error, got.text)
    if engine == "auto":
        assert "slower: statistics.py in the script's folder hides a module that is already imported." in got.text
    # Not what Python itself has imported before any script, and not what only has a similar name.
    (tmp_path / "statistics.py").rename(tmp_path / "statistics_of_mine.py")
    for name in ("os.py", "statistics.txt", "code"):
        (tmp_path / name).touch() if "." in name else (tmp_path / name).mkdir()
    (tmp_path / "main.py").write_text("import os\nprint(os.sep)\n")
    assert kernel.run(f"run = launch({str(tmp_path / 'main.py')!r}, 1)").error is None
    assert kernel.ask("run.engine") == "warm"


@pytest.mark.slow  # the compiler takes its time, twice
def test_what_is_compiled_is_kept_for_the_next_launch(kernel: Kernel, tmp_path: Path) -> None:
    """The course has one cache, outside the launch's own temporary folder."""
    script = tmp_path / "compiles.py"
    script.write_text(
        "import torch\nfrom course_utils.rank import report\nfrom torch._dynamo.utils import counters\n"
        "f = torch.compile(lambda x: (x * 3).relu() + 1)\nf(torch.ones(100))\n"
        "report(hits=counters['inductor']['fxgraph_cache_hit'] + counters['aot_autograd']['autograd_cache_hit'])\n"
    )
    hits = []
    for _ in range(2):
        got = kernel.run(f"run = launch({str(script)!r}, 1)")
        assert got.error is None, got.error
        hits.append(kernel.ask("run.value('hits')"))
    assert hits[0] == 0 and hits[1] >= 1, hits


def test_a_cache_of_ones_own_is_no_reason_for_a_cold_start(kernel: Kernel, tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "from torch._inductor.runtime.cache_dir_utils import cache_dir\nfrom course_utils.rank import report\n"
        "report(folder=cache_dir())\n"
    )
    for settings, folder in (
        ("", kernel.folder / "runs"),
        (f", env={{'TORCHINDUCTOR_CACHE_DIR': {str(tmp_path / 'mine')!r}}}", tmp_path / "mine"),
    ):
        got = kernel.run(f"run = launch({str(script)!r}, 1{settings})")
        assert got.error is None and kernel.ask("run.engine") == "warm", (got.error, got.text)
        assert Path(kernel.ask("run.value('folder')")).is_relative_to(folder)


# --- processes, stores and ports --------------------------------------------------------------------------------------

SPAWNS = """import os
import torch, torch.distributed as dist, torch.multiprocessing as mp
def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "{port}"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
def demo(rank, world_size):
    setup(rank, world_size)
    t = torch.ones(1)
    dist.all_reduce(t)
    print(f"process {{rank}} has {{t.item()}}")
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(demo, args=(2,), nprocs=2, join=True)
"""


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_a_tutorial_that_spawns_its_own_processes(kernel: Kernel, engine: str) -> None:
    got = kernel.run(ranks(engine, SPAWNS.format(port=free_port()), n=1))
    assert got.error is None, got.error
    assert "process 0 has 2.0" in got.text and "process 1 has 2.0" in got.text
    assert "Take that line out before you use torchrun" in got.text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_script_for_both_ways_meets_at_the_launchers_port(kernel: Kernel, engine: str) -> None:
    script = (
        'import os\nif "RANK" not in os.environ:\n    os.environ["MASTER_PORT"] = "29500"\n'
        + GROUP
        + "print('sum', t[0].item())\n"
    )
    got = kernel.run(ranks(engine, script))
    assert got.error is None and got.text.count("sum 2.0") == 2, (got.error, got.text)


def free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# --- starting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_a_module_is_run_as_python_does(kernel: Kernel, tmp_path: Path, engine: str) -> None:
    """`%ranks -m pkg.train`: its arguments, also while its package is imported, its package, its relative imports, its
    folder; compared with `python -m`."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("import sys\nargv = list(sys.argv)\n")
    (package / "model.py").write_text("size = 7\n")
    look = "import json, os, pickle, sys\nfrom . import argv\nfrom .model import size\nclass Thing: pass\n"
    look += "same = type(pickle.loads(pickle.dumps(Thing()))) is Thing\n"
    look += (
        "print('seen', json.dumps([size, argv, sys.argv, sys.path[0], __name__, __package__, __spec__.name, __file__,"
        " same]))\n"
    )
    (package / "train.py").write_text(look)
    (package / "__main__.py").write_text(look)
    (package / "broken.py").write_text("def f(:\n")
    plain = subprocess.run(
        [sys.executable, "-m", "pkg.train", "--lr", "0.1"], cwd=tmp_path, capture_output=True, text=True
    ).stdout.strip()
    assert plain.startswith("seen [7"), plain
    got = kernel.run(
        f"%cd -q {tmp_path}\n%ranks 2 -m pkg.train -o run --engine {engine} -- --lr 0.1\n%cd -q {kernel.work}"
    )
    assert got.error is None and got.text.count(plain) == 2, (got.error, got.text, plain)
    assert " -m pkg.train --lr 0.1" in kernel.ask("run.command")
    if engine != "local":
        return
    got = kernel.run(f"%cd -q {tmp_path}\nrun = launch(module='pkg', ranks=1)\n%cd -q {kernel.work}")
    assert got.error is None and '"pkg.__main__"' in got.text, got.error
    for call, words in (
        ("%ranks 2 -m pkg.missing", "there is no module pkg.missing"),
        ("launch(module='pkg.broken')", "broken.py is not valid Python, line 1"),
        ("launch(module='../pkg')", "is not the name of a module"),
        ("launch('a.py', module='pkg')", "name what to run"),
        ("launch()", "name what to run"),
        ("%%ranks 2 -m pkg.train\npass", "a cell and -m are two programs"),
        ("%ranks 2", "name what to run"),
    ):
        kernel.run(f"%cd -q {tmp_path}")
        got = kernel.run(call)
        assert got.error and got.error[0] == "LaunchError" and words in got.error[1], (call, got.error)
    kernel.run(f"%cd -q {kernel.work}")


def test_a_module_of_a_library_that_hangs_is_named_with_its_line(kernel: Kernel, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "pkg"
    package.mkdir(parents=True)
    (package / "train.py").write_text("import time\nprint('waits')\ntime.sleep(600)\n")
    kernel.run(f"%cd -q {package.parent}")
    got = kernel.run("launch(module='pkg.train', ranks=2, timeout=2)")
    kernel.run(f"%cd -q {kernel.work}")
    assert got.error and "rank 1 is: `time.sleep(600)`, line 3 of train.py" in got.error[1], got.error


def test_a_module_is_found_without_being_imported(tmp_path: Path) -> None:
    (tmp_path / "noisy").mkdir()
    (tmp_path / "noisy" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "noisy" / "train.py").write_text("")
    assert module_file("noisy.train", [str(tmp_path)]) == tmp_path / "noisy" / "train.py"
    assert module_file("noisy", [str(tmp_path)]) is None, "a package without __main__"
    assert module_file("json.tool", sys.path) is not None and module_file("math", sys.path) is None


def test_a_script_that_is_there_is_run_by_a_line(kernel: Kernel, tmp_path: Path) -> None:
    script = tmp_path / "train it.py"
    script.write_text("import sys\nprint('given', sys.argv[1:])\n")
    got = kernel.run(f"%ranks 1 '{script}' -o run -- --lr 0.1")
    assert got.error is None and "given ['--lr', '0.1']" in got.text, got.error


@pytest.mark.parametrize("engine", ENGINES)
def test_a_link_to_a_script_keeps_its_name(kernel: Kernel, tmp_path: Path, engine: str) -> None:
    """`__file__` is the link, and modules are found next to the file that it points to: as in `python link.py`."""
    for name in ("real", "links"):
        (tmp_path / name).mkdir()
    (tmp_path / "real" / "train.py").write_text(
        "import sys\nimport beside\nprint('seen', __file__, sys.path[0], beside.x)\n"
    )
    (tmp_path / "real" / "beside.py").write_text("x = 1\n")
    link = tmp_path / "links" / "train.py"
    link.symlink_to(tmp_path / "real" / "train.py")
    plain = subprocess.run([sys.executable, link], capture_output=True, text=True).stdout.strip()
    got = kernel.run(f"run = launch({str(link)!r}, 1, engine={engine!r})")
    assert got.error is None and plain in got.text and f"seen {link}" in plain, (got.error, got.text, plain)


def test_what_no_program_can_be_started_with_is_one_clear_error(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    start = f"launch({str(tmp_path / 'empty.py')!r}, 1, "
    for settings, words in (
        ("env={'LONG': 'x' * 200_000})", "the variable LONG has 195 KB"),
        ("env={'ZERO': 'a' + chr(0)})", "zero byte"),
        ("args=['a' + chr(0)])", "zero byte"),
    ):
        got = kernel.run(start + settings)
        assert got.error and got.error[0] == "LaunchError" and words in got.error[1], (settings, got.error)
    kernel.run("import os\nos.environ['LONG'] = 'x' * 200_000")
    for engine in ("auto", "cold"):
        got = kernel.run(start + f"engine={engine!r})")
        assert got.error and "the variable LONG has 195 KB" in got.error[1], got.error
        assert kernel.run(start + f"engine={engine!r}, env={{'LONG': None}})").error is None
    kernel.run("del os.environ['LONG']")


def test_ranks_that_cannot_be_started_say_why(tmp_path: Path) -> None:
    """Without a traceback of ours: here the launcher is missing; in real life it may be memory or disk space."""
    script = tmp_path / "empty.py"
    script.write_text("")
    outcome = answer(
        Request(
            str(script),
            [],
            1,
            dict(os.environ),
            str(tmp_path),
            str(tmp_path),
            10.0,
            str(ROOT),
            os.getpid(),
            launcher=["/no/such/launcher"],
        )
    )
    assert outcome["cause"] == "not started" and outcome["why"] == "No such file or directory: /no/such/launcher"
    outcome = answer(
        Request(
            str(script), [], 1, dict(os.environ), str(tmp_path / "gone"), str(tmp_path), 10.0, str(ROOT), os.getpid()
        )
    )
    assert outcome["cause"] == "not started" and "gone" in outcome["why"]


def answer(request: Request) -> dict[str, Any]:
    handle = local.start_cold(request)
    try:
        until = time.monotonic() + 60
        while (outcome := handle.wait(1.0)) is None:
            assert time.monotonic() < until
        return outcome
    finally:
        handle.close()


IMPORTS = """import os, signal
from course_utils.launching import local
from course_utils import launch
open("e.py", "w").close()"""


def test_an_import_that_was_killed_is_tried_again(own_kernel: Kernel) -> None:
    """Killed while the first launch waits for it, as the system does when memory is short."""
    got = own_kernel.run(f"""{IMPORTS}
waits = local.WarmServer._await_ready
def killed(self, seconds):
    os.kill(self._process.pid, signal.SIGKILL)
    return waits(self, seconds)
local.WarmServer._await_ready = killed
%load_ext course_utils
run = launch('e.py', 1)
local.WarmServer._await_ready = waits""")
    assert got.error is None and own_kernel.ask("run.engine") == "cold" and "ended early" in got.text, (
        got.error,
        got.text,
    )
    got = own_kernel.run("run = launch('e.py', 1)")
    assert got.error is None and own_kernel.ask("run.engine") == "warm", got.text


def test_an_import_that_takes_long_is_not_given_up(own_kernel: Kernel) -> None:
    own_kernel.run(f"{IMPORTS}\nlocal.READY_S = 0.01\n%load_ext course_utils")
    got = own_kernel.run("run = launch('e.py', 1)")
    assert got.error is None and own_kernel.ask("run.engine") == "cold" and "has taken more than" in got.text, (
        got.error,
        got.text,
    )
    got = own_kernel.run("local.READY_S = 120\nrun = launch('e.py', 1)")
    assert got.error is None and own_kernel.ask("run.engine") == "warm", got.text
