"""On a rank: runs a mended program as `__main__`, and reports how many collectives it called and how often it saved.

    13_watched.py PROGRAM [slow_save]

`slow_save` has every `torch.save` take 0.5 s longer, so that a rank that reads without waiting shows it each time.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.rank import report

SLOWER_S = 0.5


class Counted(TorchDispatchMode):
    """Counts the collectives of this rank by name, those of DDP and FSDP among them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.calls[func.overloadpacket.__name__.strip("_")] += 1
        return func(*args, **(kwargs or {}))


def main(program: str, *what: str) -> None:
    save, saves = torch.save, 0

    def saved(*args: Any, **kwargs: Any) -> None:
        nonlocal saves
        saves += 1
        if "slow_save" in what:
            time.sleep(SLOWER_S)
        save(*args, **kwargs)

    torch.save = saved
    sys.argv = [program]
    with Counted() as counted:
        runpy.run_path(program, run_name="__main__")
    names = sorted(counted.calls)
    report(calls=names, times=[counted.calls[name] for name in names], saves=saves)


if __name__ == "__main__":
    main(*sys.argv[1:])
