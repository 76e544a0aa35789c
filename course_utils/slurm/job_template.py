"""The one batch file of this course: what `%%ranks --engine slurm` submits, and what lessons 09 to 12 give you to take
home.

Slurm warns the batch script before the job's time is over, and only the script: a signal to the step would end
torchrun, one that it handles as well as one that it doesn't know, and where Slurm tracks processes by cgroups it
wouldn't reach the ranks behind torchrun anyway. So the script creates a file, SAVE_FILE. The ranks look for it after
every step, save, create REQUEUE_FILE and end, and the script puts the job back into the queue.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..launching.rank_environment import RESTARTS

TEXT = Path(__file__).with_name("batch_file.sh")


def torchrun(program: str, ranks_per_node: int | str, max_restarts: int = 0, launcher: str = "torchrun") -> str:
    """The command of each node's task: a torchrun that starts the ranks there. `program` is the script with its
    arguments, quoted for a shell, and so are the ranks of a node if a variable holds them."""
    restarts = f" --max-restarts={max_restarts}" if max_restarts else ""
    return (
        f"{launcher} \\\n"
        f'    --nnodes="$SLURM_NNODES" --nproc-per-node={ranks_per_node}{restarts} \\\n'
        '    --rdzv-backend=c10d --rdzv-endpoint="$first:$port" --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"'
        " \\\n"
        f"    {program}"
    )


def batch_file(
    task: str,
    name: str,
    nodes: int,
    cpus_per_node: int,
    minutes: int,
    warn_s: int,
    gpu_option: str = "",
    output: str = "%x-%j.log",
    options: Sequence[str] = (),
    folder: str = '"$PWD/$SLURM_JOB_ID"',
    exports: Sequence[str] = (),
    setup: Sequence[str] = (),
    srun: Sequence[str] = (),
    at_end: Sequence[str] = (),
) -> str:
    """The text of a file for `sbatch` that starts `task` once on each node, warns it before its time is up, and queues
    the job again if it asks for that.

    task           what srun runs on each node, for example from `torchrun`; `$first` is the first node's name and
                   `$port` a port of this job's own
    cpus_per_node  cores for all ranks of a node, their DataLoader workers included
    minutes        Slurm ends the job after so many; `warn_s` seconds before that (or up to a minute earlier) SAVE_FILE
                   appears
    folder         for SAVE_FILE and REQUEUE_FILE, quoted for a shell; all nodes must see it; the default is a folder
                   for each job
    options        more lines for Slurm; `exports`, `setup` and `at_end` are lines of shell: variables, what to do
                   before srun, what to do after it
    """
    warned = "or up to a minute earlier, warn this script; B: is for batch, so torchrun doesn't get it"
    head = [
        ("--job-name=" + re.sub(r"[^\w.-]", "_", name), ""),
        (f"--nodes={nodes}", "machines"),
        ("--ntasks-per-node=1", "one task on each, see srun below"),
        (f"--cpus-per-task={cpus_per_node}", "cores of a node, for all its ranks and their DataLoader workers"),
        *([(gpu_option, "GPUs of a node")] if gpu_option else []),
        (f"--time={minutes}", "minutes"),
        (f"--signal=B:USR1@{warn_s}", f"{warn_s} s before they're over, {warned}"),
        ("--requeue", "allow the job to be queued again, below or by Slurm when a node fails"),
        ("--open-mode=append", "and then go on writing the same log"),
        (f"--output={output}", ""),
        *[(option, "") for option in options],
    ]
    width = max(len(option) for option, why in head if why)
    return _Text(TEXT.read_text(encoding="utf-8")).substitute(
        options=_lines(f"#SBATCH {option.ljust(width) + '  # ' + why if why else option}" for option, why in head),
        folder=folder,
        exports=_lines(exports),
        setup=_lines(setup),
        srun="".join(f" {option}" for option in srun),
        task=task,
        at_end=_lines(at_end),
    )


class _Text(string.Template):
    """The text of the file. What is filled in stands as @{name}, because $ means something to the shell."""

    delimiter = "@"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def torchrun_job(
    script: str,
    args: Sequence[object] = (),
    nodes: int = 2,
    gpus_per_node: int = 8,
    cpus_per_gpu: int = 8,
    minutes: int = 60,
    warn_s: int = 120,
    max_restarts: int = 0,
    out: str = "",
) -> str:
    """A batch file of plain Slurm and plain torchrun, to copy and keep: one rank for each GPU. It needs nothing of this
    course. The program gets `out`, a file's name, as `--out` in the job's own folder, so that two jobs don't share it.
    """
    program = shlex.join([script, *map(str, args)]) + (f' --out "$folder/{out}"' if out else "")
    return batch_file(
        torchrun(program, '"$SLURM_GPUS_ON_NODE"', max_restarts),
        name=script.rpartition("/")[2].removesuffix(".py"),
        nodes=nodes,
        cpus_per_node=gpus_per_node * cpus_per_gpu,
        minutes=minutes,
        warn_s=warn_s,
        gpu_option=f"--gpus-per-node={gpus_per_node}",
        exports=[
            f"export {name}={value}  # otherwise restarted ranks read the addresses of the dead"
            for name, value in (RESTARTS if max_restarts else {}).items()
        ],
    )
