"""Half B of lesson 09: files that are always whole, what belongs in them, and jobs that start again."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from types import EllipsisType

from course_utils import Machine, Run, Verdict, claim, launch, more_checks
from course_utils.for_lessons import Figure, Table, bet, figure_first, say

from .kill_marks import outcomes

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
KILLS, LEFT_OUT = PROGRAMS / "09_kills.py", PROGRAMS / "09_left_out.py"

WAYS = ("onto the same name", "another name, then rename")
DIES_AT, NEVER = 47, 999  # steps of the program that resumes
BEFORE = 6  # batches of the second epoch that were done when the run was saved
PATIENCE_S = 60  # for a job that may not come back
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

Guess = float | int | str | EllipsisType | None


def run_kills(atomic: Path) -> Run:
    """Kill 50 saves onto the same name, and 50 of the reader's own function."""
    return launch(KILLS, 1, [atomic], device="cpu", threads=1, quiet=True)


def lost(kills: Run, way: str) -> int:
    """After how many kills there was nothing to load."""
    return kills.values("left", way=way).count("neither")


@figure_first
def show_kills(kills: Run, guess: Guess = ...) -> Figure:
    """What was there after each kill, for both ways to save."""
    in_place, renamed = (lost(kills, way) for way in WAYS)
    tries = len(kills.values("left", way=WAYS[0]))
    answer = bet(
        guess,
        in_place,
        close="you've lost a file before." if in_place else "this time no kill came at a bad moment. Run it again.",
        over="Some kills come when the save is done.",
        under="From the first moment of a save to its last there's nothing whole.",
        within=(0.7 * in_place, 1.3 * in_place + 1),
        traps={0: "Then overwriting would be safe. But a save empties the file before it writes."},
        kind=f"a number from 0 to {tries}",
        most=tries,
    )
    say(f"After {in_place} of {tries} kills there was nothing to load. {answer}")
    say(f"With your function: after {renamed}.")
    if errors := [error for error in kills.values("error", way=WAYS[0]) if error]:
        say(f'torch.load says of such a file: "{max(errors, key=len)}".')
    holds: bool | Verdict = renamed == 0
    if renamed == 0 and in_place == 0:
        holds = Verdict("not shown", "no kill came at a bad moment for either way")
    claim(f"your function left a whole checkpoint after each of {tries} kills", holds)
    return outcomes(
        {way: list(zip(kills.values("at_s", way=way), kills.values("left", way=way), strict=True)) for way in WAYS},
        xlabel="killed so long after the save began",
        title=f"Nothing to load: {in_place} of {tries}, and with a rename {renamed}",
    )


def show_resumed(whole: Run) -> None:
    """Start the reader's program again, let it die in step 47, start it once more, and compare all weights."""
    died = launch(whole.script, 1, [DIES_AT], device="cpu", threads=1, quiet=True, check=False)
    resumed = launch(whole.script, 1, [NEVER], device="cpu", threads=1, quiet=True)
    first, weights = resumed.value("first"), resumed.value("weights")
    same = weights == whole.value("weights")
    say(f"Your program ran again, and killed itself in step {DIES_AT}. A new process went on with step {first}.")
    say(f"All {len(weights):,} weights are {'equal' if same else 'not equal'} to those of the undisturbed run.")
    claim("a run that was killed and started again ends equal to the last bit", same, headline=True)
    more_checks({"it was killed": not died.ok, "it went on from the last save": first == DIES_AT - DIES_AT % 20})


@functools.cache
def _left_out() -> Run:
    gpus = len(Machine.here().usable_gpus)
    return launch(LEFT_OUT, "auto", threads=1 if gpus < 2 else None, quiet=True)


