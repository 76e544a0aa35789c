"""On a rank: runs a program as `__main__`, and reports what its optimizer stepped, each time.

14_stepped.py PROGRAM [its options]
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from course_utils.rank import report


def note(optimizer: Optimizer, *_: Any) -> None:
    """Report how many weights took a step (over all ranks, where they are shared out), and of what kind they are."""
    stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    odd = [p for p in stepped if p.dtype != torch.float32 or p.device.type == "cpu"]
    report(stepped=sum(p.numel() for p in stepped), odd=len(odd))


def main(program: str, *options: str) -> None:
    sys.argv = [program, *options]
    register_optimizer_step_post_hook(note)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
