"""Start a plain program by torchrun, as a learner does at home: no launcher of the course, no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# What Python imports as it starts. As the rank ends, it notes the threads that are left.
_NOTES_THREADS = """
import atexit, os, pathlib

def note():
    names = [(task / "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()]
    pathlib.Path(os.environ["NOTES_OF_TEST"], str(os.getpid())).write_text("\\n".join(names))

if "RANK" in os.environ and os.path.isdir("/proc/self/task"):
    atexit.register(note)
"""


def torchrun(program: Path, *args: str, ranks: int, cwd: Path, mesh: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `program` to its end. If all went well, no rank of it may have left a thread of gloo to Python's own end:
    the process then aborts in one run of five ("terminate called without an active exception"). A `mesh` keeps
    its group and gloo's threads to the end, whatever a program does; 22 runs of two ranks with FSDP ended well."""
    with tempfile.TemporaryDirectory() as notes, tempfile.TemporaryDirectory() as start:
        Path(start, "sitecustomize.py").write_text(_NOTES_THREADS)
        answer = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
             str(program), *args],
            capture_output=True, text=True, timeout=250, cwd=cwd,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": start,
                              "NOTES_OF_TEST": notes},
        )  # fmt: skip
        threads = [note.read_text().split("\n") for note in Path(notes).iterdir()]
    if answer.returncode == 0 and not mesh:
        assert len(threads) == ranks or sys.platform != "linux"
        left = [name for names in threads for name in names if name.startswith("pt_gloo")]
        assert not left, f"threads of gloo outlive the program: {left}"
    return answer
