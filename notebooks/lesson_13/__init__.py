"""What lesson 13 shows: `%%cage NAME` runs a program with a fault, hears a bet, and looks at the mended program."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from IPython import get_ipython

from course_utils import LaunchError, Run, claim
from course_utils.for_lessons import (
    Card,
    Program,
    Table,
    add_json_line,
    counted,
    digest,
    json_lines,
    notebook_folder,
    say,
    show,
)

from . import dies, hangs, slow, wrong_data, wrong_gradients  # noqa: F401  (each puts its cages among the others)
from .keeper import CAGES, KINDS, Cage, Mended, StillIll, symptom

TAKE_HOME = Path(__file__).resolve().parents[1] / "take_home" / "13_same_everywhere.py"
RECORDS = "zoo.jsonl"  # in the notebook's folder of runs: which bets were made, and which programs are mended


def _run_cage(line: str, cell: str) -> None:
    """What `%%cage NAME [LETTER]` does: run the cell's program, a bet in hand, and once it's changed, judge it."""
    cage, letter = _asked(line)
    program = Mended.of(cell, cage.name)
    run, failed = program.show(cage.ranks, cage.options)
    caught = digest(cell) == cage.found
    if failed:
        print(f"\n{symptom(failed) if caught and not letter else failed}")
    elif not any(run.log(rank).strip() for rank in range(run.world_size)) or "cluster" in cage.options:
        show(run)
    if cage.shows and run.ok:
        show(cage.shows(run))
    say(_bet(cage, letter))
    if caught:
        if letter:
            say("Now mend the program, up in this cell, and run it again.")
        _record(cage, letter, "caught", as_told=_shows(cage, run))
        return
    card = judged(cage, program)
    _record(cage, letter, card.outcome)
    show(card)


def judged(cage: Cage, program: Mended) -> Card:
    """What the judge of a cage says of a program that's meant to be mended."""
    try:
        holds = cage.judge(program)
    except StillIll as ill:
        return Card("not solved", f"{cage.name}: not mended yet.", str(ill))
    return Card("solved", f"{cage.name}: mended, in {program.seconds:.1f} s.", checked=holds, how="on real ranks")


def _asked(line: str) -> tuple[Cage, str]:
    """The cage and the letter of a line. Raises LaunchError for a name or a letter that there isn't."""
    words = line.split()
    if not words or words[0] not in CAGES:
        near = difflib.get_close_matches(words[0] if words else "", CAGES, n=1)
        raise LaunchError(f"name a cage, as in %%cage {near[0] if near else next(iter(CAGES))}")
    cage, letter = CAGES[words[0]], " ".join(words[1:]).strip("()").lower()
    if letter and letter not in cage.told:
        raise LaunchError(f"bet on one of {', '.join(cage.told)}, as in %%cage {cage.name} {next(iter(cage.told))}")
    return cage, letter


def _bet(cage: Cage, letter: str) -> str:
    if not letter:
        return f"What's wrong? Bet on a letter: write it behind the name, as in `%%cage {cage.name} a`, and run again."
    return f"You said {letter}. {cage.told[letter]}"


def _shows(cage: Cage, run: Run) -> bool:
    """Whether a caught program hung, died or came to its end, as its kind does."""
    if cage.kind == "hangs":
        return run.outcome in ("deadlock", "timeout")
    return not run.ok and run.outcome == "failed" if cage.kind == "dies" else run.ok


def _record(cage: Cage, letter: str, outcome: str, **more: bool) -> None:
    record = {"cage": cage.name, "bet": letter, "outcome": outcome, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    add_json_line(notebook_folder() / RECORDS, record | more)


def take_home() -> Program:
    """A file of plain PyTorch that notices most of what nobody notices."""
    return Program(TAKE_HOME)


def tally() -> Table:
    """Which of the cages you've opened: by kind, whether your first bet was right, and whether it's mended."""
    records = list(json_lines(notebook_folder() / RECORDS))
    caught = {r["cage"]: r["as_told"] for r in records if "as_told" in r}
    if caught:
        claim(
            f"{sum(caught.values())} of {counted(len(caught), 'caught program')} did what the pages say",
            all(caught.values()),
            headline=True,
        )
    rows = [_row(cage, [r for r in records if r["cage"] == cage.name]) for cage in _in_order()]
    mended = sum(row[3] == "✓" for row in rows)
    return Table(("", "cage", "first bet", "mended"), rows, "llll", note=f"{mended} of {len(rows)} mended")


def _row(cage: Cage, records: list[Mapping[str, Any]]) -> tuple[str, ...]:
    bet = next((r["bet"] for r in records if r["bet"]), "")
    said = "" if not bet else "✓" if bet == cage.right else "✗"
    mended = any(r["outcome"] == "solved" for r in records)
    return KINDS[cage.kind], f"{cage.name}: {cage.title}", said, "✓" if mended else ""


def _in_order() -> list[Cage]:
    return [cage for kind in KINDS for cage in CAGES.values() if cage.kind == kind]


if (_shell := get_ipython()) is not None:
    _shell.register_magic_function(_run_cage, "cell", "cage")

__all__ = ["CAGES", "judged", "take_home", "tally"]
