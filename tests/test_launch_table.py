# ruff: noqa: F811 - fixtures are imported by their names
"""What must hold when a notebook launches ranks: how programs, failures, hangs and interrupts end, and that nothing is
ever left behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
from conftest import ROOT
from kernels import Kernel, close_shared_kernel, kernel, limit, own_kernel  # noqa: F401

SLOW = pytest.mark.slow
ENGINES = ["local", pytest.param("cold", marks=SLOW)]
ALL_ENGINES = ["local", pytest.param("cold", marks=SLOW), pytest.param("torchrun", marks=SLOW)]
HANG_S = {"local": 3, "cold": 25, "torchrun": 35}  # until ranks that must first import torch are sure to hang

GROUP = """import os, signal, sys, time
import torch, torch.distributed as dist
from course_utils.rank import report
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.ones(4)
dist.all_reduce(t)
"""  # seven lines; the magic is line 1 of the cell


def ranks(engine: str, script: str, options: str = "", n: int = 2) -> str:
    return f"%%ranks {n} -o run --engine {engine} {options}\n{script}"


def line_of(cell: str, source: str) -> int:
    """The number of the only line in a cell that contains `source`."""
    found = [number for number, line in enumerate(cell.splitlines(), 1) if source in line]
    assert len(found) == 1, (source, found)
    return found[0]


# --- how a program ends -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """A program on ranks, and how its launch must end on each of these engines. In all words `{line:SOURCE}` is the
    number of the only line of the cell that contains SOURCE."""

    program: str
    engines: tuple[Any, ...] = tuple(ENGINES)
    ranks: int = 2
    options: str = ""
    error: str = ""  # a regular expression at which the message begins; empty where the launch ends well
    told: tuple[str, ...] = ()  # in the message, which is all that the notebook shows
    told_if_others_live: tuple[str, ...] = ()  # the same, but for torchrun, which ends the other ranks before they tell
    untold: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()  # by the cell
    unprinted: tuple[str, ...] = ()
    left: Mapping[str, object] = field(default_factory=dict)  # what the kernel answers when it's asked afterwards
    within_s: float = 0.0  # after a rank's last `report(at=...)`


OF_OURS = ("course_utils", "site-packages", "launch.py", "magic.py")  # frames that no message may show
SLEEPS_ON = """while not os.path.exists(os.path.join(os.environ["COURSE_RUN_DIR"], "rank{}.error.json")):
    time.sleep(0.001)
"""
FORKS = "import os, time\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n    {parent}\nelse:\n    {child}\n"
HOOK = (
    "import sys, traceback\ndef hook(kind, error, tb):\n    print('hook:', error, traceback.extract_tb(tb)[0].line)\n"
)
JOINED = GROUP + "print('joined')\nassert rank != 1, 'odd'\ndist.barrier()\n"
SEEN = "import sys\nsys.excepthook = lambda kind, error, tb: print('seen:', error, file=sys.stderr)\n"
AGAIN = "import os, sys\nif len(sys.argv) == 1:\n    os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
LOG_1 = "__import__('re').sub(r'^\\[Gloo\\] Rank 1 is .*\\n', '', run.log(1))"  # torch 2.10's gloo begins it

SCENARIOS = {
    # a rank fails
    "the rank that raised first is shown with its line": Scenario(
        GROUP
        + """def inner():
    report(at=time.time())
    raise ValueError("no more of this")
if rank == 1:
    inner()
dist.all_reduce(t)                     # its partner has gone: a broken connection
""",
        ("local", "cold", "torchrun"),
        error="rank 1 failed first: ValueError: no more of this",
        told=('line {line:raise ValueError}, in inner\n    raise ValueError("no more of this")',),
        told_if_others_live=("Afterwards, most likely because of it:\n  rank 0: ", "onnection"),
        left={"run.ranks[1].ended": "ValueError"},
        within_s=3,
    ),
    "first is told by time stamp, though its process ends later": Scenario(
        """import atexit, os, time
rank, there = int(os.environ["RANK"]), os.path.join(os.environ["COURSE_RUN_DIR"], "there")
if rank == 1:
    while not os.path.exists(there):  # on a busy machine the other rank may still be starting
        time.sleep(0.001)
    atexit.register(time.sleep, 0.4)
    raise KeyError("first")
