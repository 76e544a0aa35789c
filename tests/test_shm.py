# ruff: noqa: F811 - fixtures are imported by their names
"""Whatever a launch makes in /dev/shm goes with it, and nothing else does: not what other users, launches or containers
make in the meantime."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Kernel, close_shared_kernel, kernel  # noqa: F401
from test_launch_table import ENGINES, ranks

from course_utils.launching.supervisor.shm import SharedMemory

SHM = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="this system has no /dev/shm")


@pytest.fixture
def tag() -> Iterator[str]:
    """Eight letters for the names of files. Whatever has them in its name is gone after the test."""
    value = uuid.uuid4().hex[:8]
    yield value
    for path in SHM.glob(f"*{value}*"):
        path.unlink()


MAKES = """import os, sys, tempfile, time, mmap
import multiprocessing as mp
from multiprocessing import resource_tracker, shared_memory
import torch
from course_utils.rank import report

def keep(name=None):
    memory = shared_memory.SharedMemory(name, create=True, size=4096)
    resource_tracker.unregister(memory._name, "shared_memory")     # nobody will remove it now
    report(made=memory.name)
    return memory

def work(stay):
    kept = keep()
    time.sleep(60 if stay else 0)

if __name__ == "__main__":
    tag, how, rank = sys.argv[1], sys.argv[2], os.environ["RANK"]
    torch.multiprocessing.set_sharing_strategy("file_system")
    tensor = torch.ones(1000).share_memory_()
    kept = [keep(), keep(f"mine {tag}-{rank}")]
    for method in ("fork", "spawn"):
        child = mp.get_context(method).Process(target=work, args=(how == "stuck",), daemon=True)
        child.start()
        child.join(None if how != "stuck" else 0)
    lock = mp.get_context("spawn").Lock()
    report(made="sem." + lock._semlock.name[1:])
    if how == "stuck":
        with open(f"/dev/shm/nccl-{tag}{rank}", "w+b") as file:    # as NCCL does, before all ranks have it
            file.truncate(4096)
            area = mmap.mmap(file.fileno(), 4096)
        report(made=f"nccl-{tag}{rank}")
        while sum("made" in line for line in open(os.path.join(os.environ["COURSE_RUN_DIR"], f"rank{rank}.jsonl"))) < 6:
            time.sleep(0.05)
    made = [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")]
    report(made=made[0], tensors=len(made), pid=os.getpid())
    if how == "dies" and rank == "1":
        while sum("made" in line for line in open(os.path.join(os.environ["COURSE_RUN_DIR"], "rank0.jsonl"))) < 6:
            time.sleep(0.05)    # rank 0 is ended half a second later, so it has to be done by then
        os.kill(os.getpid(), 9)
    if how == "stuck":
        open(f"stuck-{tag}-{rank}", "w").close()
        time.sleep(600)
"""


@pytest.mark.parametrize("how", ["ends", "dies", "stuck"])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_launch_makes_goes_with_it(kernel: Kernel, tag: str, engine: str, how: str) -> None:
    """From ranks, and from processes that they fork and spawn; when they end, and when they're stopped."""
    kernel.start(ranks(engine, MAKES, f"-- {tag} {how}"))
    if how == "stuck":
        until = time.monotonic() + 100
        while len(list(kernel.work.glob(f"stuck-{tag}-*"))) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        kernel.interrupt()
    got = kernel.finish()
    assert (got.error and got.error[0]) == {"ends": None, "dies": "RankError", "stuck": "KeyboardInterrupt"}[how], (
        got.error
    )
    left = set(os.listdir(SHM))
    run = "run" if how == "ends" else "__import__('sys').last_value.run"
    for records in kernel.ask(f"[[r['made'] for r in rank.records if 'made' in r] for rank in {run}.ranks]"):
        assert len(records) == (7 if how == "stuck" else 6), records
        assert not left & set(records), "left behind"


def test_what_others_make_meanwhile_stays(kernel: Kernel, tag: str) -> None:
    """As in another container that shares /dev/shm: its processes aren't in our /proc, and may have the same pids as
    ours."""
    script = f"import os, time; open('pid-{tag}', 'w').write(str(os.getpid())); time.sleep(2)"
    kernel.start(ranks("local", script, n=1))
    note = kernel.work / f"pid-{tag}"
    until = time.monotonic() + 60
    while not note.exists() or not note.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    names = [
        f"psm_{tag}",
        f"torch_{note.read_text()}_{int(tag, 16)}_0",
        f"nccl-{tag}",
        f"sem.mp-{tag}",
        f"sem.course-{tag}-abc",
        f"course-{tag}",
    ]
    # Made by a process that has ended, and open nowhere: on its way from one process of the other container to the
    # next.
    subprocess.run(
        [sys.executable, "-c", "import sys\nfor name in sys.argv[1:]: open('/dev/shm/' + name, 'w').close()", *names],
        check=True,
    )
    try:
        assert kernel.finish().error is None
        assert set(names) <= set(os.listdir(SHM))
    finally:
        for name in names:
            (SHM / name).unlink(missing_ok=True)


def test_two_launches_at_once_keep_theirs(kernel: Kernel, tag: str) -> None:
    """The first one's end takes nothing from the second, where the same processes of the same program do the same."""
    script = (
        "import sys, time, os\nfrom multiprocessing import resource_tracker, shared_memory, get_context\n"
        "from course_utils.rank import report\n"
        "memory = shared_memory.SharedMemory(create=True, size=4096); resource_tracker.unregister(memory._name, "
        "'shared_memory')\n"
        f"lock = get_context('spawn').Lock()\nmemory.close()\nopen('at-{tag}-' + sys.argv[1], 'w').close()\n"
        f"while sys.argv[1] == 'long' and not os.path.exists('go-{tag}'): time.sleep(0.02)\n"
        "again = shared_memory.SharedMemory(memory.name)\n"
        "report(there=os.path.exists('/dev/shm/sem.' + lock._semlock.name[1:]))\n"
    )
    (kernel.work / f"two-{tag}.py").write_text(script)
    got = kernel.run(
        "import threading, time, os\nlong = []\n"
        f"thread = threading.Thread(target=lambda: long.append(launch('two-{tag}.py', 2, ['long'], quiet=True, "
        "check=False))); thread.start()\n"
        f"while not os.path.exists('at-{tag}-long'): time.sleep(0.02)\n"
        f"short = launch('two-{tag}.py', 2, ['short'], quiet=True)\nopen('go-{tag}', 'w').close(); thread.join()\n"
        "found = [(run.outcome, [r.error and r.error['message'] for r in run.ranks], [r.records for r in run.ranks]) "
        "for run in (*long, short)]"
    )
    assert got.error is None, got.error
    found = kernel.ask("found")
    assert [[record["there"] for record in records] for _, _, ranks in found for records in ranks] == [[True]] * 4, (
        found,
        got.text,
    )


# --- the parts --------------------------------------------------------------------------------------------------------


def test_only_the_file_that_was_noted_is_removed(tmp_path: Path, tag: str) -> None:
    def note(name: str) -> str:
        info = os.lstat(SHM / name)
        return f"/{name}\t{info.st_dev} {info.st_ino}\n"

    tmp = tmp_path / f"course-{tag}"
    tmp.mkdir()
    for kind in "abcdef":
        (SHM / f"{kind}-{tag}").write_text("x")
    lines = note(f"a-{tag}") + note(f"b-{tag}")
    (SHM / f"b-{tag}").rename(SHM / f"moved-{tag}")
    (SHM / f"b-{tag}").write_text("made anew, by somebody else")
    target = tmp_path / "target"
    target.write_text("x")
    (SHM / f"link-{tag}").symlink_to(target)
    outside = os.lstat(target)
    for name in (f"link-{tag}", f"../..{target}"):
        lines += f"/{name}\t{outside.st_dev} {outside.st_ino}\n"
    lines += f"/\t1 2\n\n\t\nwhat\n/c-{tag}\t1\n/d-{tag}\tone two\n"
    lines += f"/e-{tag}\0\t1 2\n" + "x" * 5000 + "\t1 2\n"
    if os.getuid() == 0:
        os.chown(SHM / f"f-{tag}", 12345, 12345)
    else:
        (SHM / f"f-{tag}").unlink()
        (SHM / f"f-{tag}").symlink_to(target)
    lines += note(f"f-{tag}")
    (tmp / ".shared_memory").write_text(lines)
    (tmp / ".shared_memory").write_bytes(b"\xff\t1 2\n" + (tmp / ".shared_memory").read_bytes())
    SharedMemory().remove(str(tmp), tmp_path)
    assert (
        sorted(path.name[0] for path in SHM.glob(f"*{tag}")) == ["b", "c", "d", "e", "f", "l", "m"] and target.exists()
    )


def test_without_a_note_nothing_is_removed(tmp_path: Path, tag: str) -> None:
    (SHM / f"psm_{tag}").write_text("x")
    for tmp in (tmp_path / f"course-{tag}", tmp_path / "missing" / "course-none"):
        SharedMemory().remove(str(tmp), tmp_path / "missing")
    assert (SHM / f"psm_{tag}").exists()


def test_semaphores_and_registrations_go_by_their_names(tmp_path: Path, tag: str) -> None:
    mine, others = os.getpid(), 999_999_999
    (tmp_path / "rank0.pid").write_text(f"{mine} node")
    (tmp_path / "rank1.pid").write_text("")
    (tmp_path / "rank2.pid").write_text("../x node")
    ours = [f"sem.course-{tag}-x", f"__KMP_REGISTERED_LIB_{mine}_{os.getuid()}"]
    theirs = [
        f"sem.course-{tag}0-x",
        f"sem.course-{tag}",
        f"__KMP_REGISTERED_LIB_{others}_{os.getuid()}",
        f"__KMP_REGISTERED_LIB_{mine}_{os.getuid() + 1}",
    ]
    try:
        for name in [*ours, *theirs]:
            (SHM / name).write_text("")
        SharedMemory().remove(f"/tmp/course-{tag}", tmp_path)
        assert [name for name in [*ours, *theirs] if (SHM / name).exists()] == theirs
    finally:
        for name in [*ours, *theirs]:
            (SHM / name).unlink(missing_ok=True)


def test_files_of_nccl_are_those_that_a_process_has_mapped(tmp_path: Path, tag: str) -> None:
    areas = []
    for name in (f"nccl-{tag}", f"nccl-{tag} with a space", f"nccl-gone{tag}", f"nccl-swapped{tag}", f"other-{tag}"):
        with open(SHM / name, "w+b") as file:
            file.truncate(4096)
            areas.append(mmap.mmap(file.fileno(), 4096))
    (SHM / f"nccl-unmapped{tag}").write_text("x")
    (SHM / f"nccl-gone{tag}").unlink()
    shared = SharedMemory()
    shared.look([os.getpid(), 999_999_999, 1])
    (SHM / f"nccl-swapped{tag}").rename(SHM / f"kept-{tag}")
    (SHM / f"nccl-swapped{tag}").write_text("another one's")
    shared.remove(f"/tmp/course-{tag}", tmp_path)
    assert sorted(path.name.replace(tag, "") for path in SHM.glob(f"*{tag}*")) == [
        "kept-",
        "nccl-swapped",
        "nccl-unmapped",
        "other-",
    ]
