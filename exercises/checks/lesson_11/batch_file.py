"""Lesson 11.1: what a batch file asks of Slurm, and what it does when bash runs it."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence

from course_utils.show.units import counted

from ..judging import Answer, Difference, some
from .cases import JOB_CASES, JOB_IDS, NODE_NAMES, PORT_JOB_IDS, PORT_NEIGHBOURS, SAVE
from .fake_slurm import UNMATCHED, Played, agent, gpus_of, options, play, play_warned, seconds

SIGNALS = {s.name: int(s) for s in signal.Signals} | {s.name.removeprefix("SIG"): int(s) for s in signal.Signals}


def judge_job(answer: Answer) -> list[str]:
    rng = random.Random()
    more = [
        (rng.randint(2, 9), rng.randint(1, 8), rng.randint(1, 16), rng.randint(61, 4000), rng.randint(5, 600), ["t.py"])
        for _ in range(4)
    ]
    more[0] = (len(NODE_NAMES) - 1, *more[0][1:5], ["t.py", "it's", "", "a\\b", "two\n  lines"])
    told = answer.on_ranks("job", ranks=1, given=[*JOB_CASES, *more])[0]["texts"]
    texts = told[: len(JOB_CASES)]
    for text, (nodes, gpus, cpus, minutes, warn_s, command) in zip(texts, JOB_CASES, strict=True):
        _head(text, nodes, gpus, gpus * cpus, minutes, warn_s)
        names = NODE_NAMES[:nodes]
        runs = [play(text, names, number) for number in JOB_IDS]
        for number, played in zip(JOB_IDS, runs, strict=True):
            _started(played, names, gpus, str(gpus * cpus), command, str(number))
        _apart({number: played.launches[0][1] for number, played in zip(JOB_IDS, runs, strict=True)})
        failed = play(text, names, JOB_IDS[0], code=3)
        if failed.code == 0:
            raise Difference(
                "exit code",
                "The training fails, but the job ends well.",
                "an exit code other than 0, so that Slurm and you see it",
            )
    for text, (nodes, gpus, cpus, minutes, warn_s, _) in zip(told[len(JOB_CASES) :], more, strict=True):
        _head(text, nodes, gpus, gpus * cpus, minutes, warn_s)
    names = NODE_NAMES[1:]
    first = rng.randrange(10**5, 10**7)
    near = {}
    for number in [*PORT_JOB_IDS, first, *(first + k for k in PORT_NEIGHBOURS)]:
        played = play(texts[0], names, number)
        got = [f"job {number}, on {node}: torchrun {' '.join(words)}" for node, words in played.launches]
        _met([agent(words)[0] for _, words in played.launches], names, str(number), got)
        if number >= first:
            near[number] = played.launches[0][1]
    _apart(near)
    text, (nodes, gpus, cpus, _, _, command) = told[len(JOB_CASES)], more[0]
    _started(play(text, names, 7), names, gpus, str(gpus * cpus), command, "7")
    for text, case, code in zip(texts, JOB_CASES, (0, 3, 0), strict=True):
        _warned(text, NODE_NAMES[: case[0]], code)
    return [
        (
            f"jobs for {JOB_CASES[0][0]}, {JOB_CASES[1][0]} and {JOB_CASES[2][0]} nodes: what is asked of Slurm, the"
            " time, and the signal before its end"
        ),
        (
            "run by bash with stand-ins for Slurm: one torchrun on each node, all GPUs, all cores, the program with its"
            " arguments"
        ),
        (
            "all agents of a job meet at its first node, jobs at different ports, and a training that fails is a job"
            " that fails"
        ),
        (
            f"warned before the end as Slurm does it: {SAVE} appears, torchrun lives on, and the job waits until the"
            " ranks have saved"
        ),
    ]


def _signal(head: Mapping[str, str]) -> tuple[str, int, str]:
    """What --signal asks for, as Slurm reads it: who gets it ("B" for the shell alone), which signal (0 for none that
    a program could handle), and how many seconds before the end."""
    who, _, rest = head.get("--signal", "").upper().rpartition(":")
    name, _, ahead = rest.partition("@")
    number = int(name) if name.isdigit() else SIGNALS.get(name, 0)
    return who, 0 if number in (signal.SIGKILL, signal.SIGSTOP) or number > signal.SIGRTMAX else number, ahead


def _head(text: str, nodes: int, gpus: int, cores: int, minutes: int, warn_s: int) -> None:
    if not text.startswith("#!"):
        raise Difference(
            "no shell",
            "The file does not begin with #!, and sbatch refuses it.",
            "#!/bin/bash as the first line, without anything before it",
        )
    head = options(text)
    if UNMATCHED in head:
        raise Difference(
            "quote",
            f"A quote isn't closed in the line `{head[UNMATCHED]}`, and sbatch refuses the file.",
            "quotes in pairs",
        )
    late = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    if len(late) > 0 and not head:
        raise Difference(
            "too late",
            "The #SBATCH lines come after a command; Slurm stops reading at the first one.",
            "the #SBATCH lines right after #!",
        )
    got = [f"the head says: {some([f'{k}={v}' if v else k for k, v in head.items()], 12)}"]
    if head.get("--nodes") not in (str(nodes), f"{nodes}-{nodes}"):
        raise Difference("nodes", f"The file does not ask for {counted(nodes, 'node')}.", f"--nodes={nodes}", got)
    per_node, tasks = head.get("--ntasks-per-node"), head.get("--ntasks")
    if per_node != "1" and tasks != str(nodes):
        said = f"--ntasks-per-node={per_node}" if per_node else "it says nothing about tasks"
        raise Difference(
            "tasks",
            f"The file does not ask for one task per node ({said}).",
            "--ntasks-per-node=1: torchrun starts the ranks",
            got,
        )
    if gpus_of(head, nodes) != gpus:
        raise Difference(
            "gpus", f"The file does not ask for {counted(gpus, 'GPU')} on each node.", f"--gpus-per-node={gpus}", got
        )
    if head.get("--cpus-per-task") != str(cores):
        raise Difference(
            "cores",
            f"The task on each node does not get {cores} cores.",
            f"--cpus-per-task={cores}, for the ranks of all its GPUs",
            got,
        )
    time_s = seconds(head.get("--time", ""))
    if time_s != minutes * 60:
        said = (
            "no time"
            if "--time" not in head
            else f"--time={head['--time']}" + ("" if time_s is None else f", which is {time_s / 60:g} minutes")
        )
        raise Difference(
            "time",
            f"The job does not get {minutes} minutes ({said}).",
            f"--time={minutes}, or 00:{minutes}:00 and the like",
            got,
        )
    _, number, ahead = _signal(head)
    if not number or ahead != str(warn_s):
        raise Difference(
            "signal",
            f"Nobody gets a signal that can be handled {warn_s} s before the end.",
            f"--signal=B:USR1@{warn_s}, or another signal that a shell can trap",
            got,
        )


def _warned(text: str, names: Sequence[str], code: int) -> None:
    """Send the signal as Slurm would: with B: only to the shell, otherwise to srun's tasks. Whether their children get
    it too depends on the cluster."""
    head = options(text)
    shell, number, _ = _signal(head)
    name = signal.Signals(number).name.removeprefix("SIG") if number in set(signal.Signals) else f"signal {number}"
    told = (
        {"shell": "the batch shell"}
        if shell == "B"
        else {"task": "what srun starts", "tree": "what srun starts, and all below it"}
    )
    for to, who in told.items():
        found = play_warned(text, names, JOB_IDS[0], to, SAVE, code, number)
        got = [f"--signal={head['--signal']}: {who} got {name} while the job trained"]
        if found.stale:
            raise Difference(
                "stale",
                f"{SAVE} is still there from an earlier job, and ends this one at its first step.",
                f"rm -f {SAVE} before srun",
                got,
            )
        if to == "shell" and found.code == -number:
            raise Difference(
                "no trap",
                f"{name} ends the shell of the batch file, and with it the job.",
                f"trap 'touch {SAVE}' {name} before srun",
                got,
            )
        if to != "shell" and (lost := sorted(set(names) - set(found.ended) - set(found.warned))):
            where = f"on {some(lost)}"
            raise Difference(
                "torchrun killed",
                f"{name} reaches torchrun {where}, and ends it in the middle of a healthy training.",
                "B:, for the shell alone",
                got,
            )
        if found.ended == sorted(names) and found.warned != sorted(names):
            raise Difference(
                "not warned",
                f"The job trains on, and {SAVE} does not appear.",
                f"{SAVE} while the job still trains",
                got,
            )
        if found.ended != sorted(names):
            raise Difference(
                "ends early",
                "The batch file ends while the ranks are still saving, and Slurm ends them with it.",
                "a wait until srun has ended",
                got,
            )
        if found.code is None:
            raise Difference("endless", "The file never finishes after the warning.", "a file that finishes", got)
        if (found.code == 0) != (code == 0):
            how = "well" if code == 0 else f"with {code}"
            raise Difference(
                "exit code",
                f"After the warning the training ends {how}, but the job with {found.code}.",
                "the exit code of srun",
                got,
            )


def _meeting(words: Mapping[str, str]) -> tuple[str, str]:
    """Host and port at which an agent meets the others."""
    if "--rdzv-endpoint" in words:
        host, _, port = words["--rdzv-endpoint"].rpartition(":")
        return (host, port) if host else (port, "")
    return words.get("--master-addr", ""), words.get("--master-port", "")


def _started(played: Played, names: Sequence[str], gpus: int, cores: str, command: Sequence[str], number: str) -> None:
    said = [f"bash said: {line}" for line in played.stderr.strip().splitlines()[-2:]]
    if played.code == 124 and "end within" in played.stderr:
        raise Difference("endless", "The file never finishes.", "a file that finishes", said)
    got = (
        [f"on {node or 'no node'}: torchrun {' '.join(words)}" for node, words in played.launches]
        or [*played.plain[:2], *said]
        or ["nothing was started"]
    )
    here = [node for node, _ in played.launches]
    if not played.launches and played.plain:
        raise Difference(
            "no torchrun",
            "The program is started by python, with no torchrun to give it ranks.",
            "srun torchrun ... on each node",
            got,
        )
    if here == [""] * len(here):
        raise Difference(
            "no srun",
            ("torchrun is started on the first node only." if len(names) > 1 else "torchrun is started without srun.")
            if here
            else "Nothing starts torchrun.",
            f"srun torchrun, on {some(list(names))}",
            got,
        )
    if here != list(names):
        raise Difference(
            "not each node", f"torchrun is started on {some(here, 8)}.", f"once on each of {some(list(names))}", got
        )
    told = [agent(words) for _, words in played.launches]
    words, program = told[0]
    for found, _ in told:
        if found.get("--nnodes", "1") not in (str(len(names)), f"{len(names)}:{len(names)}"):
            raise Difference(
                "nnodes", f"torchrun waits for {found.get('--nnodes', 'one')} nodes.", f"--nnodes={len(names)}", got
            )
        if found.get("--nproc-per-node") not in (str(gpus), "gpu", "auto"):
            raise Difference(
                "ranks",
                f"torchrun starts {found.get('--nproc-per-node', '1')} ranks on a node.",
                f"--nproc-per-node={gpus}, one for each GPU",
                got,
            )
    _met([found for found, _ in told], names, number, got)
    if played.elsewhere:
        raise Difference(
            "folder",
            f"torchrun is started in another folder ({played.elsewhere[0]}) than the one the job was submitted from.",
            "the folder that the file starts in, where the program lies",
            got,
        )
    if program != list(command):
        raise Difference(
            "command", f"The program is called as {program}.", f"{list(command)}, each argument whole", got
        )
    if not any(first == cores or _value(run, "--cpus-per-task", "-c") == cores for first, run in played.sruns):
        raise Difference(
            "cores of srun",
            "srun doesn't know the number of cores, and gives its task a single one.",
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
            got,
        )
    if not any(
        any(
            w.startswith("--kill-on-bad-exit") and not w.endswith("=0") or w.startswith("-K") and w != "-K0"
            for w in run
        )
        for _, run in played.sruns
    ):
        raise Difference(
            "not ended", "If torchrun fails on one node, the others go on waiting.", "srun --kill-on-bad-exit=1", got
        )


def _apart(launches: Mapping[int, Sequence[str]]) -> None:
    """Raise if two jobs, by their numbers, meet at one port."""
    seen: dict[str, int] = {}
    for number, words in launches.items():
        port = _meeting(agent(words)[0])[1]
        if port in seen:
            raise Difference(
                "one port",
                f"Two jobs meet at the same port, {port}: {seen[port]} and {number}.",
                "another port for each of a thousand neighbours: take it from $SLURM_JOB_ID",
            )
        seen[port] = number


def _met(told: Sequence[Mapping[str, str]], names: Sequence[str], number: str, got: list[str]) -> None:
    meetings = [_meeting(words) for words in told]
    if not meetings:
        raise Difference("no srun", f"Nothing starts torchrun in job {number}.", "srun torchrun ... on each node", got)
    if "--standalone" in told[0]:
        raise Difference(
            "standalone", "With --standalone each node trains alone.", f"one meeting point for all, on {names[0]}", got
        )
    if len(set(meetings)) > 1:
        raise Difference(
            "own meeting", "Each node goes to a meeting point of its own.", f"one for all, on {names[0]}", got
        )
    host, port = meetings[0]
    if host != names[0]:
        raise Difference(
            "host", f"The agents meet at {host or 'no host'!r}.", f"the first node of the job, here {names[0]}", got
        )
    if not port.isdigit() or not 1024 <= int(port) <= 65_535:
        raise Difference(
            "port", f"The port is {port or 'missing'}.", "a number from 1024 to 65535, for job numbers of any size", got
        )
    if told[0].get("--rdzv-backend", "static") != "c10d":
        numbers = [words.get("--node-rank") for words in told]
        if numbers != [str(i) for i in range(len(names))]:
            raise Difference(
                "backend",
                f"Without --rdzv-backend=c10d each node needs its number; they have {numbers}.",
                "--rdzv-backend=c10d",
                got,
            )
    elif number not in told[0].get("--rdzv-id", ""):
        raise Difference(
            "rdzv id",
            f"The rendezvous is called {told[0].get('--rdzv-id', 'none')!r}.",
            "--rdzv-id=$SLURM_JOB_ID, so that jobs do not mix",
            got,
        )


def _value(words: Sequence[str], long: str, short: str) -> str:
    """The value of an option of srun."""
    for i, word in enumerate(words):
        if word.startswith(f"{long}="):
            return word.partition("=")[2]
        if word in (long, short) and i + 1 < len(words):
            return words[i + 1]
    return ""