open(there, "w").close()
"""
        + SLEEPS_ON.format(1)
        + "time.sleep(0.05)\nraise IndexError('second')\n",
        error="rank 1 failed first: KeyError: 'first'",
        told=("rank 0: IndexError: second",),
    ),
    "a real error before a silent end comes first": Scenario(
        "import os, time\nif os.environ['RANK'] == '0':\n    raise ValueError('the reason')\n"
        + SLEEPS_ON.format(0)
        + "os._exit(9)\n",
        ("local",),
        error="rank 0 failed first: ValueError: the reason",
    ),
    "a killed rank is named with its signal": Scenario(
        GROUP + "report(at=time.time())\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(t)\n",
        tuple(ALL_ENGINES),
        error="rank 1 failed first: killed by SIGKILL",
        left={"run.ranks[1].signal": "SIGKILL"},
        within_s=3,
    ),
    "a crash in C is named with its line": Scenario(
        GROUP + "report(at=time.time())\nif rank == 1:\n    import ctypes; ctypes.string_at(0)\ndist.all_reduce(t)\n",
        tuple(ALL_ENGINES),
        error="rank 1 failed first: killed by SIGSEGV",
        told=("line {line:string_at} in <module>",),
        left={"run.ranks[1].signal": "SIGSEGV"},
        within_s=3,
    ),
    **{
        f"a rank ends by {statement}": Scenario(
            f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {statement}\ntime.sleep(600)\n",
            error=f"rank 1 failed first: {cause}",
            told_if_others_live=("rank 0 is",),
            left={"run.ranks[1].exitcode": code},
        )
        for statement, cause, code in (
            ("sys.exit(3)", "SystemExit: 3", 3),
            ("sys.exit('nothing to train on')", "SystemExit: nothing to train on", 1),
            ("os._exit(5)", "ended with exit code 5", 5),
        )
    },
    **{
        f"exit by {code} has the status {status}": Scenario(
            f"import sys\nsys.exit({code})\n",
            ranks=1,
            error="rank 0 failed first: SystemExit" if status else "",
            left={"[r.exitcode for r in run.ranks]": [status]},
        )
        for code, status in (
            *(("", 0), ("0", 0), ("256", 0), ("True", 1), ("-1", 255), ("3 + 256", 3), ("2**80", 255)),
        )
    },
    "an exit with words prints them, as Python does": Scenario(
        "import sys\nsys.exit('nothing to train on')\n",
        tuple(ALL_ENGINES),
        ranks=1,
        error="rank 0 failed first",
        told=("line 3",),
        printed=("rank 0 | nothing to train on",),
        left={"run.log()": "nothing to train on\n"},
    ),
    "an exit with a number prints nothing": Scenario(
        "import sys\nsys.exit(3)\n",
        tuple(ALL_ENGINES),
        ranks=1,
        error="rank 0 failed first",
        told=("line 3",),
        left={"run.log()": ""},
    ),
    "an error is told although a thread keeps the process alive": Scenario(
        "import threading, time\nfrom course_utils.rank import report\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\nreport(at=time.time())\n"
        "raise OSError('disk gone')\n",
        error=".* failed( first)?: OSError: disk gone",
        within_s=4,
    ),
    "a traceback is told once": Scenario(
        JOINED,
        tuple(ALL_ENGINES),
        error="rank 1 failed first: AssertionError: odd",
        unprinted=("Traceback",),
        left={f"{LOG_1}.startswith('joined\\nTraceback')": True, "run.log(1).count('AssertionError: odd')": 1},
    ),
    "a hook of the script's tells it instead, also under torch's own": Scenario(
        SEEN + JOINED,
        tuple(ALL_ENGINES),
        error="rank 1 failed first: AssertionError: odd",
        printed=("rank 1 | [rank1]: seen: odd",),
        left={LOG_1: "joined\n[rank1]: seen: odd\n"},
    ),
    "a hook gets a traceback that begins in the script": Scenario(
        HOOK + "sys.excepthook = hook\nraise ValueError('caught by it')",
        ranks=1,
        error="rank 0 failed first: ValueError: caught by it",
        printed=("rank 0 | hook: caught by it raise ValueError('caught by it')",),
    ),
    "a broken hook is said": Scenario(
        "import sys\nsys.excepthook = 3\nraise ValueError('with a broken hook')",
        ranks=1,
        error="rank 0 failed first: ValueError: with a broken hook",
        printed=("Error in sys.excepthook",),
    ),
    **{
        f"half a line is kept after {end}": Scenario(
            f"import os, sys\nprint('whole')\nprint('half', end='')\nsys.stderr.write(' a line')\n{end}\n",
            ranks=1,
            error="rank 0",
            printed=("rank 0 | half a line",),
            left={"run.log().startswith('whole\\nhalf a line')": True},
        )
        for end in ("os.kill(os.getpid(), 9)", "os._exit(3)", "os.abort()", "os.execv('/bin/false', ['false'])")
    },
    **{
        f"{message!a} is told": Scenario(
            script,
            ranks=1,
            error="rank 0 failed first",
            told=(message,),
            left={"run.outcome": "failed", "__import__('os').path.exists(run.path + '/run.json')": True},
        )
        for script, message in (
            ("import sys\nsys.stdout.buffer.write(b'caf\\xe9\\n')\nraise ValueError('boom')", "ValueError: boom"),
            ("raise ValueError('caf\\udce9')", "ValueError: caf\\udce9"),
            ("import os\nos.write(1, bytes(range(256)))\nraise KeyError('\\x00')", "KeyError: '\\x00'"),
            ("class Odd(Exception): pass\nOdd.__name__ = 'caf\\udce9'\nraise Odd('name')", "name"),
        )
    },
    "a fork's end isn't its parent's": Scenario(
        FORKS.format(parent="raise ValueError('of the parent')", child="print('the child ends')"),
        error=".* failed( first)?: ValueError: of the parent",
    ),
    "nor is its error": Scenario(
        FORKS.format(parent="print('the parent ends')", child="raise ValueError('of the child')"),
        printed=("the parent ends",) * 2 + ("ValueError: of the child",) * 2,
        unprinted=("rank_process.py",),
    ),
    "nor its words": Scenario(
        FORKS.format(parent="print('the parent ends')", child="raise SystemExit('words of the child')"),
        printed=("the parent ends",) * 2 + ("words of the child",) * 2,
    ),
    "an error of an earlier attempt is not reported": Scenario(
        """import os, time
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
if attempt == 0 and rank == "1":
    raise ValueError("of attempt 0")
