"""What the checks of all lessons share: an exercise, a difference from its contract, and a launch whose failures become one."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..failure import RankError
from ..launch import launch
from ..results import RankResult
from ..run import Run

TIMEOUT_S = 45  # for an endless loop; a rank that waits for another is found much sooner
PRINTED_LINES = 40  # shown of what an answer prints on each rank
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.M)
# What gloo says on the rank that waits, when another rank is gone or does not come.
_ALONE = re.compile(r"Connection (closed|reset) by peer|Timed out waiting|Broken pipe|Connection refused|[Tt]imed out after|Socket closed")

Hints = Mapping[str, tuple[str, str]]


class Difference(Exception):
    """One way in which an answer differs from its contract.

    symptom   a short name; hints grow with each try that shows the same one
    differs   one sentence: what was seen
    expected  what the contract asks for
    got       what each rank got, a line each
    hints     where to look, and nearly the answer; an exercise has its own for the symptoms that it knows
    """

    def __init__(self, symptom: str, differs: str, expected: str = "", got: Sequence[str] = (), hints: tuple[str, ...] = ()):
        super().__init__(differs)
        self.symptom, self.differs, self.expected, self.got, self.hints = symptom, differs, expected, tuple(got), hints


@dataclass(frozen=True)
class Exercise:
    """One exercise: `judge` takes the student's file, raises a `Difference`, or returns what was checked, a sentence each.

    `handed_out` is the digest of the code as the notebook hands it out (see `course_utils.check.digest`), for exercises that start
    from a faulty program: it is run and its symptom shown, and it counts as not done yet. `how` ends the sentence "solved. Checked ...".
    `needs` is the optional package (`course_utils.extras`) without which nothing is run.
    """

    name: str
    title: str
    judge: Callable[[Path], list[str]]
    hints: Hints = field(default_factory=dict)
    handed_out: str = ""
    how: str = "on real ranks"
    needs: str = ""


def on_ranks(adapter: Path, task: str, answer: Path, ranks: int, said: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Run `task` of an adapter script with the student's file on several CPU ranks; returns what each rank told.

    The CPU always, so that an answer is judged alike everywhere and sums are the same to the last bit. `said` gives patterns of error
    messages a symptom of their own. Raises `Difference` for whatever the student's code does wrong on a rank; RankError is left for ours.
    """
    try:
        run = launch(adapter, ranks, [task, answer], timeout=TIMEOUT_S, device="cpu", threads=1, quiet=True)
    except RankError as error:
        _show_printed(error.run)
        _raise_problem(error.run)
        raise (_difference(error, answer, said or {}) or error) from None
    _show_printed(run)
    _raise_problem(run)
    return [_told(result) for result in run.ranks]


def some(values: list[Any], n: int = 6) -> str:
    """The first values, as text."""
    return ", ".join(str(v) for v in values[:n]) + (", ..." if len(values) > n else "") if values else "nothing"


def by_rank(values: list[Any]) -> list[str]:
    return [f"rank {rank}: {value}" for rank, value in enumerate(values)]


def samples(n: int) -> str:
    return f"{n} sample" if n == 1 else f"{n} samples"


def _told(result: RankResult) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for record in result.records:
        if "told" in record:
            told.update(json.loads(record["told"]))
    return told


def _raise_problem(run: Run) -> None:
    for result in run.ranks:
        for record in result.records:
            if "problem" in record:
                raise Difference(record.get("symptom", "contract"), record["problem"])


def _show_printed(run: Run) -> None:
    for result in run.ranks:
        lines = [line for record in result.records for line in record.get("printed", "").splitlines()]
        for line in lines[:PRINTED_LINES]:
            print(f"rank {result.rank} | {line}")
        if len(lines) > PRINTED_LINES:
            print(f"rank {result.rank} | ... {len(lines) - PRINTED_LINES} lines more")


def _difference(error: RankError, answer: Path, said: Mapping[str, str]) -> Difference | None:
    """The student's part in a failed launch; None when there is none."""
    run = error.run
    raised = [r for r in run.ranks if r.error and _lines(r, answer) and not _ALONE.search(r.error["message"])]
    if raised:
        first = min(raised, key=lambda r: r.error["time"] if r.error else 0.0)
        assert first.error is not None
        message = " ".join(first.error["message"].split())
        symptom = next((symptom for pattern, symptom in said.items() if re.search(pattern, message)), f"raised {first.error['type']}")
        message = message if len(message) < 300 else message[:300] + " ..."
        during = _doing(first)
        who = "The program" if run.world_size == 1 else f"Rank {first.rank}"
        return Difference(symptom, f"{who} stopped in your code{during}: {first.error['type']}: {message}", "no exception", _lines(first, answer))
    signals = [r for r in run.ranks if r.signal in ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")]
    if run.outcome != "timeout" and signals and not any(r.error for r in run.ranks):
        who = "The program" if run.world_size == 1 else f"Rank {signals[0].rank}"
        return Difference("killed", f"{who} was killed by {signals[0].signal}.", "a program that lives to its end")
    if run.outcome == "timeout":  # a rank that waits for another is found long before
        stood = [_stood(r, answer) for r in run.ranks if str(answer) in (r.stack or "")]
        return Difference("endless", f"Your code did not come to its end within {TIMEOUT_S} s.", "an end", stood) if stood else None
    if any(r.error and _ALONE.search(r.error["message"]) and _lines(r, answer) for r in run.ranks):
        during = next((d for r in run.ranks if not _returned(r) and (d := _doing(r))), "")
        return Difference(
            "hang",
            f"A rank waits for another one that never comes{during}. A real run would hang; here it was stopped.",
            "every rank calls the same collectives in the same order, and comes to its end",
            [_stood(r, answer) for r in run.ranks],
            (
                "Find the line that waits, then ask on which ranks it is reached, and how often.",
                "A collective inside `if rank == 0`, or in a loop that is longer on one rank, is called by some ranks only. Move it to where all ranks pass.",
            ),
        )
    return None


def _returned(result: RankResult) -> bool:
    """Whether this rank had come back from its last call of the student's code."""
    calls = [record["call"] for record in result.records if "call" in record]
    return bool(calls) and calls[-1] == ""


def _doing(result: RankResult) -> str:
    """What the adapter was asking of the student's code, as `, while ...`."""
    calls = [record["call"] for record in result.records if "call" in record]
    return f", while {calls[-1]}" if calls and calls[-1] else ""


def _stood(result: RankResult, answer: Path) -> str:
    lines = _lines(result, answer)
    if result.error and lines and _ALONE.search(result.error["message"]):
        return f"rank {result.rank} waited at {lines[-1]}"
    if _returned(result) or result.ok:
        return f"rank {result.rank} had left your function"
    at = re.search(rf'File "{re.escape(str(answer))}", line (\d+)', result.stack or "")  # the innermost comes first
    if at:
        return f"rank {result.rank} was at {_line(answer, int(at[1]))}"
    return f"rank {result.rank} {result.ended}"


def _lines(result: RankResult, answer: Path) -> list[str]:
    """The lines of the student's file in a rank's traceback, outermost first."""
    if not result.error:
        return []
    return [_line(answer, int(m["line"])) for m in _FRAME.finditer(result.error["traceback"]) if m["file"] == str(answer)]


def _line(answer: Path, number: int) -> str:
    """A line of the student's file as the cell numbers it: its first line is the magic, so the file is one behind."""
    return f"line {number + 1} of the cell: `{linecache.getline(str(answer), number).strip()}`"
