# ruff: noqa: F811 - fixtures are imported by their names
"""What must hold when a notebook launches ranks: how failures, hangs and interrupts end, and that nothing is ever left
behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time

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


# --- a rank fails -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["local", "cold", "torchrun"])
def test_the_rank_that_raised_first_is_shown_with_its_line(kernel: Kernel, engine: str) -> None:
    cell = ranks(
        engine,
        GROUP
        + """def inner():
    report(at=time.time())
    raise ValueError("no more of this")
if rank == 1:
    inner()
dist.all_reduce(t)                     # its partner has gone: a broken connection
""",
    )
    got = kernel.run(cell)
    assert got.error and got.error[0] == "RankError"
    message = got.error[1]
    assert message.startswith("rank 1 failed first: ValueError: no more of this"), message
    assert f'line {line_of(cell, "raise ValueError")}, in inner\n    raise ValueError("no more of this")' in message
    assert "course_utils" not in message.split("Afterwards")[0], "frames of ours are shown"
    assert "site-packages" not in message.split("Afterwards")[0], "frames of torch are shown"
    if engine != "torchrun":  # which stops the others before they can tell
        assert re.search(
            r"Afterwards, most likely because of it:\n  rank 0: \w+: .*connection", message, re.I | re.S
        ), message
    assert message in got.shown_error, "the notebook shows something else than the message"
    assert "launch.py" not in got.shown_error
    raised = kernel.ask("run.ranks[1].records[-1]['at']")
    assert got.ended - raised < limit(3 if engine != "torchrun" else 10)
    assert kernel.ask("run.ranks[1].ended") == "ValueError"


@pytest.mark.parametrize("engine", ENGINES)
def test_first_is_told_by_time_stamp(kernel: Kernel, engine: str) -> None:
    """Rank 1 raises 0.05 s before rank 0 raises something else, but its process ends later than rank 0's."""
    cell = ranks(
        engine,
        """import atexit, os, time
rank, there = int(os.environ["RANK"]), os.path.join(os.environ["COURSE_RUN_DIR"], "there")
if rank == 1:
    while not os.path.exists(there):  # on a busy machine the other rank may still be starting
        time.sleep(0.001)
    atexit.register(time.sleep, 0.4)
    raise KeyError("first")
open(there, "w").close()
while not os.path.exists(os.path.join(os.environ["COURSE_RUN_DIR"], "rank1.error.json")):
    time.sleep(0.001)
time.sleep(0.05)
raise IndexError("second")
""",
    )
    got = kernel.run(cell)
    assert got.error and got.error[1].startswith("rank 1 failed first: KeyError: 'first'"), got.error
    assert "rank 0: IndexError: second" in got.error[1]


def test_a_real_error_before_a_silent_end_comes_first(kernel: Kernel) -> None:
    """A rank that ends silently soon after another one raised did not fail first."""
    cell = ranks(
        "local",
        """import os, time
if os.environ["RANK"] == "0":
    raise ValueError("the reason")
while not os.path.exists(os.path.join(os.environ["COURSE_RUN_DIR"], "rank0.error.json")):
    time.sleep(0.001)
os._exit(9)
""",
    )
    got = kernel.run(cell)
    assert got.error and got.error[1].startswith("rank 0 failed first: ValueError: the reason"), got.error


@pytest.mark.parametrize("engine", ALL_ENGINES)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_killed_rank_is_named_with_its_signal(kernel: Kernel, engine: str, name: str) -> None:
    act = {"SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)", "SIGSEGV": "import ctypes; ctypes.string_at(0)"}[name]
    cell = ranks(engine, GROUP + f"report(at=time.time())\nif rank == 1:\n    {act}\ndist.all_reduce(t)\n")
    got = kernel.run(cell)
    assert got.error and got.error[0] == "RankError"
    assert got.error[1].startswith(f"rank 1 failed first: killed by {name}"), got.error[1]
    if name == "SIGSEGV":
        assert f"line {line_of(cell, 'string_at')} in <module>" in got.error[1], (
            "the stack that Python wrote is not shown"
        )
    assert got.ended - kernel.ask("run.ranks[1].records[-1]['at']") < limit(3 if engine != "torchrun" else 10)
    assert kernel.ask("run.ranks[1].signal") == name