time.sleep(1.0)
if attempt == 1 and rank == "0":
    os._exit(7)
time.sleep(600)
""",
        (pytest.param("torchrun", marks=SLOW),),
        options="--max-restarts 1",
        error=".*exit code 7",
        untold=("of attempt 0",),
    ),
    # a rank hangs
    "a hang shows where each rank stands, also under handlers that don't end it": Scenario(
        GROUP
        + """for name in ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT"):
    signal.signal(getattr(signal, name), lambda *_: None)
if rank == 0:
    dist.all_reduce(t)  # alone
def sleeps():
    while True: time.sleep(600)
sleeps()
""",
        tuple(ALL_ENGINES),
        options="--timeout HANG",
        error=".*he launch did not end within its timeout of HANG s",
        told=(
            "rank 0 waits in all_reduce: `dist.all_reduce(t)  # alone`, line {line:# alone} of the cell",
            "rank 1 is: `while True: time.sleep(600)`, line {line:while True} of the cell",
        ),
        untold=("torch/distributed",),
        left={"run.outcome": "timeout"},
    ),
    "a hang in backward under DDP": Scenario(
        GROUP
        + """model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
if rank == 1:
    time.sleep(600)
model(t).sum().backward()
""",
        options="--timeout HANG",
        error=".*he launch did not end within its timeout of HANG s",
        told=(
            "rank 0 is in backward (",
            "`model(t).sum().backward()`, line {line:backward()} of",
            "rank 1 is: `time.sleep(600)`",
        ),
        untold=("torch/distributed",),
    ),
    "a deadlock is named, and nobody waits": Scenario(
        GROUP + "if rank == 0:\n    dist.barrier()\ndist.all_reduce(t, op=dist.ReduceOp.MAX)\n",
        error="Different collectives: rank 0 calls barrier",
        told=(
            "The launch was ended, because every rank waited for another one.",
            "rank 0 waits in barrier: `dist.barrier()`, line {line:barrier()}",
            "rank 1 waits in all_reduce: `dist.all_reduce(t, op=dist.ReduceOp.MAX)`, line {line:MAX}",
        ),
        untold=("--timeout",),
        left={"run.outcome": "deadlock"},
    ),
    "a rank that had finished is told apart": Scenario(
        "import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(600)\n",
        ("local",),
        options="--timeout 2",
        error=".*he launch did not end within its timeout of 2 s",
        told=("rank 0 had finished its script", "rank 1 is: `time.sleep(600)`, line 4"),
        left={"[r.ended for r in run.ranks]": ["finished", "stopped"]},
    ),
    "a wait for processes of one's own is named": Scenario(
        "import time\nimport torch.multiprocessing as mp\ndef sleep(i):\n    time.sleep(600)\n"
        "if __name__ == '__main__':\n    mp.spawn(sleep, nprocs=1)\n",
        ("local",),
        ranks=1,
        options="--timeout 2",
        error="",
        told=("rank 0 waits for processes that it has started: `mp.spawn(sleep, nprocs=1)`", "instead of mp.spawn"),
        untold=("collective",),
    ),
    # what a program may do
    "a rank may replace itself": Scenario(
        # Nothing of ours ends the new program, and a torch 2.15 that still has its group aborts at exit in 1 of 20.
        AGAIN + GROUP + "print('sum', t[0].item())\ndist.destroy_process_group()\n",
        printed=("sum 2.0",) * 2,
    ),
    "and is watched on": Scenario(
        AGAIN + "import time\ntime.sleep(600)\n", options="--timeout 2", error=".*did not end within its timeout"
    ),
    "the store outlives rank 0": Scenario(
        GROUP
        + """store = dist.distributed_c10d._get_default_store()
