"""What a rank that was forked from the warm server does before its program: torch is imported there already, with the
threads, random numbers and caches of the server."""

from __future__ import annotations

import os
import sys
import time


def renew() -> None:
    """Make a process forked from the server look new: threads, random numbers, caches. Its environment and folder are
    new already."""
    import tempfile

    import numpy
    import torch
    import torch.distributed as dist

    time.tzset()
    tempfile.tempdir = None
    for path in sys.path:
        if sys.path_importer_cache.get(path, path) is None:
            # this one wasn't there when torch was imported; Python sees changes in the others anyway
            del sys.path_importer_cache[path]
    numpy.random.seed()  # Python's own generator takes a new seed after a fork by itself
    torch.default_generator.seed()
    # OpenMP allows a number for each level of nesting
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
    dist.set_debug_level_from_env()
    if dynamo := sys.modules.get("torch._dynamo"):  # else it reads this itself
        dynamo.config.disable = os.environ.get("TORCH_COMPILE_DISABLE", "0") == "1"
