"""Save a new checkpoint over an old one in a child process, kill that at a random moment, and look at what's there.
Fifty times onto the same name, and fifty times with the `atomic_save` of the file that's given."""

import mmap
import os
import random
import runpy
import signal
import struct
import sys
import tempfile
import time
from statistics import median

import torch

from course_utils.rank import report, timer

KILLS = 50


def state(version):
    return {"version": version, "weights": [torch.full((1 << 18,), float(version)) for _ in range(4)]}  # 4 MiB


def what_lies_there(path, old, new):
    """ "old", "new" or "neither", and the error of a file that can't be loaded."""
    try:
        found = torch.load(path)
        whole = all((w == found["version"]).all() for w in found["weights"])
        return {old: "old", new: "new"}[found["version"]] if whole else "neither", ""
    except Exception as error:
        return "neither", f"{type(error).__name__}: {str(error).partition('. ')[0]:.90}"


def save_and_kill(save, state, path, delay_s):
    """Save in a child process, and kill it `delay_s` after it began. Returns the seconds that it had."""
    began = mmap.mmap(-1, 8)  # memory that parent and child share
    child = os.fork()
    if child == 0:
        began[:] = struct.pack("d", time.perf_counter())
        try:
            save(state, path)
            signal.pause()  # done; wait for the kill
        finally:
            os._exit(1)
    while began[:] == bytes(8):
        time.sleep(0.0001)
    (began_s,) = struct.unpack("d", began[:])
    time.sleep(max(0.0, began_s + delay_s - time.perf_counter()))
    os.kill(child, signal.SIGKILL)
    at_s = time.perf_counter() - began_s
    os.waitpid(child, 0)
    return at_s


def main():
    atomic_save = runpy.run_path(sys.argv[1])["atomic_save"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.pt")
        for way, save in (("onto the same name", torch.save), ("another name, then rename", atomic_save)):
            saves_s = []
            for _ in range(7):
                with timer() as t:
                    save(state(0), path)
                saves_s.append(t.seconds)
                report(way=way, save_s=t.seconds)
            for kill in range(KILLS):
                old, new = 2 * kill, 2 * kill + 1
                torch.save(state(old), path)
                at_s = save_and_kill(save, state(new), path, random.uniform(0, 2 * median(saves_s)))
                left, error = what_lies_there(path, old, new)
                report(way=way, at_s=at_s, left=left, error=error)


if __name__ == "__main__":
    main()
