"""Talking to Slurm: submit, look at and cancel a job. Every question has a time limit, because Slurm's programs
wait for ever on a dead cluster."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER_S = 20.0
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESIZING", "SPECIAL_EXIT")
RUNNING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED")
# What `scontrol show job` or `sacct` may say about a job that they have forgotten, or never knew.
_UNKNOWN = re.compile(r"invalid job id|not found|accounting storage is disabled|no such file", re.I)


class NoAnswer(Exception):
    """Slurm didn't answer, or refused; the message has its words."""


@dataclass(frozen=True)
class Job:
    """How a job stands: Slurm's word for its state, why it's in that state, its nodes as Slurm writes them, and how
    long it has run (seconds)."""

    state: str
    reason: str = ""
    nodes: str = ""
    run_s: float = float("nan")
    code: int | None = None  # of the batch script, once it has ended; negative for a signal

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def ended(self) -> bool:
        return self.state not in WAITING + RUNNING


def available() -> bool:
    """Whether Slurm's programs are on the path."""
    return shutil.which("sbatch") is not None and shutil.which("scontrol") is not None


def submit(path: str, env: Mapping[str, str] | None = None) -> str:
    """Hand a batch file to Slurm; returns the number of the job. Raises NoAnswer, with Slurm's reason if it refuses."""
    return _ask(["sbatch", "--parsable", path], env).strip().splitlines()[-1].partition(";")[0]


def cancel(number: str) -> None:
    """End a job, whether it waits or runs; nothing happens if it has ended already. Raises NoAnswer."""
    try:
        _ask(["scancel", number])
    except NoAnswer as error:
        if not _UNKNOWN.search(str(error)):
            raise


def look(number: str) -> Job | None:
    """How a job stands; None if Slurm has forgotten it, which it does some minutes after the end. Raises NoAnswer."""
    try:
        return parse(_ask(["scontrol", "--oneliner", "show", "job", number]))
    except NoAnswer as error:
        if not _UNKNOWN.search(str(error)):
            raise
    try:  # a cluster that keeps accounts remembers it for longer
        table = ["--noheader", "--parsable2", "--allocations", "--format", "State,ExitCode,NodeList,ElapsedRaw"]
        answer = _ask(["sacct", *table, "--jobs", number])
    except NoAnswer:
        return None
    line = (answer.strip().splitlines() or [""])[-1].split("|")
    if len(line) != 4 or not line[0]:
        return None
    return Job(line[0].split()[0], "", line[2], float(line[3] or "nan"), _code(line[1]))


def outcome(number: str, folder: str | Path) -> dict[str, Any]:
    """How a job stands: `cause` (waiting, running, timeout, cancelled, lost; empty if its ranks know), `code`,
    `wall_s` and Slurm's own words in `job`."""
    job = look(number)
    if job is None:  # Slurm has forgotten it, but it may have left its exit code
        try:
            code: int | None = int(Path(folder, "exitcode").read_text())
        except (OSError, ValueError):
            code = None
        job = Job("LOST" if code is None else "FAILED" if code else "COMPLETED", code=code)
    causes = {"TIMEOUT": "timeout", "DEADLINE": "timeout", "CANCELLED": "cancelled", "LOST": "lost"}
    cause = "waiting" if job.waits else "running" if not job.ended else causes.get(job.state, "")
    code = 0 if job.state == "COMPLETED" else job.code or 1
    return {
        "cause": cause,
        "code": code,
        "wall_s": job.run_s,
        "job": {"id": number, "state": job.state, "reason": job.reason, "nodes": job.nodes},
    }


def parse(text: str) -> Job:
    """What `scontrol --oneliner show job` says of one job. Raises NoAnswer for other text."""
    found = dict(re.findall(r"(?:^|\s)(JobState|Reason|RunTime|NodeList|ExitCode|DerivedExitCode)=(\S*)", text))
    if "JobState" not in found:
        raise NoAnswer(f"scontrol's answer isn't about a job: {text.strip()[:200]!r}")
    known = {name: "" if value in ("None", "(null)", "N/A") else value for name, value in found.items()}
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", known.get("RunTime", ""))
    run_s = (
        sum(int(n or 0) * k for n, k in zip(clock.groups(), (86400, 3600, 60, 1), strict=True))
        if clock
        else float("nan")
    )
    return Job(
        known["JobState"],
        known.get("Reason", ""),
        known.get("NodeList", ""),
        float(run_s),
        _code(known.get("ExitCode", "")),
    )


def _code(text: str) -> int | None:
    """Slurm's CODE:SIGNAL as Python's exit code."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    return (-int(match[2]) if int(match[2]) else int(match[1])) if match else None


def _ask(command: list[str], env: Mapping[str, str] | None = None) -> str:
    try:
        # In a session of its own: a notebook's interrupt goes to the kernel's whole process group, and nobody would
        # know of a job that was only half submitted.
        answer = subprocess.run(
            command,
            env=_clean(os.environ if env is None else env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise NoAnswer(f"there is no {command[0]} here: no such file") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} has not answered for {ANSWER_S:.0f} s") from None
    if answer.returncode:
        words = [line.strip() for line in answer.stderr.splitlines() if line.strip()] or [
            f"{command[0]} ended with exit code {answer.returncode}"
        ]
        raise NoAnswer(words[0] if len(words) == 1 else "; ".join(words[:3]))
    return answer.stdout


def _clean(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of an outer job, which sbatch would take as options."""
    return {k: v for k, v in env.items() if not k.startswith("SLURM_") or k == "SLURM_CONF"}