def show_left_out(guess: Guess = ...) -> Table:
    """A run with everything, resumed; and six times with one part left out."""
    run = _left_out()
    found = {r["left_out"]: r for r in run.ranks[0].records if "left_out" in r}
    parts = [part for part in found if part]
    raised = [part for part in parts if found[part]["error"]]
    answer = bet(
        guess,
        len(raised),
        close="you don't trust errors to come.",
        over="Each of them is a valid start. It's just the start of another run.",
        within=0,
        kind=f"a number from 0 to {len(parts)}",
        most=len(parts),
        also={"none": 0, "no": 0},
    )
    say(f"{len(raised) or 'None'} of the {len(parts)}. {answer}")
    exact = not any(r["different"] for rank in run.ranks for r in rank.records if r.get("left_out") == "")
    claim(
        f"saved whole, {run.world_size} ranks resume to the last bit; with a part left out there's no error",
        exact and not raised,
    )
    checks = {f"without {part} it's another run": bool(found[part].get("different", 1)) for part in parts}
    checks["every sample of the epoch is seen once"] = all(_once(rank.records) for rank in run.ranks)
    more_checks(checks)
    rows = [
        [part or "nothing", str(r["different"]), f"{r['gap']:.0e}" if r["gap"] else "0", f"{r['loss']:.3f}"]
        for part, r in found.items()
        if not r["error"]
    ]
    head = ("left out", "states that differ", "largest gap in a weight", "loss of the last step")
    return Table(head, rows, "lrrr")


def _once(records: list[dict[str, list[int]]]) -> bool:
    """Whether a rank saw in the resumed half of the epoch what was still to come."""
    whole = next(r["whole"] for r in records if "whole" in r)
    rest = next(r["seen"] for r in records if r.get("left_out") == "")
    batch = len(whole) // 12
    return rest == whole[BEFORE * batch :]


def show_back(back: Run) -> None:
    """How often the job started, and where it went on."""
    first = back.ranks[0].values("first")
    say(
        f"The job began with step {first[0]}, rank 1 died in step 22, and by itself it went on with step {first[-1]},"
        " to the end."
    )
    more_checks(
        {
            "with a store for each attempt the job comes back": len(first) == 2 and first[-1] == 20,
            "and trains to the end": back.values("last") == [30] * back.world_size,
        }
    )


def show_restarts(back: Run, guess: Guess = ...) -> None:
    """Run the reader's program by plain torchrun, where all attempts share a store."""
    code, reached = _plain_torchrun(back.script)
    came_back = code == 0
    answer = bet(
        guess,
        "yes" if came_back else "no",
        close="this time it was lucky. Run this cell again." if came_back else "you've been there.",
        traps={"no": "Mostly you'd be right. Run this cell again."}
        if came_back
        else {"yes": "So says the documentation."},
    )
    ended = f"ended with exit code {code}" if code is not None else f"was still waiting after {PATIENCE_S} s"
    if came_back:
        say(f"Under plain torchrun it came back, too. {answer}")
    else:
        on = f" Its file still says step {reached}: nothing was trained after the kill." if reached == 20 else ""
        say(f"Under plain torchrun it {ended}.{on} {answer}")


def _plain_torchrun(script: str) -> tuple[int | None, int | None]:
    """The exit code of the job, None if it was still waiting in the end; and the step that its file names, None if
    there's no file, as after its end."""
    env = {name: value for name, value in os.environ.items() if name not in (OWN_STORE, "COURSE_RUN_DIR")}
    words = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", script]
    job = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words],
        env=env | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path = Path(script).with_suffix(".pt")
    try:
        code = job.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        reached = _next_step(path)
        path.unlink(missing_ok=True)  # a job that doesn't come back leaves its file
        if job.poll() is None:
            job.terminate()  # torchrun then ends its ranks
            try:
                job.wait(15)
            except subprocess.TimeoutExpired:
                job.kill()
    return code, reached


def _next_step(path: Path) -> int | None:
    """What a checkpoint of the program says is to do next; None without one."""
    import torch

    return torch.load(path)["next"] if path.exists() else None