if rank == 0:
    os._exit(0)
time.sleep(0.5)
store.set("a", "kept")
print(store.get("a").decode())
os._exit(0)
""",
        tuple(ALL_ENGINES),
        printed=("rank 1 | kept",),
    ),
    "a log that vanishes doesn't end the launch": Scenario(
        """import os, time
for i in range(300):
    path = os.path.join(os.environ["COURSE_RUN_DIR"], f"mine{i % 7}{os.environ['RANK']}.log")
    open(path, "w").close(); time.sleep(0.002); os.unlink(path)
""",
        ("local",),
    ),
    "a file that can't be written at the end is said": Scenario(
        "f = open('/dev/full', 'w')\nf.write('lost')\n",
        ("local",),
        ranks=1,
        printed=("Could not write the rest of '/dev/full'",),
    ),
}


def rows() -> Iterator[Any]:
    for name, scenario in SCENARIOS.items():
        for engine in scenario.engines:
            engine, marks = (engine, ()) if isinstance(engine, str) else (engine.values[0], engine.marks)
            yield pytest.param(scenario, engine, marks=marks, id=f"{name} ({engine})")


@pytest.mark.parametrize(("scenario", "engine"), rows())
def test_a_launch_ends_as_it_must(kernel: Kernel, scenario: Scenario, engine: str) -> None:
    def filled(words: str) -> str:
        words = words.replace("HANG", str(HANG_S[engine]))
        return re.sub(r"\{line:(.*?)\}", lambda found: str(line_of(cell, found[1])), words)

    cell = ranks(engine, scenario.program, scenario.options.replace("HANG", str(HANG_S[engine])), scenario.ranks)
    kernel.run("run = None")
    got = kernel.run(cell)
    if scenario.error or scenario.told:
        assert got.error and got.error[0] == "RankError", got
        message = got.error[1]
        assert re.match(filled(scenario.error), message, re.S), message
        assert message in got.shown_error, "the notebook shows something else than the message"
        for words in (*scenario.told, *(scenario.told_if_others_live if engine == "local" else ())):
            assert filled(words) in message, (filled(words), message)
        assert not [words for words in scenario.untold if words in message], message
        assert not [words for words in OF_OURS if words in message.partition("Afterwards")[0]], message
    else:
        assert got.error is None, got.error
    for words in set(scenario.printed):
        assert got.text.count(words) >= scenario.printed.count(words), (words, got.text)
    for words in scenario.unprinted:
        assert words not in got.text, (words, got.text)
    for question, answer in scenario.left.items():
        assert kernel.ask(question) == answer, question
    if scenario.within_s:
        last = max(kernel.ask("[record['at'] for rank in run.ranks for record in rank.records if 'at' in record]"))
        assert got.ended - last < limit(scenario.within_s * (3 if engine == "torchrun" else 1))


# --- the student interrupts -------------------------------------------------------------------------------------------

STUBBORN = """import os, signal, subprocess, sys, time
for name in ("SIGINT", "SIGTERM"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)          # leaves its group
child = os.fork()
if child == 0:
    if os.fork() == 0:                                              # leaves its parent
        time.sleep(600)
    os._exit(0)
