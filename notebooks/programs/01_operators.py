"""Counts the operators that eager mode calls in one training step of the lesson's model, forward and backward.

The folder where lesson 01's `blobs.py` lies is its only argument. Views, which only look at a tensor in another way,
aren't counted.
"""

import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.rank import report

sys.path.insert(0, sys.argv[1])
from blobs import Blobs, scene


class Counted(TorchDispatchMode):
    """Counts every operator that computes something."""

    operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators += not func.is_view
        return func(*args, **(kwargs or {}))


if __name__ == "__main__":
    x, y, target = scene()
    with Counted() as counted:
        torch.nn.functional.mse_loss(Blobs()(x, y), target).backward()
    report(operators=counted.operators)
