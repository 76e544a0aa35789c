"""What the checks rely on inside ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_utils.check import FOLDER
from course_utils.launching.launcher import launch

# Gloo's ranks learn each other's addresses from a store. Here one rank learns them late, when all others know its own
# and have connected to it.
LATE = """import os, sys, time
from datetime import timedelta
import torch.distributed as dist
sys.path.append(sys.argv[1])
import rank_side
from course_utils.rank import report


class Late(dist.Store):
    def __init__(self, store):
        super().__init__()
        self.store, self.late = store, False

    def set(self, key, value):
        self.store.set(key, value)

    def get(self, key):
        time.sleep(0.2 if self.late else 0)
        return self.store.get(key)

    def wait(self, keys, timeout=timedelta(seconds=60)):
        self.store.wait(keys, timeout)

    def add(self, key, n):
        return self.store.add(key, n)

    def check(self, keys):
        return self.store.check(keys)


rank_side._store = Late(dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False))
for size in (4, 4, 3, 4, 2, 4, 3, 4):
    rank_side._store.late = rank_side.RANK == rank_side._meetings % size
    with rank_side.world(size) as member:
        if member:
            report(joined=size, of=rank_side.dist.get_world_size())
"""


def test_a_rank_may_leave_a_world_while_another_is_slow_to_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check has to judge an answer that calls no collective; the answer mustn't break the check."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    (tmp_path / "late.py").write_text(LATE)
    run = launch(tmp_path / "late.py", 4, [FOLDER], device="cpu", threads=1, timeout=100, quiet=True)
    assert sorted(run.values("joined")) == sorted(
        size for size in (4, 4, 3, 4, 2, 4, 3, 4) for _ in range(size)
    ) and run.values("joined") == run.values("of")
