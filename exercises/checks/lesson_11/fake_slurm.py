"""Lesson 11's stand-in for a cluster: runs a batch file as Slurm would on the first node, with programs that only note
how they were called."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

RUN_S = 20.0
UNMATCHED = "a quote that nothing closes"  # an option of no file: sbatch refuses it

# Each fake notes itself: the number of its arguments, its name, where it is, and the arguments, with a zero byte after
# each, since an argument may hold anything else. srun starts its command once for each node, as the task of that node,
# or on as many of them as its own --nodes or --ntasks says.
_SRUN = r"""#!/bin/bash
printf '%s\0' $# srun "$PWD" "${SRUN_CPUS_PER_TASK-}" "$@" >> "$FAKE_NOTES"
tasks=1000000
at_most() { [ "${1%%-*}" -ge "$tasks" ] 2> /dev/null || tasks=${1%%-*}; }
while [ $# -gt 0 ]; do
    case "$1" in
        -n|-N|--ntasks|--nodes) at_most "$2"; shift 2;;
        --ntasks=*|--nodes=*) at_most "${1#*=}"; shift;;
        -n*|-N*) at_most "${1#-?}"; shift;;
        -c|-o|-e|--cpus-per-task|--ntasks-per-node|--output|--error) shift 2;;
        -*) shift;;
        *) break;;
    esac
done
code=0 i=0
[ -z "${FAKE_EVENTS-}" ] || set -m  # each task is a process group of its own, and all run at once
for node in $FAKE_NODES; do
    [ "$i" -lt "$tasks" ] || break
    export FAKE_HERE=$node SLURM_NODEID=$i SLURM_PROCID=$i SLURMD_NODENAME=$node
    # The task notes its number itself: by the time that it has begun, its number is known.
    if [ -z "${FAKE_EVENTS-}" ]; then "$@" || code=$?; else (echo "task $BASHPID" >> "$FAKE_EVENTS"; exec "$@") & fi
    i=$((i + 1))
done
for task in $(jobs -p); do wait -f $task || code=$?; done
exit $code
"""
# With FAKE_EVENTS it is an agent whose ranks look for the file after each step, and save. Like the real one, it doesn't
# handle USR1.
_NOTE = r"""#!/bin/bash
printf '%s\0' $# NAME "$(pwd -P)" "${FAKE_HERE-}" "$@" >> "$FAKE_NOTES"
[ -z "${FAKE_EVENTS-}" ] && exit ${FAKE_CODE:-0}
[ -e "$FAKE_SAVE" ] && echo "stale $FAKE_HERE" >> "$FAKE_EVENTS"
echo "begun $FAKE_HERE" >> "$FAKE_EVENTS"
exec {never}<> <(:)  # nothing comes from here: a wait without a new process, so a busy machine doesn't make it longer
for ((step = 0; step < 100; step++)); do
    [ -e "$FAKE_SAVE" ] && break
    read -r -t 0.02 -u $never
