"""End a local Slurm when the process that uses it has ended, however it ended: a killed kernel says no goodbye."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from ...folders import PACKAGE
from .cluster import SlurmCluster, find, start_time

LOOK_S = 0.5


def watch(cluster: SlurmCluster) -> None:
    """Take `cluster` down when this process ends. A small process watches for that; it ends with the cluster."""
    command = [sys.executable, "-m", "course_utils.slurm.local_cluster.guard", str(os.getpid()), cluster.folder]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    process = subprocess.Popen(
        command,
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.returncode = 0  # it outlives us, and nobody waits for it


def main() -> int:
    """`... local_cluster.guard PID FOLDER`: wait for the end of the process or of the cluster."""
    pid, folder = int(sys.argv[1]), sys.argv[2]
    started = start_time(pid)
    while started is not None and start_time(pid) == started:
        if find(folder) is None:
            return 0
        time.sleep(LOOK_S)
    cluster = find(folder)
    if cluster is not None:
        cluster.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