os.waitpid(child, 0)
print("ready", os.environ["RANK"])
time.sleep(600)
"""


@pytest.mark.parametrize("engine", ["local", "cold", pytest.param("torchrun", marks=SLOW)])
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_ends_all(kernel: Kernel, engine: str, times: int) -> None:
    kernel.start(ranks(engine, STUBBORN))
    for rank in (0, 1):
        kernel.wait_for(f"ready {rank}")
    assert len(kernel.left()) >= 7  # two ranks with two grandchildren each, and who watches over them
    start = time.monotonic()
    kernel.interrupt()
    if times == 2:
        time.sleep(0.05)
        kernel.interrupt()
    got = kernel.finish()
    assert time.monotonic() - start < limit(2)
    assert got.error and got.error[0] == "KeyboardInterrupt", got.error
    assert got.shown_error.startswith("Stopped") and "is in" in got.shown_error and "magic.py" not in got.shown_error
    kernel.wait_clean(1.0)
    assert kernel.ask("run.outcome") == "interrupted"


def test_a_stop_says_where_ranks_waited(kernel: Kernel) -> None:
    waits = "print('ready', flush=True)\nif rank == 0:\n    dist.all_reduce(t)  # alone\ntime.sleep(600)"
    kernel.start(ranks("local", GROUP + waits))
    kernel.wait_for("ready")
    time.sleep(0.5)
    kernel.interrupt()
    got = kernel.finish()
    assert "rank 0 waits in all_reduce: `dist.all_reduce(t)  # alone`" in got.shown_error, got.shown_error
    assert "rank 1 is: `time.sleep(600)`" in got.shown_error
    assert "Rank 0 waits in all_reduce (`dist.all_reduce(t)  # alone`" in got.shown_error, "what was known is kept"
    assert "and rank 1 hasn't joined in." in got.shown_error, got.shown_error


def test_an_interrupt_while_torch_is_still_imported(own_kernel: Kernel) -> None:
    own_kernel.run("%load_ext course_utils")
    own_kernel.start(ranks("local", "print('never')"))
    own_kernel.wait_for("ranks on the CPU")
    own_kernel.interrupt()
    got = own_kernel.finish()
    assert got.error and got.error[0] == "KeyboardInterrupt" and got.seconds < limit(3)
    got = own_kernel.run(ranks("local", "print('again')"))
    assert got.error is None and got.text.count("again") == 2 and own_kernel.ask("run.engine") == "warm"


# --- the kernel ends --------------------------------------------------------------------------------------------------

# A DataLoader worker that the kernel forked outlives it by some seconds, with copies of all that the kernel had open.
WORKERS = """import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i): return i
loader = torch.utils.data.DataLoader(Numbers(), num_workers=2, persistent_workers=True, multiprocessing_context="fork")
batches = iter(loader)
next(batches)
print("workers", [w.pid for w in batches._workers])
"""


def with_workers(kernel: Kernel) -> tuple[int, ...]:
    return tuple(int(pid) for pid in re.findall(r"\d+", kernel.run(WORKERS).text))


@pytest.mark.parametrize("engine", ["local", "cold", pytest.param("torchrun", marks=SLOW)])
def test_nothing_outlives_a_killed_kernel(own_kernel: Kernel, engine: str) -> None:
    """With SIGKILL, in the middle of a launch, with live DataLoader workers that were forked before it and, by a
    thread, during it."""
    own_kernel.run("%load_ext course_utils")
    with_workers(own_kernel)
    own_kernel.run(
        "import os, threading, time\n"
        "def fork_during_the_launch():\n"
        "    time.sleep(1.0 if local.server() and local.server._ready else 8.0)\n"
        "    if os.fork() == 0:\n        time.sleep(600)\n"
        "from course_utils.launching import local\nthreading.Thread(target=fork_during_the_launch, daemon=True).start()"
    )
    own_kernel.start(ranks(engine, STUBBORN))
    for rank in (0, 1):
        own_kernel.wait_for(f"ready {rank}")
    until = time.monotonic() + 30
    while (
        len(
            forked := [
                p
                for p in own_kernel.mark.alive()
                if p.ppid() == own_kernel.pid and "ipykernel" in " ".join(p.cmdline())
            ]
        )
        < 3
    ):
        assert time.monotonic() < until, f"the kernel has not forked: {forked}"
        time.sleep(0.1)
    own_kernel.kill()
    holders = [p.pid for p in forked]
    until = time.monotonic() + limit(5)
    while left := own_kernel.left(*holders):
        assert time.monotonic() < until, [(p.pid, p.cmdline()) for p in left]
        time.sleep(0.05)
    assert psutil.pid_exists(holders[-1]), "nothing held the kernel's files open: the test shows nothing"
    own_kernel.wait_removed("course-*", 5)


@pytest.mark.parametrize("now", [False, True])
def test_nothing_outlives_a_restart(own_kernel: Kernel, now: bool) -> None:
    own_kernel.warm()
    workers = with_workers(own_kernel)
    own_kernel.start(ranks("local", STUBBORN))
    for rank in (0, 1):
        own_kernel.wait_for(f"ready {rank}")
    before = {p.pid for p in own_kernel.mark.alive()} - set(workers)
    own_kernel.restart(now)
    until = time.monotonic() + limit(5)
    while left := [p for p in own_kernel.mark.alive() if p.pid in before]:
        assert time.monotonic() < until, [(p.pid, p.cmdline()) for p in left]
        time.sleep(0.05)
    own_kernel.wait_removed("course-*", 5)
    own_kernel.warm()  # and the new kernel launches


def test_the_server_ends_with_the_kernel(own_kernel: Kernel) -> None:
    """Before it is ready as well as after."""
    for ready in (False, True):
        if ready:
            own_kernel.warm()
        else:
            own_kernel.run("%load_ext course_utils")
            time.sleep(1.0)
        others = [p for p in own_kernel.mark.alive() if p.pid != own_kernel.pid]
        assert others, "no server was started"
        if ready:
            own_kernel.client.shutdown()  # in good order
        else:
            os.kill(own_kernel.pid, 9)
        psutil.wait_procs(others, timeout=limit(5 if ready else 1))  # importing torch takes longer than that
        assert not [p for p in others if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not ready:
            own_kernel.restart(now=True)


def test_a_server_whose_kernel_is_gone_before_it_could_look_imports_nothing() -> None:
    """A notebook may be done while the new Python is still starting: on a busy machine that takes seconds."""
    ours, its = socket.socketpair()
    ours.close()
    server = ROOT / "course_utils" / "launching" / "server.py"
    command = [sys.executable, "-X", "importtime", str(server), str(its.fileno()), str(os.getpid())]
    with its:
        ended = subprocess.run(command, pass_fds=[its.fileno()], stderr=subprocess.PIPE, text=True, timeout=120)
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert ended.returncode == 0 and "selectors" in imported and "torch" not in imported


def test_what_watches_over_a_launch_may_be_killed_too(own_kernel: Kernel) -> None:
    """As an administrator would, or the system when memory is short: the launch reports it, its ranks end, and the next
    one works."""
    own_kernel.warm()
    own_kernel.start(ranks("local", "import os, time\nprint('supervisor', os.getppid())\ntime.sleep(600)"))
    own_kernel.wait_for("supervisor")
    supervisor = int(re.findall(r"supervisor (\d+)", own_kernel.cell.text)[0])
    assert own_kernel.server and supervisor != own_kernel.server
    os.kill(supervisor, 9)
    got = own_kernel.finish()
    assert got.error and got.error[0] == "RankError" and "the launch ended before its ranks did" in got.error[1], (
        got.error
    )
    until = time.monotonic() + limit(5)
    while own_kernel.left():
        assert time.monotonic() < until, own_kernel.left()
        time.sleep(0.05)
    os.kill(own_kernel.server, 9)
    got = own_kernel.run(ranks("local", "print('again')"))
    assert got.error is None and got.text.count("| again") == 2
    assert own_kernel.run(ranks("local", "pass")).error is None and own_kernel.ask("run.engine") == "warm"


# --- many at once -----------------------------------------------------------------------------------------------------

REDUCE = """import torch, torch.distributed as dist
from course_utils.rank import report
dist.init_process_group("gloo")
t = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(t)
report(sum=t.item())
dist.destroy_process_group()
"""


def test_two_notebooks_launch_at_once(kernel: Kernel, own_kernel: Kernel) -> None:
    own_kernel.warm()
    for _ in range(3):
        for each in (kernel, own_kernel):
            each.start(ranks("local", REDUCE))
        for each in (kernel, own_kernel):
            assert each.finish().error is None
            assert each.ask("run.values('sum')") == [3.0, 3.0]
    own_kernel.wait_clean()


def test_20_launches_from_4_threads(kernel: Kernel) -> None:
    kernel.run(f"from pathlib import Path\nscript = Path('reduce.py'); script.write_text({REDUCE!r})")
    got = kernel.run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    runs = list(pool.map(lambda i: launch(script, 2, quiet=i % 2 == 0), range(20)))"
    )
    assert got.error is None, got.error
    assert kernel.ask("[run.values('sum') for run in runs]") == [[3.0, 3.0]] * 20
    assert kernel.ask("len({run.path for run in runs})") == 20
    assert kernel.ask("{run.engine for run in runs}") == {"warm"}


def test_an_interrupt_while_ranks_are_started(kernel: Kernel) -> None:
    """With many ranks the start itself takes a while."""
    for delay in (0.0, 0.02, 0.05, 0.1):
        kernel.start(ranks("local", "import time\ntime.sleep(600)", n=32))
        kernel.wait_for("ranks on")
        time.sleep(delay)
        kernel.interrupt()
        got = kernel.finish()
        assert got.error and got.error[0] == "KeyboardInterrupt" and got.seconds < limit(3)
        assert got.shown_error.startswith("Stopped") and "magic.py" not in got.shown_error
        kernel.wait_clean(2)


def test_more_ranks_than_cores(kernel: Kernel) -> None:
    got = kernel.run(ranks("local", REDUCE, n=8))
    assert got.error is None and kernel.ask("run.values('sum')") == [36.0] * 8


# --- nothing is left --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_what_ranks_leave_is_removed(kernel: Kernel, engine: str) -> None:
    """Shared memory, listening children, daemons: all gone whether the launch ends well or not."""
    script = """import os, subprocess, sys, tempfile, time