@pytest.mark.parametrize("engine", ENGINES)
def test_exit_codes_are_failures_and_are_told(kernel: Kernel, engine: str) -> None:
    for statement, cause, code in (
        ("sys.exit(3)", "SystemExit: 3", 3),
        ("sys.exit('nothing to train on')", "SystemExit: nothing to train on", 1),
        ("os._exit(5)", "ended with exit code 5", 5),
    ):
        got = kernel.run(
            ranks(engine, f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {statement}\ntime.sleep(600)\n")
        )
        assert got.error and got.error[1].startswith(f"rank 1 failed first: {cause}"), (statement, got.error)
        assert kernel.ask("run.ranks[1].exitcode") == code
        assert "rank 0 is: `time.sleep(600)`, line 5" in got.error[1] or engine == "cold", got.error[
            1
        ]  # rank 0 may still be importing
    assert kernel.run(ranks(engine, "import sys\nsys.exit()\n")).error is None
    assert kernel.run(ranks(engine, "import sys\nsys.exit(0)\n")).error is None


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_is_told_although_the_process_does_not_end(kernel: Kernel, engine: str) -> None:
    """A thread that isn't a daemon keeps the process of a failed script alive forever."""
    script = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nraise OSError('disk gone')\n"
    )
    got = kernel.run(ranks(engine, script))
    assert got.error and re.search("failed( first)?: OSError: disk gone", got.error[1]), got.error
    assert got.seconds < limit(4 if engine == "local" else 15)


# --- a rank hangs -----------------------------------------------------------------------------------------------------


def hang(kernel: Kernel, engine: str, script: str) -> tuple[str, str]:
    """Run a script that hangs. Returns the cell, and the message when it times out."""
    cell = ranks(engine, script, f"--timeout {HANG_S[engine]}")
    got = kernel.run(cell)
    assert got.error and got.error[0] == "RankError", got
    assert f"he launch did not end within its timeout of {HANG_S[engine]} s" in got.error[1], got.error[1]
    assert HANG_S[engine] <= got.seconds < HANG_S[engine] + limit(4)
    assert "torch/distributed" not in got.error[1]
    return cell, got.error[1]


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_a_hang_shows_where_each_rank_stands(kernel: Kernel, engine: str) -> None:
    """Also when the script has its own signal handlers, which neither answer nor end it."""
    cell, message = hang(
        kernel,
        engine,
        GROUP
        + """for name in ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT"):
    signal.signal(getattr(signal, name), lambda *_: None)
if rank == 0:
    dist.all_reduce(t)  # alone
def sleeps():
    while True: time.sleep(600)
sleeps()
""",
    )
    assert (
        f"rank 0 waits in all_reduce: `dist.all_reduce(t)  # alone`, line {line_of(cell, '# alone')} of the cell"
        in message
    ), message
    assert f"rank 1 is: `while True: time.sleep(600)`, line {line_of(cell, 'while True')} of the cell" in message, (
        message
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deadlock_is_named_within_seconds(kernel: Kernel, engine: str) -> None:
    """A barrier inside `if rank == 0`: what the ranks called proves that no waiting helps, so nobody waits."""
    cell = ranks(engine, GROUP + "if rank == 0:\n    dist.barrier()\ndist.all_reduce(t, op=dist.ReduceOp.MAX)\n")
    got = kernel.run(cell)
    assert got.error and got.error[0] == "RankError" and got.seconds < limit(15 if engine == "local" else 30), got
    message = got.error[1]
    assert message.startswith("Different collectives: rank 0 calls barrier"), message
    assert "The launch was ended, because every rank waited for another one." in message and "--timeout" not in message
    assert f"rank 0 waits in barrier: `dist.barrier()`, line {line_of(cell, 'barrier()')}" in message, message
    assert (
        f"rank 1 waits in all_reduce: `dist.all_reduce(t, op=dist.ReduceOp.MAX)`, line {line_of(cell, 'MAX')}"
        in message
    ), message
    assert "deadlocked after" in str(got.displays[-1]) and kernel.ask("run.outcome") == "deadlock"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hang_in_backward_under_ddp(kernel: Kernel, engine: str) -> None:
    cell, message = hang(
        kernel,
        engine,
        GROUP
        + """model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
if rank == 1:
    time.sleep(600)
model(t).sum().backward()
""",
    )
    assert re.search(
        rf"rank 0 is in backward \(.*\): `model\(t\).sum\(\).backward\(\)`, line {line_of(cell, 'backward')} of",
        message,
    ), message
    assert "rank 1 is: `time.sleep(600)`" in message


def test_a_rank_that_had_finished_is_told_apart(kernel: Kernel) -> None:
    script = "import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(600)\n"
    got = kernel.run(ranks("local", script, "--timeout 2"))
    assert (
        got.error
        and "rank 0 had finished its script" in got.error[1]
        and "rank 1 is: `time.sleep(600)`, line 4" in got.error[1]
    ), got.error
    assert kernel.ask("[r.ended for r in run.ranks]") == ["finished", "stopped"]


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
