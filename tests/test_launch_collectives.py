"""Real ranks that disagree about their collectives, on gloo: the first line says where, whatever gloo says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Descendants

from course_utils.failure.errors import RankError
from course_utils.launching import local
from course_utils.launching.launcher import launch
from course_utils.launching.supervisor.patience import Patience

HEAD = """import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
dist.all_reduce(torch.ones(3))
"""
IN_BARRIER = "Rank 0 waits in barrier (`dist.barrier()`, line 7)"
CASES = {
    "a collective is skipped": (
        "if rank == 0:\n    dist.barrier()",
        f"{IN_BARRIER}, and rank 1 finished without joining in.",
    ),
    "shapes": (
        "dist.all_reduce(torch.ones(10 + 2 * rank))",
        "Different shapes in all_reduce (`dist.all_reduce(torch.ones(10 + 2 * rank))`, line 6): rank 0 has 10 numbers,"
        " rank 1 has 12 numbers.",
    ),
    "types": (
        "dist.all_reduce(torch.ones(10, dtype=[torch.float32, torch.float64][rank]))\ndist.barrier()",
        "Different types in all_reduce (`dist.all_reduce(torch.ones(10, dtype=[torch.float32, torch.float64][rank]))`,"
        " line 6): rank 0 has float32, rank 1 has float64.",
    ),
    "DDP, one batch more": (
        "model = DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "for _ in range(3 - rank):\n    model(torch.ones(2, 4)).sum().backward()",
        "Rank 0 waits in backward (`model(torch.ones(2, 4)).sum().backward()`, line 8), and rank 1 finished without"
        " joining in.",
    ),
    "a rank that leaves at once": ("if rank == 1:\n    os._exit(0)\ndist.barrier()", "Rank 0 waits in barrier"),
    "the same error on all": (
        "raise ValueError('no such batch size')",
        "all 2 ranks failed: ValueError: no such batch size",
    ),
    "the same error at two places": (
        "if rank:\n    assert n == 1\nassert n == 1",
        "rank ",
    ),
    "an error of its own": (
        "if rank == 1:\n    raise KeyError('x')\ndist.barrier()",
        "rank 1 failed first: KeyError: 'x'",
    ),
}  # fmt: skip
IN_TIME = {
    "kinds": (
        "if rank == 0:\n    dist.barrier()\ndist.all_reduce(torch.ones(5))",
        "Different collectives: rank 0 calls barrier (`dist.barrier()`, line 7), rank 1 calls all_reduce"
        " (`dist.all_reduce(torch.ones(5))`, line 8).\nThe launch ",
    ),
    "a rank behind": (
        "if rank == 0:\n    dist.barrier()\ntime.sleep(600)",
        f"{IN_BARRIER}, and rank 1 hasn't joined in.\nThe launch did not end",
    ),
    "a sum that nobody waits for": (
        "if rank == 0:\n    work = dist.all_reduce(torch.ones(4), async_op=True)\ntime.sleep(600)",
        "the launch did not end within its timeout",
    ),
    "a rank that computes": (
        "if rank == 0:\n    dist.barrier()\nwhile True:\n    pass",
        f"{IN_BARRIER}, and rank 1 hasn't joined in.\nThe launch did not end",
    ),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    mark = Descendants()
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    yield tmp_path
    local.server.stop()
    mark.kill()


def failure(home: Path, script: str, **options: object) -> RankError:
    (home / "train.py").write_text(HEAD + script)
    with pytest.raises(RankError) as raised:
        launch(home / "train.py", 2, quiet=True, **options)  # type: ignore[arg-type]
    return raised.value


@pytest.mark.parametrize("engine", ["local", pytest.param("cold", marks=pytest.mark.slow)])
def test_the_first_line(home: Path, engine: str) -> None:
    for name, (script, said) in CASES.items():
        if engine == "cold" and name not in ("a collective is skipped", "shapes"):
            continue
        error = failure(home, script, engine=engine, timeout=60)
        assert str(error).startswith(said), (name, str(error))
        assert bool(error.disagreement) == ("error" not in name), name
        assert str(error).count("ValueError: no such") <= 2, "told once in the headline, once in the traceback"
    for name, (script, said) in list(IN_TIME.items())[: 1 if engine == "cold" else None]:
        error = failure(home, script, engine=engine, timeout=2 if engine == "local" else 15)
        assert str(error).startswith(said), (name, str(error))
    (home / "train.py").write_text(HEAD + "dist.all_gather_object([None] * n, 'a' * 50 * rank)\ndist.barrier()")
    assert launch(home / "train.py", 2, quiet=True, engine=engine).ok


def test_it_is_told_when_nothing_fails(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody waits for this all-reduce, so on some runs all ranks end well."""
    script = "w = dist.all_reduce(torch.ones(4 if rank else 2), async_op=True)\nos._exit(0) if rank == 9 else None"
    (home / "train.py").write_text(HEAD + script)
    try:
        assert launch(home / "train.py", 2).ok
    except RankError as error:
        assert error.disagreement.startswith("Different shapes")
    else:
        assert "did not call the same collectives. Different shapes" in capfd.readouterr().out


GOES_ON = """import threading
folder = os.environ["COURSE_RUN_DIR"]
from datetime import timedelta
other, x, seen = 1 - rank, torch.ones(4), []
if rank == 0:
    time.sleep(2.5)  # somebody is late
dist.barrier()
quick = dist.new_group([0, 1], timeout=timedelta(seconds=3))
try:
    dist.barrier(group=quick) if rank == 0 else dist.recv(x, 0, group=quick)  # gives up by itself
except RuntimeError:
    seen.append("gave up")
try:
    dist.irecv(x, other).wait(timedelta(seconds=3)) if rank == 0 else dist.recv(x, 0, group=quick)
except RuntimeError:
    seen.append("gave up again")
late = dist.new_group([0, 1])
sender = threading.Timer(2.5, lambda: dist.send(torch.ones(4), other, group=late))
sender.start()
dist.recv(x, other, group=late)  # both receive, and a thread of each sends
sender.join()
print(*seen, flush=True)
for there in (f"{folder}/{r}" for r in (rank, other)):  # nobody leaves while the other still talks
    open(there, "a").close() if there.endswith(f"/{rank}") else None
    while not os.path.exists(there):
        time.sleep(0.05)
os._exit(0)
"""


def test_what_looks_like_a_deadlock_and_goes_on(home: Path) -> None:
    """A late rank, calls that give up by themselves, and messages that another thread sends."""
    (home / "train.py").write_text(HEAD + GOES_ON)
    run = launch(home / "train.py", 2, quiet=True, timeout=Patience(total_s=100, deadlock_s=1))
    assert run.ok and [run.log(rank).strip() for rank in (0, 1)] == ["gave up gave up again"] * 2, run.log(1)