from multiprocessing import resource_tracker, shared_memory
import torch
from course_utils.rank import report
tempfile.mkdtemp(); open(tempfile.mkstemp()[1], "w").write("x" * 1000)
memory = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(memory._name, "shared_memory")     # nobody will remove it now
torch.multiprocessing.set_sharing_strategy("file_system")
shared = torch.ones(1000).share_memory_()
serve = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
serve += "print(s.getsockname()[1], flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", serve], stdout=subprocess.PIPE, start_new_session=True)
report(tmp=tempfile.gettempdir(), memory=memory.name, pid=os.getpid(), port=int(child.stdout.readline()))
if FAIL and os.environ["RANK"] == "1":
    os._exit(1)
"""
    for fail in (False, True):
        got = kernel.run(ranks(engine, script.replace("FAIL", str(fail))))
        assert bool(got.error) == fail, got.error
        for record in kernel.ask("[r.records[-1] for r in run.ranks]"):
            assert record["tmp"].startswith(str(kernel.tmp))
            names = os.listdir("/dev/shm")
            assert record["memory"] not in names
            assert not [name for name in names if name.startswith(f"torch_{record['pid']}_")]
            with pytest.raises(ConnectionRefusedError):
                import socket

                socket.create_connection(("127.0.0.1", record["port"]), timeout=5).close()


@pytest.mark.parametrize("engine", ENGINES)
def test_temporary_files_last_as_long_as_the_kernel(kernel: Kernel, engine: str) -> None:
    """As under torchrun, the next launch finds them, whichever engine it has; two launches at once share them."""
    name = f"kept-{engine}"
    script = f"""import os, tempfile
