"""Ranks on the nodes of a cluster. Slurm queues them as a job; we watch it by asking Slurm, and by the files that the
ranks leave."""

from __future__ import annotations

import os
import re
import shlex
import time
from pathlib import Path
from typing import Any

from ..launching.engine import Engine
from ..launching.options import LaunchOptions
from ..launching.placement import Placement
from ..launching.request import Handle, Request
from ..machine.here import Machine
from ..show.units import counted
from . import jobs, local_cluster
from .job_file import job_file
from .job_placement import place_job
from .site import Site, load_site

LOOK_S = (0.5, 5.0)  # how often we look at the job: in its first minute and at its end, and in between
FILES_S = 0.5  # how often we look at the ranks' files, which lie on a file system that all nodes share
STOP_S = 10.0  # we wait this long for a cancelled job to end; Slurm then goes on alone
SILENT_S = 120.0  # we give up a job after so long without an answer from Slurm, though it may go on


class JobHandle(Handle):
    """A submitted job, used in the same way as ranks on this machine."""

    def __init__(self, number: str, request: Request, where: str, quiet: bool, detach: bool):
        self.number, self.request, self.where, self.quiet, self.detach = number, request, where, quiet, detach
        self.start, self.queued = "slurm", True
        self.folder = Path(request.folder)
        self.cause = ""  # why we end it: timeout, interrupted
        self.job: dict[str, str] = {"id": number, "state": "", "reason": "", "nodes": ""}
        self.ended = self.nearly_over = False
        self.last = ""  # what we said last about its state
        self.looked = self.looked_at_files = 0.0
        self.submitted = self.answered = time.monotonic()
        self.ranks_since = self.stop_at = float("inf")

    def wait(self, seconds: float) -> dict[str, Any] | None:
        """The outcome if the job has ended; otherwise None, after `seconds`. Cancels the job when its ranks' time is
        up.

        For a detached job, it returns the outcome so far, at once.
        """
        if self.detach:
            self._say(
                f"It goes on by itself: Run.load({str(self.folder / 'run.json')!r}).refresh() looks at it, scancel"
                f" {self.number} ends it."
            )
            return self._outcome({"cause": "waiting"})
        time.sleep(seconds)
        now = time.monotonic()
        if self.cause != "" and now > self.stop_at:
            return self._outcome({})
        if now >= self.looked_at_files + FILES_S:
            self.looked_at_files = now
            self._look_at_files(now)
        soon = now - self.submitted < 60 or self.cause or self.nearly_over
        if now < self.looked + LOOK_S[not soon]:
            return None
        self.looked = now
        try:
            found = jobs.outcome(self.number, self.folder)
        except jobs.NoAnswer as error:
            if now - self.answered < SILENT_S:
                return None
            self._say(f"Slurm hasn't answered for {SILENT_S:.0f} s ({error}); job {self.number} may still go on")
            return self._outcome({"cause": "lost"})
        self.answered, self.job, self.queued = now, found["job"], found["cause"] == "waiting"
        if found["cause"] == "waiting":
            self._waits(self.job["reason"])
        elif found["cause"] == "running":
            if self.job["state"] == "RUNNING":
                self._say("job {} runs on {}".format(self.number, self.job["nodes"]))
        else:
            return self._outcome(found)
        return None

    def _look_at_files(self, now: float) -> None:
        """Find out when the ranks began, whether their time is up, and whether the job's script is at its end."""
        if self.ranks_since == float("inf") and any(self.folder.glob("rank*.pid")):
            self.ranks_since = now
        over = now - self.ranks_since - self.request.timeout
        if self.cause == "" and (
            over > 3.0 or over > 0.2 and all(p.stat().st_size for p in self.folder.glob("rank*.stack"))
        ):
            self._cancel("timeout")  # by now each rank has written its stack, by a timer that it set at its start
        self.nearly_over = (self.folder / "exitcode").exists()

    def _waits(self, reason: str) -> None:
        if self.ranks_since < float("inf"):  # it was queued again: its ranks get their full time anew
            self.ranks_since = float("inf")
            for old in self.folder.glob("rank*.pid"):
                old.unlink(missing_ok=True)
            log = self.folder / "launcher.log"
            failed = re.findall(r"Node failure on (\S+)", log.read_text(errors="replace")) if log.exists() else []
            self._say(f"job {self.number} is queued again" + (f", because node {failed[-1]} failed" if failed else ""))
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
            self._say(f"couldn't cancel job {self.number} ({error}); try scancel {self.number}")

    def _outcome(self, found: dict[str, Any]) -> dict[str, Any]:
        self.ended = True
        known = {"cause": "", "code": 1, "wall_s": float("nan"), "job": self.job} | found
        return {**known, "cause": self.cause or known["cause"], "ranks": {"-1": {"exitcode": known["code"]}}}

    def _say(self, words: str) -> None:
        if words != self.last and not self.quiet:
            print(words, flush=True)
        self.last = words


class Slurm(Engine):
    """A job on a cluster: the launch as a batch file, handed to Slurm."""

    elsewhere = by_torchrun = True

    def __init__(self, options: LaunchOptions):
        super().__init__(options)
        self.site = Site()

    def place(self, machine: Machine) -> Placement:
        self.site, asked = load_site(), self.options
        return place_job(self.site, asked.nodes, asked.ranks, asked.gpus_per_rank, asked.device, asked.threads)

    def start(self, request: Request, placement: Placement) -> JobHandle:
        options = self.options
        path = write(request, placement, self.site, options)
        if not jobs.available():
            raise ValueError(
                "there is no Slurm here (no sbatch and scontrol on the path); you can submit the job on a machine that"
                f" has it: {self.by_hand(request, placement)}"
            )
        try:
            number = jobs.submit(str(path), request.env)
        except jobs.NoAnswer as error:
            raise ValueError(f"Slurm didn't take the job: {error}; its file is {path}") from None
        if not options.quiet:
            print(f"job {number} is submitted: {path}", flush=True)
        own = local_cluster.find(Path(os.environ.get("SLURM_CONF", "none")).parent)
        where = f"{counted(options.nodes, 'node')} of " + (
            f"a local Slurm on {Machine.here()}" if own else "a Slurm cluster"
        )
        return JobHandle(number, request, where, options.quiet, options.detach)

    def dry(self, request: Request, placement: Placement) -> str:
        return write(request, placement, self.site, self.options).read_text()

    def by_hand(self, request: Request, placement: Placement) -> str:
        return shlex.join(["sbatch", str(_path(request))])


def write(request: Request, placement: Placement, site: Site, options: LaunchOptions) -> Path:
    """Write the job's file into the folder of the launch; returns its path. Raises ValueError for a name or a path that
    Slurm can't take."""
    path = _path(request)
    path.write_text(job_file(request, placement, site, options))
    return path


def _path(request: Request) -> Path:
    return Path(request.folder, "job.sbatch")
