"""Lesson 11: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import hints_11
from .base import Difference, Exercise, on_ranks, some
from .cases_11 import HANG_CASES, JOB_CASES, JOB_IDS, NODE_NAMES, NODES_CASES, TABLE_CASES
from .fake_slurm import Played, agent, options, play, seconds

ADAPTER = Path(__file__).resolve().parent / "ranks_11.py"


# --- 11.1 -------------------------------------------------------------------------------------------------------------------


def judge_job(answer: Path) -> list[str]:
    texts = on_ranks(ADAPTER, "job", answer, ranks=1)[0]["texts"]
    for text, (nodes, gpus, cpus, minutes, warn_s, command) in zip(texts, JOB_CASES, strict=True):
        _head(text, nodes, gpus, gpus * cpus, minutes, warn_s)
        names = NODE_NAMES[:nodes]
        runs = [play(text, names, number, _cores(options(text)) or "") for number in JOB_IDS]
        for number, played in zip(JOB_IDS, runs, strict=True):
            _started(played, names, gpus, str(gpus * cpus), command, str(number))
        ports = [agent(played.launches[0][1])[0] for played in runs]
        if _meeting(ports[0])[1] == _meeting(ports[1])[1]:
            raise Difference("one port", f"Two jobs meet at the same port, {_meeting(ports[0])[1]}.", "another port for each job: take it from $SLURM_JOB_ID")
        failed = play(text, names, JOB_IDS[0], _cores(options(text)) or "", code=3)
        if failed.code == 0:
            raise Difference("exit code", "The training fails, and the job ends well.", "an exit code other than 0, so that Slurm and you see it")
    return [
        f"jobs for {' and '.join(str(case[0]) for case in JOB_CASES)} nodes: what is asked of Slurm, the time, and the signal before its end",
        "run by bash with stand-ins for Slurm: one torchrun on each node, all GPUs, all cores, the program with its arguments",
        "all agents of a job meet at its first node, jobs at different ports, and a training that fails is a job that fails",
    ]


def _cores(head: Mapping[str, str]) -> str | None:
    return head.get("--cpus-per-task")


def _head(text: str, nodes: int, gpus: int, cores: int, minutes: int, warn_s: int) -> None:
    if not text.startswith("#!"):
        raise Difference("no shell", "The file does not begin with #!, and sbatch refuses it.", "#!/bin/bash as the first line, without anything before it")
    head = options(text)
    late = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    if len(late) > 0 and not head:
        raise Difference("too late", "The #SBATCH lines come after a command; Slurm stops reading at the first one.", "the #SBATCH lines at once after #!")
    got = [f"the head says: {some([f'{k}={v}' if v else k for k, v in head.items()], 12)}"]
    if head.get("--nodes") not in (str(nodes), f"{nodes}-{nodes}"):
        raise Difference("nodes", f"The file does not ask for {nodes} nodes.", f"--nodes={nodes}", got)
    per_node, tasks = head.get("--ntasks-per-node"), head.get("--ntasks")
    if per_node != "1" and tasks != str(nodes):
        said = f"--ntasks-per-node={per_node}" if per_node else "nothing is said of tasks"
        raise Difference("tasks", f"The file does not ask for one task a node ({said}).", "--ntasks-per-node=1: torchrun starts the ranks", got)
    asked = {head.get("--gpus-per-node", "").split(":")[-1], head.get("--gres", "").rpartition("gpu:")[2].split(":")[-1], head.get("--gpus-per-task", "")}
    if str(gpus) not in asked and head.get("--gpus") != str(gpus * nodes):
        raise Difference("gpus", f"The file does not ask for {gpus} GPUs on each node.", f"--gpus-per-node={gpus}", got)
    if head.get("--cpus-per-task") != str(cores):
        raise Difference("cores", f"The task of a node does not get {cores} cores.", f"--cpus-per-task={cores}, for the ranks of all its GPUs", got)
    time_s = seconds(head.get("--time", ""))
    if time_s != minutes * 60:
        said = "no time" if "--time" not in head else f"--time={head['--time']}" + ("" if time_s is None else f", which is {time_s / 60:g} minutes")
        raise Difference("time", f"The job does not get {minutes} minutes ({said}).", f"--time={minutes}, or 00:{minutes}:00 and the like", got)
    signal = head.get("--signal", "")
    name, _, ahead = signal.partition("@")
    if name.startswith(("B:", "b:")):
        raise Difference("signal", f"--signal={signal} goes to the shell of the batch file alone.", f"--signal=USR1@{warn_s}, which goes to the ranks", got)
    if name not in ("USR1", "SIGUSR1", "10") or ahead != str(warn_s):
        raise Difference("signal", f"The ranks are not sent USR1 {warn_s} s before the end.", f"--signal=USR1@{warn_s}", got)


def _meeting(words: Mapping[str, str]) -> tuple[str, str]:
    """Host and port at which an agent meets the others."""
    if "--rdzv-endpoint" in words:
        host, _, port = words["--rdzv-endpoint"].rpartition(":")
        return (host, port) if host else (port, "")
    return words.get("--master-addr", ""), words.get("--master-port", "")


def _started(played: Played, names: Sequence[str], gpus: int, cores: str, command: Sequence[str], number: str) -> None:
    said = [f"bash said: {line}" for line in played.stderr.strip().splitlines()[-2:]]
    if played.code == 124 and "end within" in played.stderr:
        raise Difference("endless", "The file does not come to its end.", "an end", said)
    got = [f"on {node or 'no node'}: torchrun {' '.join(words)}" for node, words in played.launches] or [*played.plain[:2], *said] or ["nothing was started"]
    here = [node for node, _ in played.launches]
    if not played.launches and played.plain:
        raise Difference("no torchrun", "The program is started by python, with no torchrun to give it ranks.", "srun torchrun ... on each node", got)
    if here == [""] * len(here):
        raise Difference(
            "no srun", "torchrun is started on the first node only." if here else "Nothing starts torchrun.", f"srun torchrun, on {some(list(names))}", got
        )
    if here != list(names):
        raise Difference("not each node", f"torchrun is started on {some(here, 8)}.", f"once on each of {some(list(names))}", got)
    told = [agent(words) for _, words in played.launches]
    words, program = told[0]
    for found, _ in told:
        if found.get("--nnodes", "1") not in (str(len(names)), f"{len(names)}:{len(names)}"):
            raise Difference("nnodes", f"torchrun is told of {found.get('--nnodes', 'one')} nodes.", f"--nnodes={len(names)}", got)
        if found.get("--nproc-per-node") not in (str(gpus), "gpu"):
            raise Difference(
                "ranks", f"torchrun starts {found.get('--nproc-per-node', '1')} ranks on a node.", f"--nproc-per-node={gpus}, one for each GPU", got
            )
    _met([found for found, _ in told], names, number, got)
    if program != list(command):
        raise Difference("command", f"The program is called as {program}.", f"{list(command)}, each argument whole", got)
    if not any(first == cores or _value(run, "--cpus-per-task", "-c") == cores for first, run in played.sruns):
        raise Difference(
            "cores of srun", "srun is not told of the cores, and gives its task a single one.", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", got
        )
    if not any(any(w.startswith("--kill-on-bad-exit") and not w.endswith("=0") or w.startswith("-K") and w != "-K0" for w in run) for _, run in played.sruns):
        raise Difference("not ended", "When torchrun fails on one node, the others go on waiting.", "srun --kill-on-bad-exit=1", got)


def _met(told: Sequence[Mapping[str, str]], names: Sequence[str], number: str, got: list[str]) -> None:
    meetings = [_meeting(words) for words in told]
    if "--standalone" in told[0]:
        raise Difference("standalone", "With --standalone each node trains alone.", f"one meeting point for all, on {names[0]}", got)
    if len(set(meetings)) > 1:
        raise Difference("own meeting", "Each node goes to a meeting point of its own.", f"one for all, on {names[0]}", got)
    host, port = meetings[0]
    if host != names[0]:
        raise Difference("host", f"The agents meet at {host or 'no host'!r}.", f"the first node of the job, here {names[0]}", got)
    if not port.isdigit() or not 1024 <= int(port) <= 65_535:
        raise Difference("port", f"The port is {port or 'missing'}.", "a number from 1024 to 65535, for job numbers of any size", got)
    if told[0].get("--rdzv-backend", "static") != "c10d":
        numbers = [words.get("--node-rank") for words in told]
        if numbers != [str(i) for i in range(len(names))]:
            raise Difference("backend", f"Without --rdzv-backend=c10d each node needs its number; they have {numbers}.", "--rdzv-backend=c10d", got)
    elif number not in told[0].get("--rdzv-id", ""):
        raise Difference("rdzv id", f"The rendezvous is called {told[0].get('--rdzv-id', 'none')!r}.", "--rdzv-id=$SLURM_JOB_ID, so that jobs do not mix", got)


def _value(words: Sequence[str], long: str, short: str) -> str:
    """The value of an option of srun."""
    for i, word in enumerate(words):
        if word.startswith(f"{long}="):
            return word.partition("=")[2]
        if word in (long, short) and i + 1 < len(words):
            return words[i + 1]
    return ""


# --- 11.2 -------------------------------------------------------------------------------------------------------------------


def judge_hang(answer: Path) -> list[str]:
    found = on_ranks(ADAPTER, "hang", answer, ranks=1)[0]["found"]
    for (word, ranks), (entered, (right, wanted)) in zip(found, HANG_CASES, strict=True):
        case = "; ".join(f"rank {r}: {some(list(e)) if e is not None else 'no record'}" for r, e in sorted(entered.items()))
        expected, got = f"({right!r}, {wanted})", [f"({word!r}, {ranks})"]
        if word != right:
            raise Difference(f"not {right}", f"The answer is {word!r} ({case}).", expected, got)
        if sorted(ranks) == wanted and ranks != wanted:
            raise Difference("order", f"The ranks are not in order ({case}).", expected, got)
        if ranks != wanted:
            others = sorted(set(entered) - set(wanted))
            symptom = "those who wait" if ranks == others and word == "behind" else f"ranks {right}"
            raise Difference(symptom, f"The answer names other ranks ({case}).", expected, got)
    return [f"{len(HANG_CASES)} hangs of 2 to 4 ranks: what went wrong, and on which ranks to look"]


# --- 11.3 -------------------------------------------------------------------------------------------------------------------


def judge_nodes(answer: Path) -> list[str]:
    chosen = on_ranks(ADAPTER, "nodes", answer, ranks=1)[0]["chosen"]
    for n, (step_s, steps, deadline_h, budget, (fixed, each)) in zip(chosen, NODES_CASES, strict=True):
        rows = {k: (fixed + each * k + steps * s / 3600, k * steps * s / 3600) for k, s in step_s.items()}
        fits = [k for k, (done, cost) in rows.items() if done <= deadline_h + 1e-9 and cost <= budget + 1e-9]
        right = min(fits, key=lambda k: (round(rows[k][1], 9), rows[k][0])) if fits else None
        if n == right:
            continue
        told = [f"{k} nodes: done after {done:.1f} h, {cost:.1f} node hours" for k, (done, cost) in sorted(rows.items())]
        case = f"within {deadline_h:g} h and {budget:g} node hours"
        if n is not None and n not in rows:
            raise Difference("not measured", f"{n} nodes were not measured ({case}).", f"one of {sorted(rows)}", told)
        if n is None:
            raise Difference("none", f"The answer is None, and there is one ({case}).", f"{right} nodes", told)
        if rows[n][0] > deadline_h + 1e-9:
            raise Difference("too late", f"{n} nodes are done after {rows[n][0]:.1f} h, with the queue ({case}).", f"{right}", told)
        if rows[n][1] > budget + 1e-9:
            raise Difference("too dear", f"{n} nodes take {rows[n][1]:.1f} node hours ({case}).", f"{right}", told)
        assert right is not None  # n fits, so something does
        if round(rows[n][1], 9) > round(rows[right][1], 9):
            raise Difference("not the cheapest", f"{n} nodes are in time, and {right} would cost less ({case}).", f"{right} nodes", told)
        raise Difference("not the soonest", f"{n} nodes cost as much as {right}, which are done sooner ({case}).", f"{right} nodes", told)
    return [f"{len(NODES_CASES)} deadlines, budgets and queues: the cheapest of the measured runs that is in time", "and None where there is none"]


# --- 11.4 -------------------------------------------------------------------------------------------------------------------


def _table(step_s: Mapping[int, Sequence[float]], kind: str, middle: bool = True, one: bool = False) -> list[tuple[int, float, float]]:
    """The right table; with other options what known mistakes make of it."""
    seconds_ = {n: statistics.median(s) if middle else statistics.mean(s) for n, s in sorted(step_s.items())}
    first = min(seconds_)
    rows = []
    for n, s in seconds_.items():
        ideal = n if one else n / first
        speedup = seconds_[first] / s * (ideal if kind == "weak" else 1)
        rows.append((n, speedup, speedup / ideal))
    return rows


def _largest(rows: Sequence[tuple[float, float, float]], least: float) -> int:
    best = int(rows[0][0])
    for n, _, efficiency in rows:
        if efficiency < least - 1e-9:
            break
        best = int(n)
    return best


def judge_table(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "table", answer, ranks=1)[0]
    for rows, (step_s, kind, _) in zip(told["tables"], TABLE_CASES, strict=True):
        right = _table(step_s, kind)
        case = f"{kind} scaling on {some(sorted(step_s))} nodes"
        got = [f"{n:g} nodes: {s:.3f}, {e:.3f}" for n, s, e in rows]
        expected = "; ".join(f"{n} nodes: {s:.3f}, {e:.3f}" for n, s, e in right)
        if [n for n, _, _ in rows] != [n for n, _, _ in right]:
            same = sorted(n for n, _, _ in rows) == [n for n, _, _ in right]
            raise Difference("order" if same else "rows", f"The rows are those of {some([f'{n:g}' for n, _, _ in rows])} nodes ({case}).", expected, got)
        if _near(rows, right):
            continue
        other = "strong" if kind == "weak" else "weak"
        for symptom, wrong, said in (
            ("mean", _table(step_s, kind, middle=False), "The mean of the steps is taken, and one slow step spoils it"),
            ("other kind", _table(step_s, other), f"This is {other} scaling"),
            ("reference", _table(step_s, kind, one=True), "The smallest run counts as one node"),
            ("percent", [(n, s, 100 * e) for n, s, e in right], "The efficiency is in percent"),
        ):
            if _near(rows, wrong):
                raise Difference(symptom, f"{said} ({case}).", expected, got)
        i = next(i for i, (a, b) in enumerate(zip(rows, right, strict=True)) if not _near([a], [b]))
        column = "speed-up" if abs(rows[i][1] - right[i][1]) > 1e-6 else "efficiency"
        raise Difference(column, f"The {column} of {right[i][0]} nodes is another one ({case}).", expected, got)
    for count, (step_s, kind, least) in zip(told["counts"], TABLE_CASES, strict=True):
        rows = _table(step_s, kind)
        if count != _largest(rows, least):
            case = "; ".join(f"{n} nodes {e:.3f}" for n, _, e in rows) + f"; at least {least}"
            after = [n for n, _, e in rows if e >= least]
            symptom = "after a bad one" if after and count == max(after) else "largest"
            raise Difference(symptom, f"{count} nodes is not the largest run that is worth it ({case}).", f"{_largest(rows, least)} nodes", [f"{count} nodes"])
    return [
        f"{len(TABLE_CASES)} tables of strong and weak scaling, against the smallest run: speed-up and efficiency",
        "the largest run that is worth its nodes",
    ]


def _near(rows: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> bool:
    return all(abs(a - b) <= 1e-6 * max(1.0, abs(b)) for row, want in zip(rows, right, strict=True) for a, b in zip(row, want, strict=True))


EXERCISES = {
    e.name: e
    for e in [
        Exercise("11.1", "write the batch file", judge_job, hints_11.JOB, how="with stand-ins for Slurm's programs"),
        Exercise("11.2", "read a hang", judge_hang, hints_11.HANG, how=""),
        Exercise("11.3", "choose nodes", judge_nodes, hints_11.NODES, how=""),
        Exercise("11.4", "make a scaling table", judge_table, hints_11.TABLE, how=""),
    ]
}