from course_utils.rank import report
path = os.path.join(tempfile.gettempdir(), "{name}" + os.environ["RANK"])
report(before=os.path.exists(path), path=path)
open(path, "w").close()
"""
    for look, before in ((engine, False), ("local", True), (engine, True)):
        assert kernel.run(ranks(look, script)).error is None
        assert kernel.ask("run.values('before')") == [before] * 2
    assert kernel.run("local.server.stop()").error is None
    kernel.server = None
    kernel.warm()
    assert kernel.run(ranks(engine, script)).error is None and kernel.ask("run.values('before')") == [True] * 2


def test_what_ranks_have_left_running_is_named(kernel: Kernel) -> None:
    """What they started themselves; not what libraries need, such as a resource tracker, a loader's workers after
    `os._exit`, or torch's manager of shared memory."""
    script = """import os, subprocess, sys
from multiprocessing import shared_memory
import torch
from torch.utils.data import DataLoader
torch.multiprocessing.set_sharing_strategy("file_system")
shared, memory = torch.ones(1000).share_memory_(), shared_memory.SharedMemory(create=True, size=4096)
batches = iter(DataLoader(range(100), num_workers=1))
next(batches)
subprocess.run("true")
"""
    in_background = 'subprocess.Popen("sleep 600; echo late > f", shell=True)\n'
    leave = "os._exit(0)\n"
    for more, said in (
        ("", ""),
        (in_background, "Ended 2 processes that ranks 0 and 1 had left running: `sleep 600; echo late > f`. Under"),
        (
            'if os.environ["RANK"] == "1":\n    '
            + in_background.replace("shell=True", "shell=True, start_new_session=True"),
            "Ended 1 process that rank 1 had left running: `sleep 600; echo late > f`. Under torchrun it would run on.",
        ),
        (
            "if os.fork() == 0:\n    os.system('sleep 600')\n",
            "Ended 2 processes that ranks had left running: a fork of the script.",
        ),
    ):
        got = kernel.run(ranks("local", script + more + leave))
        assert got.error is None and said in got.text and ("Ended" in got.text) == bool(said), (got.error, got.text)
    assert "Ended" not in kernel.run(ranks("local", script + in_background + leave, "--quiet")).text