done
[ -e "$FAKE_SAVE" ] && echo "warned $FAKE_HERE" >> "$FAKE_EVENTS"
read -r -t 0.3 -u $never
echo "ended $FAKE_HERE" >> "$FAKE_EVENTS"
exit ${FAKE_CODE:-0}
"""
_HOSTNAME = '#!/bin/bash\necho "${FAKE_HERE:-${FAKE_NODES%% *}}"\n'
_SCONTROL = r"""#!/bin/bash
[ "$1" = requeue ] && exit
[ "$1 $2" = "show hostnames" ] || [ "$1 $2" = "show hostname" ] || exit 1
[ "${3:-$SLURM_JOB_NODELIST}" = "$SLURM_JOB_NODELIST" ] && printf '%s\n' $FAKE_NODES || echo "$3"
"""
# However long the ranks take to save: who waits for them by a number of seconds has waited too short.
_SLEEP = "#!/bin/bash\nexit\n"
_PROGRAMS = ("torchrun", "python", "python3")


@dataclass
class Warned:
    """What became of a job whose shell, or whose tasks, got a signal while it trained. Each list has the nodes where
    that happened."""

    code: int | None  # of the batch file, negative for a signal; None when it did not come to its end
    stale: list[str]  # the file was there at the start
    begun: list[str]
    warned: list[str]  # the ranks saw the file
    ended: list[str]  # the agent came to its own end, before the batch file did


@dataclass
class Played:
    """What a batch file did. `sruns` are (cores by the environment, words). `launches` are (node, words of torchrun),
    where the node is "" without an srun. `elsewhere` has the folders, other than the one where the job was submitted,
    in which torchrun was started."""

    code: int
    stderr: str
    sruns: list[tuple[str, list[str]]] = field(default_factory=list)
    launches: list[tuple[str, list[str]]] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)  # what ran by python alone
    elsewhere: list[str] = field(default_factory=list)


def options(text: str) -> dict[str, str]:
    """The options in the #SBATCH lines at the head of a file, by their long names; flags have an empty value. Like
    Slurm, it stops reading at the first command."""
    short = {
        "-N": "--nodes",
        "-n": "--ntasks",
        "-c": "--cpus-per-task",
        "-t": "--time",
        "-J": "--job-name",
        "-o": "--output",
        "-p": "--partition",
        "-G": "--gpus",
    }
    found: dict[str, str] = {}
    for line in text.splitlines()[1:]:
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if not line.startswith("#SBATCH"):
            continue
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError:
            found[UNMATCHED] = line
            continue
        while words:
            name, equals, value = words.pop(0).partition("=")
            if not equals and words and not words[0].startswith("-"):
                value = words.pop(0)
            found[short.get(name, name)] = value
    return found


def gpus_of(head: Mapping[str, str], nodes: int) -> int | None:
    """How many GPUs of a node the options in a file's head ask for, in any of the ways that Slurm has; None if none."""

    def count(value: str) -> int:  # 4, h100:4, or h100 for one
        last = value.rpartition(":")[2]
        return int(last) if last.isdigit() else 1

    for item in head.get("--gres", "").split(","):
        if re.match(r"(gres[/:])?gpu(:|$)", item):
            return count(item)
    if "--gpus-per-node" in head:
        return count(head["--gpus-per-node"])
    if "--gpus-per-task" in head:
        return count(head["--gpus-per-task"]) * _tasks(head, nodes) // nodes
    total = count(head["--gpus"]) if "--gpus" in head else 0
    return total // nodes if total and total % nodes == 0 else None


def _tasks(head: Mapping[str, str], nodes: int) -> int:
    """How many tasks a job has by its head: one for each node, if it doesn't say."""
    per_node, tasks = head.get("--ntasks-per-node", "1"), head.get("--ntasks", "")
    return int(tasks) if tasks.isdigit() else nodes * (int(per_node) if per_node.isdigit() else 1)


def play(text: str, nodes: Sequence[str], job_id: int, code: int = 0) -> Played:
    """Run the file with bash as the job `job_id` on `nodes`; every torchrun ends with `code`."""
    with tempfile.TemporaryDirectory(prefix="course-job-") as at:
        job, env = _stage(Path(at).resolve(), text, nodes, job_id, code)
        folder = env["SLURM_SUBMIT_DIR"]
        try:
            ended = subprocess.run(
                ["bash", str(job)],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=RUN_S,
            )
        except subprocess.TimeoutExpired:
            return Played(124, f"the file did not come to its end within {RUN_S:.0f} s")
        played = Played(ended.returncode, ended.stderr.replace(at, ""))
        noted = Path(env["FAKE_NOTES"]).read_text(errors="replace").split("\0")
        while len(noted) > 1:
            number, program, here, first = noted[:4]
            words = noted[4 : 4 + int(number)]
            del noted[: 4 + int(number)]
            torchrun = program == "torchrun" or words[:2] == ["-m", "torch.distributed.run"]
            if program == "srun":
                played.sruns.append((first, words))
            elif torchrun:
                played.launches.append((first, words if program == "torchrun" else words[2:]))
            else:
                played.plain.append(" ".join([program, *words]))
            if torchrun and here != folder:
                played.elsewhere.append(here.replace(str(Path(at).resolve()), ""))
        return played


