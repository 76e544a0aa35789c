"""Ranks on the nodes of a cluster: a job that Slurm queues, watched through Slurm's own words and the files that the ranks leave."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import jobs, local_slurm
from ..machine import Machine, Placement
from . import Handle, Request
from .sbatch import Site, job_file

LOOK_S = (0.5, 5.0)  # from one look at the job to the next, in its first minute and at its end, and in between
STOP_S = 10.0  # for a cancelled job to end; Slurm goes on ending it alone
SILENT_S = 120.0  # without an answer from Slurm a job is given up, though it may go on


class JobHandle(Handle):
    """A submitted job, with the same face as ranks on this machine."""

    def __init__(self, number: str, request: Request, where: str, quiet: bool, detach: bool):
        self.number, self.request, self.where, self.quiet, self.detach = number, request, where, quiet, detach
        self.start = "slurm"
        self.folder = Path(request.folder)
        self.cause = ""  # why we end it: timeout, interrupted
        self.job: dict[str, str] = {"id": number, "state": "", "reason": "", "nodes": ""}
        self.ended = False
        self.last = ""  # what was said last of its state
        self.looked = 0.0
        self.submitted = self.answered = time.monotonic()
        self.ranks_since = self.stop_at = float("inf")

    def wait(self, seconds: float) -> dict[str, Any] | None:
        """The outcome when the job has ended; otherwise None, after `seconds`. Ends it when its ranks have had their time.

        Of a job that is left to itself this is at once the outcome for now.
        """
        if self.detach:
            self._say(f"It goes on by itself: Run.load({str(self.folder / 'run.json')!r}).refresh() looks at it, scancel {self.number} ends it.")
            return self._outcome({"cause": "waiting"})
        time.sleep(seconds)
        now = time.monotonic()
        if self.cause != "" and now > self.stop_at:
            return self._outcome({})
        if self.ranks_since == float("inf") and any(self.folder.glob("rank*.pid")):
            self.ranks_since = now
        over = now - self.ranks_since - self.request.timeout
        if self.cause == "" and (over > 3.0 or over > 0.2 and all(p.stat().st_size for p in self.folder.glob("rank*.stack"))):
            self._cancel("timeout")  # by now each rank has left its stack, as it was told at its start
        soon = now - self.submitted < 60 or self.cause or (self.folder / "exitcode").exists()
        if now < self.looked + LOOK_S[not soon]:
            return None
        self.looked = now
        try:
            found = jobs.outcome(self.number, self.folder)
        except jobs.NoAnswer as error:
            if now - self.answered < SILENT_S:
                return None
            self._say(f"no answer from Slurm for {SILENT_S:.0f} s ({error}); job {self.number} may go on")
            return self._outcome({"cause": "lost"})
        self.answered, self.job = now, found["job"]
        if found["cause"] == "waiting":
            self._waits(self.job["reason"])
        elif found["cause"] == "running":
            if self.job["state"] == "RUNNING":
                self._say("job {} runs on {}".format(self.number, self.job["nodes"]))
        else:
            return self._outcome(found)
        return None

    def _waits(self, reason: str) -> None:
        if self.ranks_since < float("inf"):  # it was queued again: its ranks will have all their time
            self.ranks_since = float("inf")
            for old in self.folder.glob("rank*.pid"):
                old.unlink(missing_ok=True)
            log = self.folder / "launcher.log"
            failed = re.findall(r"Node failure on (\S+)", log.read_text(errors="replace")) if log.exists() else []
            self._say(f"job {self.number} is queued again" + (f", for node {failed[-1]} has failed" if failed else ""))
        self._say(f"job {self.number} waits ({reason})" if reason else f"job {self.number} waits")

    def stop(self) -> None:
        """Cancel the job; `wait` then gives the outcome."""
        self._cancel("interrupted")

    def close(self) -> None:
        if not self.ended:  # something went wrong on our side
            self._cancel("interrupted")

    def _cancel(self, cause: str) -> None:
        if self.cause:
            return
        self.cause, self.stop_at, self.looked = cause, time.monotonic() + STOP_S, 0.0
        try:
            jobs.cancel(self.number)
        except jobs.NoAnswer as error:
            self._say(f"job {self.number} could not be cancelled ({error}); try scancel {self.number}")

    def _outcome(self, found: dict[str, Any]) -> dict[str, Any]:
        self.ended = True
        known = {"cause": "", "code": 1, "wall_s": float("nan"), "job": self.job} | found
        return {**known, "cause": self.cause or known["cause"], "ranks": {"-1": {"exitcode": known["code"]}}}

    def _say(self, words: str) -> None:
        if words != self.last and not self.quiet:
            print(words, flush=True)
        self.last = words


def write(request: Request, placement: Placement, site: Site, nodes: int, given: Mapping[str, str | None]) -> Path:
    """Write the job's file into the folder of the launch; returns its path."""
    path = Path(request.folder, "job.sbatch")
    path.write_text(job_file(request, placement, site, nodes, given))
    request.command = ["sbatch", str(path)]
    return path


def start(request: Request, nodes: int, quiet: bool, detach: bool) -> JobHandle:
    """Hand the written file to Slurm. Raises ValueError, in a line that names the file, where there is no Slurm, or it refuses the job."""
    path = request.command[1]
    if not jobs.available():
        raise ValueError(
            f"there is no Slurm here (no sbatch and scontrol on the path); the job is written, for a machine that has it: {shlex.join(request.command)}"
        )
    try:
        number = jobs.submit(path, request.env)
    except jobs.NoAnswer as error:
        raise ValueError(f"Slurm does not take the job: {error}; its file is {path}") from None
    if not quiet:
        print(f"job {number} is submitted: {path}", flush=True)
    own = local_slurm.find(Path(os.environ.get("SLURM_CONF", "none")).parent)
    where = f"{nodes} node{'s' * (nodes > 1)} of " + (f"a local Slurm on {Machine.here()}" if own else "a Slurm cluster")
    return JobHandle(number, request, where, quiet, detach)