def test_shared_memory_of_others_is_left_alone(kernel: Kernel) -> None:
    """A launch removes what its ranks made, and nothing that the notebook makes in the meantime."""
    got = kernel.run(
        "import threading, time, torch\nfrom multiprocessing import shared_memory\nmade = []\ndef make():\n"
        "    time.sleep(0.3); made.append(shared_memory.SharedMemory(create=True, size=4096))\n"
        "from pathlib import Path\nPath('nap.py').write_text('import time; time.sleep(1)')\n"
        "threading.Thread(target=make).start(); launch('nap.py', 2)\n"
        "again = shared_memory.SharedMemory(made[0].name); again.close(); made[0].close(); made[0].unlink()\n"
        "from multiprocessing import resource_tracker; resource_tracker._resource_tracker._stop()  # the notebook's "
        "own process"
    )
    assert got.error is None, got.error


def test_only_the_newest_launches_are_kept(kernel: Kernel) -> None:
    from course_utils.folders import KEEP

    assert (
        kernel.run(
            "from pathlib import Path\nPath('nothing.py').write_text('')\nbusy = launch('nothing.py', 1)\n"
            "Path(busy.path, 'run.json').unlink()"
        ).error
        is None
    )
    got = kernel.run(f"runs = [launch('nothing.py', 1, quiet=True) for _ in range({KEEP + 5})]", 200)
    assert got.error is None, got.error
    kept = {str(path): path for path in (kernel.folder / "runs" / "lesson" / "latest" / "launches").resolve().iterdir()}
    busy = kept[kernel.ask("busy.path")]
    # One without its result may still be running; other tests of this kernel may have left such ones, by ending what
    # watched over a launch.
    unended = [kept.pop(name) for name in list(kept) if not (kept[name] / "run.json").exists()]
    assert busy in unended and KEEP - len(unended) <= len(kept) <= KEEP
    assert kernel.ask("runs[-1].path") in kept and kernel.ask("runs[0].path") not in kept
    assert {path.stat().st_mode & 0o777 for path in (*kept.values(), kernel.folder / "runs")} == {0o700}
    (busy / "run.json").write_text("{}")