def play_warned(
    text: str, nodes: Sequence[str], job_id: int, to: str, save: str, code: int = 0, number: int = signal.SIGUSR1
) -> Warned:
    """Run the file as `play` does. Once all nodes train, send the signal `number` as Slurm would: `to` the batch
    "shell", to each "task", or to a task's whole "tree".

    `save` is the name of the file that ranks look for, in the folder that the job was submitted from. An earlier job
    has left one there.
    """
    with tempfile.TemporaryDirectory(prefix="course-job-") as at:
        job, env = _stage(Path(at).resolve(), text, nodes, job_id, code)
        folder = env["SLURM_SUBMIT_DIR"]
        events, mark = Path(at, "events"), Path(folder, save)
        events.touch()
        mark.touch()
        env |= {"FAKE_EVENTS": str(events), "FAKE_SAVE": str(mark)}

        def seen(kind: str) -> list[str]:
            return sorted(
                words[1]
                for words in map(str.split, events.read_text().splitlines())
                if words[0] == kind and len(words) > 1
            )

        with subprocess.Popen(
            ["bash", str(job)],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as shell:
            try:
                until = time.monotonic() + RUN_S
                while len(seen("begun")) < len(nodes) and shell.poll() is None and time.monotonic() < until:
                    time.sleep(0.01)
                # All at the same moment: otherwise a node that hasn't got the signal yet may already see what another
                # one did about it.
                send, pids = (
                    (os.killpg if to == "tree" else os.kill),
                    [shell.pid] if to == "shell" else list(map(int, seen("task"))),
                )
                for each in (signal.SIGSTOP, number, signal.SIGCONT):
                    for pid in pids:
                        with suppress(ProcessLookupError):
                            send(pid, each)
                with suppress(subprocess.TimeoutExpired):
                    shell.wait(RUN_S)
                return Warned(shell.returncode, *(seen(kind) for kind in ("stale", "begun", "warned", "ended")))
            finally:
                for group in [shell.pid, *map(int, seen("task"))]:
                    with suppress(ProcessLookupError):
                        os.killpg(group, signal.SIGKILL)


def _stage(at: Path, text: str, nodes: Sequence[str], job_id: int, code: int) -> tuple[Path, dict[str, str]]:
    """Put the file and the fake programs into the folder `at`; returns the file's path and the environment that Slurm
    would give it. As with Slurm, the file that runs is a copy in a folder of Slurm's own."""
    bin_, notes, job = at / "bin", at / "notes", at / f"spool/job{job_id:05}/slurm_script"
    for folder in (bin_, at / "home", at / "submitted", job.parent):
        folder.mkdir(parents=True)
    notes.touch()
    job.write_text(text)
    fakes = {"srun": _SRUN, "hostname": _HOSTNAME, "scontrol": _SCONTROL, "sleep": _SLEEP} | {
        name: _NOTE.replace("NAME", name) for name in _PROGRAMS
    }
    for name, source in fakes.items():
        (bin_ / name).write_text(source)
        (bin_ / name).chmod(0o755)
    env = {
        "PATH": f"{bin_}:/usr/bin:/bin",
        "HOME": str(at / "home"),  # not where the job was submitted
        "USER": "learner",
        "FAKE_NOTES": str(notes),
        "FAKE_NODES": " ".join(nodes),
        "FAKE_CODE": str(code),
        "SLURM_SUBMIT_DIR": str(at / "submitted"),
        **_told(options(text), nodes, job_id),
    }
    return job, {name: value for name, value in env.items() if value}


def _told(head: Mapping[str, str], nodes: Sequence[str], job_id: int) -> dict[str, str]:
    """What Slurm tells a batch file in its environment, by the section "Output environment variables" of
    https://slurm.schedmd.com/sbatch.html. What the head didn't ask for is empty, which stands for not set."""
    listed = "gpu[" + ",".join(re.sub(r"\D", "", n) for n in nodes) + "]" if len(nodes) > 1 else nodes[0]
    tasks, gpus = _tasks(head, len(nodes)), gpus_of(head, len(nodes)) or 0
    cores = head.get("--cpus-per-task", "")
    times = f"(x{len(nodes)})" if len(nodes) > 1 else ""
    on_node = str(int(cores) * tasks // len(nodes)) if cores.isdigit() else ""
    numbers = ",".join(map(str, range(gpus)))
    return {
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOBID": str(job_id),
        "SLURM_JOB_NAME": head.get("--job-name", "slurm_script"),
        "SLURM_JOB_PARTITION": head.get("--partition", "gpu"),
        "SLURM_CLUSTER_NAME": "cluster",
        "SLURM_SUBMIT_HOST": "login1",
        "SLURM_NNODES": str(len(nodes)),
        "SLURM_JOB_NUM_NODES": str(len(nodes)),
        "SLURM_JOB_NODELIST": listed,
        "SLURM_NODELIST": listed,
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NTASKS_PER_NODE": head.get("--ntasks-per-node", ""),
        "SLURM_TASKS_PER_NODE": f"{tasks // len(nodes)}{times}",
        "SLURM_CPUS_PER_TASK": cores,
        "SLURM_CPUS_ON_NODE": on_node,
        "SLURM_JOB_CPUS_PER_NODE": on_node and on_node + times,
        "SLURM_GPUS": head.get("--gpus", ""),
        "SLURM_GPUS_PER_NODE": head.get("--gpus-per-node", ""),
        "SLURM_GPUS_PER_TASK": head.get("--gpus-per-task", ""),
        "SLURM_GPUS_ON_NODE": str(gpus or ""),
        "SLURM_JOB_GPUS": numbers,
        "CUDA_VISIBLE_DEVICES": numbers,
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": nodes[0],
    }


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
    """Seconds of a --time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; None for anything else."""
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
