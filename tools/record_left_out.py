"""Leave parts out of lesson 11's batch file, see on a real Slurm of this machine what happens, and keep it under
data/recorded/. It takes some two minutes, and needs Slurm's programs.

    python tools/record_left_out.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from course_utils import Machine, Provenance  # noqa: E402
from course_utils.slurm import local_cluster  # noqa: E402

JOB = ROOT / "notebooks" / "take_home" / "11_job.sbatch"
PROGRAM = """\
import os, time
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} on {os.environ['SLURMD_NODENAME']},"
      f" attempt {os.environ.get('SLURM_RESTART_COUNT', '0')}", flush=True)
while not os.path.exists(os.environ["SAVE_FILE"]):
    time.sleep(0.1)
print("saved", flush=True)
"""
WAIT_S = 120.0
# What's left out, and what's replaced in the file for that.
PARTS = {"B:": ("--signal=B:USR1", "--signal=USR1"), "--open-mode=append": ("#SBATCH --open-mode=append", "# "),
         "--ntasks-per-node=1": ("--ntasks-per-node=1", "--ntasks-per-node=2")}  # fmt: skip


def batch_file(folder: Path, replaced: tuple[str, str]) -> str:
    """The batch file for two nodes with a rank each, without GPUs, with one part replaced."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    text = re.sub(r"#SBATCH --gpus-per-node.*\n", "", JOB.read_text())
    here = [
        ("--cpus-per-task=64", "--cpus-per-task=1"),
        ('"$SLURM_GPUS_ON_NODE"', "1"),
        ("    11_train.py", f"    {program}"),
        ("torchrun \\", f"{sys.executable} -m torch.distributed.run \\"),
        ("--output=%x-%j.log", f"--output={folder}/log"),
        ('"$PWD/$SLURM_JOB_ID"', str(folder)),
    ]
    for old, new in (*here, replaced):
        if text.count(old) < 1:
            raise SystemExit(f"{old!r} isn't in the batch file any more")
        text = text.replace(old, new)
    return text


def command(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout


def state(job: str) -> str:
    return re.search(r"JobState=(\S+)", command("scontrol", "show", "job", job))[1]  # type: ignore[index]


def wait(holds: Any, what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(f"this didn't happen within {WAIT_S:.0f} s: {what}")
        time.sleep(0.2)


def trial(part: str, whole: bool) -> dict[str, Any]:
    """Run a job of the whole file, or without a part of it, do to it what shows the part, and say how it went."""
    folder = Path(tempfile.mkdtemp(prefix="left-out-"))
    replaced = ("#!/bin/bash", "#!/bin/bash") if whole else PARTS[part]
    (folder / "job").write_text(batch_file(folder, replaced))
    log = folder / "log"
    job = command("sbatch", "--parsable", str(folder / "job")).strip()

    def lines(pattern: str) -> list[str]:
        return re.findall(pattern, log.read_text(errors="replace") if log.exists() else "")

    def done() -> bool:
        return state(job) in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")

    started = time.monotonic()
    wait(lambda: len(lines(r"rank \d of 2 on \w+, attempt 0")) == 2, "two ranks begin")
    torchruns = len(command("pgrep", "-f", f"^{sys.executable} -m torch.distributed.run.*{folder}/program.py").split())
    if part == "B:":  # as Slurm warns: the batch script alone, or everything that srun has started
        command("scancel", "--signal=USR1", *(["--batch"] if whole else []), job)
    elif part == "--open-mode=append":
        command("scontrol", "requeue", job)
        wait(lambda: lines(r"rank \d of 2 on \w+, attempt 1"), "the second attempt begins")
        (folder / "save_now").touch()
    else:
        (folder / "save_now").touch()
    until = time.monotonic() + WAIT_S
    while not done() and time.monotonic() < until:  # torchruns that took no part may wait for their turn
        time.sleep(0.2)
    if not done():
        ended = "RUNNING"
        command("scancel", job)
    else:
        ended = state(job)
    facts = {
        "saved": len(lines(r"(?m)^saved$")),
        "first_lines": len(lines(r"rank \d of 2 on \w+, attempt 0")),
        "nodes": sorted(re.search(r"on (\w+)", line)[1] for line in lines(r"rank \d of 2 on \w+")),  # type: ignore[index]
        "torchruns": torchruns,
        "state": ended,
        "requeued": (folder / "requeue").exists(),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(part, "whole" if whole else "left out", facts, log.read_text(errors="replace")[-1500:], sep="\n", flush=True)
    return facts


def main() -> None:
    os.chdir(tempfile.gettempdir())
    cluster = local_cluster.up(nodes=2, folder=Path(tempfile.gettempdir(), f"left-out-{os.getpid()}"))
    try:
        found = {(part, whole): trial(part, whole) for part in PARTS for whole in (True, False)}
    finally:
        cluster.down()
    here = Provenance.here(f"2 nodes of a local Slurm on {Machine.here()}")
    points = []
    for (part, whole), facts in found.items():
        seconds = facts.pop("seconds")
        points.append({"point": {"left_out": f"with {part}" if whole else part}, "args": [],
                       "repeats": [{"wall_s": seconds, "ranks": [[facts]]}]})  # fmt: skip
    raw = {
        "name": "11_left_out", "machine": here.machine, "versions": dict(here.versions), "date": here.date,
        "placement": "2 nodes, a torchrun and a rank on each", "engine": "slurm", "script": JOB.name,
        "source": JOB.read_text().splitlines(), "kind": "sweep", "points": points,
    }  # fmt: skip
    name = re.sub(r"[^a-z0-9]+", "-", here.machine.lower()).strip("-")
    path = ROOT / "data" / "recorded" / f"11_left_out.{name}.json"
    path.write_text(json.dumps(raw, indent=1, ensure_ascii=False) + "\n")
    print(path)


if __name__ == "__main__":
    main()
