"""Lesson 11's stand-in for a cluster: runs a batch file as Slurm would on the first node, with programs that only note how they were called."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

RUN_S = 10.0

# Each fake notes itself as a line of words, quoted by the shell. srun starts its command once for each node, as the task of that node.
_SRUN = r"""#!/bin/bash
printf '%q ' srun "${SRUN_CPUS_PER_TASK-}" "$@" >> "$FAKE_NOTES"; echo >> "$FAKE_NOTES"
while [ $# -gt 0 ]; do
    case "$1" in
        -c|-n|-N|-o|-e|-u|-l|-K) case "$1" in -u|-l|-K) shift;; *) shift 2;; esac;;
        --cpus-per-task|--ntasks|--ntasks-per-node|--nodes|--output|--error) shift 2;;
        -*) shift;;
        *) break;;
    esac
done
code=0 i=0
for node in $FAKE_NODES; do
    FAKE_HERE=$node SLURM_NODEID=$i SLURM_PROCID=$i SLURMD_NODENAME=$node "$@" || code=$?
    i=$((i + 1))
done
exit $code
"""
_NOTE = r"""#!/bin/bash
printf '%q ' NAME "${FAKE_HERE-}" "$@" >> "$FAKE_NOTES"; echo >> "$FAKE_NOTES"
exit ${FAKE_CODE:-0}
"""
_HOSTNAME = '#!/bin/bash\necho "${FAKE_HERE:-${FAKE_NODES%% *}}"\n'
_SCONTROL = r"""#!/bin/bash
[ "$1 $2" = "show hostnames" ] || [ "$1 $2" = "show hostname" ] || exit 1
[ "${3:-$SLURM_JOB_NODELIST}" = "$SLURM_JOB_NODELIST" ] && printf '%s\n' $FAKE_NODES || echo "$3"
"""
_PROGRAMS = ("torchrun", "python", "python3")


@dataclass
class Played:
    """What a batch file did. `sruns` are (cores by the environment, words); `launches` are (node, words of torchrun); `agents` without an srun have node ""."""

    code: int
    stderr: str
    sruns: list[tuple[str, list[str]]] = field(default_factory=list)
    launches: list[tuple[str, list[str]]] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)  # what ran by python alone


def options(text: str) -> dict[str, str]:
    """The options of the #SBATCH lines in the head of a file, with long names; flags have an empty value. Slurm stops reading at the first command."""
    short = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-t": "--time", "-J": "--job-name", "-o": "--output", "-p": "--partition"}
    found: dict[str, str] = {}
    for line in text.splitlines()[1:]:
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if not line.startswith("#SBATCH"):
            continue
        words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        while words:
            name, equals, value = words.pop(0).partition("=")
            if not equals and words and not words[0].startswith("-"):
                value = words.pop(0)
            found[short.get(name, name)] = value
    return found


def play(text: str, nodes: Sequence[str], job_id: int, cpus_per_task: str, code: int = 0) -> Played:
    """Run the file with bash as the job `job_id` on `nodes`; every torchrun ends with `code`."""
    with tempfile.TemporaryDirectory(prefix="course-job-") as at:
        bin_, notes, job = Path(at, "bin"), Path(at, "notes"), Path(at, "job.sbatch")
        bin_.mkdir()
        notes.touch()
        job.write_text(text)
        fakes = {"srun": _SRUN, "hostname": _HOSTNAME, "scontrol": _SCONTROL} | {name: _NOTE.replace("NAME", name) for name in _PROGRAMS}
        for name, source in fakes.items():
            (bin_ / name).write_text(source)
            (bin_ / name).chmod(0o755)
        listed = "gpu[" + ",".join(re.sub(r"\D", "", n) for n in nodes) + "]"
        env = {
            "PATH": f"{bin_}:/usr/bin:/bin", "HOME": at, "USER": "learner", "FAKE_NOTES": str(notes), "FAKE_NODES": " ".join(nodes), "FAKE_CODE": str(code),
            "SLURM_JOB_ID": str(job_id), "SLURM_JOBID": str(job_id), "SLURM_NNODES": str(len(nodes)), "SLURM_JOB_NUM_NODES": str(len(nodes)),
            "SLURM_JOB_NODELIST": listed, "SLURM_NODELIST": listed, "SLURM_NTASKS": str(len(nodes)), "SLURM_CPUS_PER_TASK": cpus_per_task,
            "SLURM_SUBMIT_DIR": at, "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "0", "SLURMD_NODENAME": nodes[0],
        }  # fmt: skip
        env = {name: value for name, value in env.items() if value}
        try:
            ended = subprocess.run(["bash", str(job)], cwd=at, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_S)
        except subprocess.TimeoutExpired:
            return Played(124, f"the file did not come to its end within {RUN_S:.0f} s")
        played = Played(ended.returncode, ended.stderr.replace(at, ""))
        for line in notes.read_text(errors="replace").splitlines():
            program, first, *words = shlex.split(line.replace("$'", "'"))
            if program == "srun":
                played.sruns.append((first, words))
            elif program == "torchrun":
                played.launches.append((first, words))
            elif words[:2] == ["-m", "torch.distributed.run"]:
                played.launches.append((first, words[2:]))
            else:
                played.plain.append(" ".join([program, *words]))
        return played


def agent(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options of a torchrun, with hyphens and as long names, and the program with its arguments."""
    found: dict[str, str] = {}
    rest = list(words)
    flags = ("--standalone", "--no-python", "-m", "--module")
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        name = "--" + name.lstrip("-").replace("_", "-")
        if not equals and name not in flags and rest:
            value = rest.pop(0)
        found[name] = value
    return found, rest


def seconds(time: str) -> float | None:
    """Seconds of a --time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; None for something else."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if not match:
        return None
    days, *parts = (None if g is None else int(g) for g in match.groups())
    a, b, c = parts
    if days is not None:
        return days * 86400 + (a or 0) * 3600 + (b or 0) * 60 + (c or 0)
    if b is None:
        return (a or 0) * 60
    return (a or 0) * 60 + b if c is None else (a or 0) * 3600 + b * 60 + c
