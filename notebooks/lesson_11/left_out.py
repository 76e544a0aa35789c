"""What a real Slurm did with the batch file when a part of it was missing: `tools/record_left_out.py` recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_utils import recorded
from course_utils.for_lessons import Cell, Table, say

# What was left out, what then happened to the job, and which of its records the two last columns are about.
TRIALS = {
    "B:": "the job was warned",
    "--open-mode=append": "the job was queued again",
    "--ntasks-per-node=1": "two tasks on each node in its place",
}


def left_out_table() -> Table | None:
    """One row for each part that was left out: what happened to the job with it and without it. None, and a sentence,
    as long as nobody has recorded it."""
    sweeps = recorded.sweeps("11_left_out")
    if not sweeps:
        say(
            "There's no record of it here, so the table above is all you get. Where Slurm's programs are,"
            " `python tools/record_left_out.py` makes one in two minutes."
        )
        return None
    sweep = sweeps[-1]
    found = {point["left_out"]: sweep.at(**point)[0].ranks[0].records[0] for point in sweep.points}
    rows = [
        (Cell(part), event, _said(part, found[f"with {part}"]), _said(part, found[part]))
        for part, event in TRIALS.items()
    ]
    run = sweep.runs[0][0]
    note = f"Recorded on {run.provenance.machine}, {run.provenance.date}."
    return Table(("left out", "what happened", "with it", "without it"), rows, "llll", note=note)


def _said(part: str, facts: Mapping[str, Any]) -> str:
    """What the records of a job say, in a few words."""
    if part == "B:":
        end = "queued again" if facts["requeued"] else f"ended as {facts['state']}"
        return f"{facts['saved']} of 2 ranks saved, {end}"
    if part == "--open-mode=append":
        return f"the log has {facts['first_lines']} of 2 lines of the first attempt"
    nodes = " and ".join(facts["nodes"])
    return f"{facts['torchruns']} torchruns, ranks on {nodes}, ended as {facts['state']}"
