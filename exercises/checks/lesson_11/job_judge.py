"""Lesson 11.1: what a batch file asks of Slurm, and what it does when bash runs it."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence

from ..judging import Answer, differ, require, some
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
        require(failed.code != 0, "exit code", how="failed")
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
    require(text.startswith("#!"), "no shell")
    head = options(text)
    require(UNMATCHED not in head, "quote", line=head.get(UNMATCHED, ""))
    late = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    require(not late or head, "too late")
    got = [f"the head says: {some([f'{k}={v}' if v else k for k, v in head.items()], 12)}"]
    facts = {"nodes": nodes, "gpus": gpus, "cores": cores, "minutes": minutes, "ahead": warn_s}
    require(head.get("--nodes") in (str(nodes), f"{nodes}-{nodes}"), "nodes", got, **facts)
    per_node, tasks = head.get("--ntasks-per-node"), head.get("--ntasks")
    said = f"--ntasks-per-node={per_node}" if per_node else "it says nothing about tasks"
    require(per_node == "1" or tasks == str(nodes), "tasks", got, said=said, **facts)
    require(gpus_of(head, nodes) == gpus, "gpus", got, **facts)
    require(head.get("--cpus-per-task") == str(cores), "cores", got, **facts)
    time_s = seconds(head.get("--time", ""))
    if time_s != minutes * 60:
        said = (
            "no time"
            if "--time" not in head
            else f"--time={head['--time']}" + ("" if time_s is None else f", which is {time_s / 60:g} minutes")
        )
        differ("time", got, said=said, **facts)
    _, number, ahead = _signal(head)
    require(number and ahead == str(warn_s), "signal", got, **facts)


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
        facts = {"name": name, "save": SAVE, "code": found.code}
        require(not found.stale, "stale", got, **facts)
        require(to != "shell" or found.code != -number, "no trap", got, **facts)
        lost = sorted(set(names) - set(found.ended) - set(found.warned))
        require(to == "shell" or not lost, "torchrun killed", got, where=f"on {some(lost)}", **facts)
        warned = found.ended != sorted(names) or found.warned == sorted(names)
        require(warned, "not warned", got, **facts)
        require(found.ended == sorted(names), "ends early", got, **facts)
        require(found.code is not None, "endless", got, how="warned", **facts)
        ends = "well" if code == 0 else f"with {code}"
        require((found.code == 0) == (code == 0), "exit code", got, how="warned", ends=ends, **facts)


def _meeting(words: Mapping[str, str]) -> tuple[str, str]:
    """Host and port at which an agent meets the others."""
    if "--rdzv-endpoint" in words:
        host, _, port = words["--rdzv-endpoint"].rpartition(":")
        return (host, port) if host else (port, "")
    return words.get("--master-addr", ""), words.get("--master-port", "")


def _started(played: Played, names: Sequence[str], gpus: int, cores: str, command: Sequence[str], number: str) -> None:
    said = [f"bash said: {line}" for line in played.stderr.strip().splitlines()[-2:]]
    require(played.code != 124 or "end within" not in played.stderr, "endless", said, how="run")
    got = (
        [f"on {node or 'no node'}: torchrun {' '.join(words)}" for node, words in played.launches]
        or [*played.plain[:2], *said]
        or ["nothing was started"]
    )
    here = [node for node, _ in played.launches]
    facts = {"names": some(list(names)), "n": len(names), "gpus": gpus, "cores": cores}
    require(played.launches or not played.plain, "no torchrun", got, **facts)
    if here == [""] * len(here):
        how = "nothing" if not here else "first" if len(names) > 1 else "bare"
        differ("no srun", got, how=how, **facts)
    require(here == list(names), "not each node", got, here=some(here, 8), **facts)
    told = [agent(words) for _, words in played.launches]
    words, program = told[0]
    for found, _ in told:
        right = found.get("--nnodes", "1") in (str(len(names)), f"{len(names)}:{len(names)}")
        require(right, "nnodes", got, nnodes=found.get("--nnodes", "one"), **facts)
        right = found.get("--nproc-per-node") in (str(gpus), "gpu", "auto")
        require(right, "ranks", got, ranks=found.get("--nproc-per-node", "1"), **facts)
    _met([found for found, _ in told], names, number, got)
    require(not played.elsewhere, "folder", got, folder="".join(played.elsewhere[:1]), **facts)
    require(program == list(command), "command", got, program=program, command=list(command), **facts)
    knows = any(first == cores or _value(run, "--cpus-per-task", "-c") == cores for first, run in played.sruns)
    require(knows, "cores of srun", got, **facts)
    require(any(any(map(_kills, run)) for _, run in played.sruns), "not ended", got, **facts)


def _kills(word: str) -> bool:
    """Whether this word of an srun asks it to end all tasks when one fails."""
    return word.startswith("--kill-on-bad-exit") and not word.endswith("=0") or word.startswith("-K") and word != "-K0"


def _apart(launches: Mapping[int, Sequence[str]]) -> None:
    """Raise if two jobs, by their numbers, meet at one port."""
    seen: dict[str, int] = {}
    for number, words in launches.items():
        port = _meeting(agent(words)[0])[1]
        require(port not in seen, "one port", port=port, one=seen.get(port), other=number)
        seen[port] = number


def _met(told: Sequence[Mapping[str, str]], names: Sequence[str], number: str, got: list[str]) -> None:
    meetings = [_meeting(words) for words in told]
    require(meetings, "no srun", got, how="job", job=number)
    facts = {"first": names[0]}
    require("--standalone" not in told[0], "standalone", got, **facts)
    require(len(set(meetings)) == 1, "own meeting", got, **facts)
    host, port = meetings[0]
    require(host == names[0], "host", got, host=repr(host or "no host"), **facts)
    require(port.isdigit() and 1024 <= int(port) <= 65_535, "port", got, port=port or "missing", **facts)
    if told[0].get("--rdzv-backend", "static") != "c10d":
        numbers = [words.get("--node-rank") for words in told]
        require(numbers == [str(i) for i in range(len(names))], "backend", got, numbers=numbers)
    else:
        name = told[0].get("--rdzv-id", "")
        require(number in name, "rdzv id", got, name=repr(told[0].get("--rdzv-id", "none")))


def _value(words: Sequence[str], long: str, short: str) -> str:
    """The value of an option of srun."""
    for i, word in enumerate(words):
        if word.startswith(f"{long}="):
            return word.partition("=")[2]
        if word in (long, short) and i + 1 < len(words):
            return words[i + 1]
    return ""
