"""A cage: a program with a fault that people really meet, a bet on what's wrong, and a judge of the mended program.

Each kind has its judges in a file of its own, the wrong ones in two. The programs themselves stand in the notebook, and
tests/zoo.toml has right and wrong ways to mend them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from course_utils import RankError, Run, launch
from course_utils.for_lessons import CELL, Patience, checked_script, counted, save_script

Kind = Literal["hangs", "dies", "slow", "wrong"]
KINDS: Mapping[str, str] = {
    "hangs": "It hangs",
    "dies": "It dies",
    "slow": "It's slow",
    "wrong": "It's wrong, and nobody notices",
}
# Ends ranks that wait for each other, however busy the machine is; the total is only for a judge that can't tell.
PATIENCE = Patience(idle_s=20, work_s=60, total_s=300, deadlock_s=3)

WATCHED = Path(__file__).resolve().parents[1] / "programs" / "13_watched.py"

Judge = Callable[["Mended"], list[str]]


class StillIll(Exception):
    """The program isn't mended yet; the message says what it does, in a sentence or two."""


@dataclass(frozen=True)
class Cage:
    """One cage. `judge` takes the mended program, raises `StillIll`, or returns what now holds, a sentence each.

    name     what stands after `%%cage`
    title    the symptom, as its heading has it
    told     letter of each bet -> what it's worth, a sentence or two; `right` is the letter that says what's wrong
    found    the digest of the program as it was caught (`course_utils.check.digest`)
    options  of the launch that shows the symptom, such as `{"cluster": "8xA100"}`
    shows    what shows more of its run, such as a timeline
    """

    name: str
    kind: Kind
    title: str
    right: str
    told: Mapping[str, str]
    found: str
    judge: Judge
    ranks: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    shows: Callable[[Run], Any] | None = None


CAGES: dict[str, Cage] = {}


def cage(name: str, kind: Kind, title: str, **rest: Any) -> Callable[[Judge], Judge]:
    """Put a judge's cage among the others; the rest is what `Cage` has."""

    def kept(judge: Judge) -> Judge:
        CAGES[name] = Cage(name, kind, title, judge=judge, **rest)
        return judge

    return kept


@dataclass
class Mended:
    """The program of a cell, saved as a file, to be run on any number of ranks."""

    source: str
    path: Path
    seconds: float = 0.0  # that its launches have taken, in all

    @classmethod
    def of(cls, source: str, name: str) -> Mended:
        """Save a cell. Raises LaunchError unless it's valid Python."""
        return cls(source, checked_script(save_script(CELL + source, f"{name}.py")))

    def on(self, ranks: int = 2, watch: Sequence[str] | None = None, **options: Any) -> Run:
        """Run it quietly, on CPU ranks unless `options` name a cluster, so that sums are the same on every machine.

        With `watch`, even an empty one, each rank also reports `calls` and `times` (its collectives by name, and how
        often it called each) and `saves`; "slow_save" slows saving down (`13_watched.py`). Raises StillIll if it fails.
        """
        where = {} if "cluster" in options else {"device": "cpu", "threads": 1, "engine": "local"}
        script, args = (self.path, []) if watch is None else (WATCHED, [self.path, *watch])
        began = time.monotonic()
        try:
            return launch(script, ranks, args, quiet=True, **{"timeout": PATIENCE, **where, **options})
        except RankError as error:
            first = " ".join(error.headline.split())
            raise StillIll(f"On {counted(ranks, 'rank')}: {first[:400]}") from None
        finally:
            self.seconds += time.monotonic() - began

    def show(self, ranks: int, options: Mapping[str, Any]) -> tuple[Run, RankError | None]:
        """Run it as a `%%ranks` cell does, on emulated GPUs without their remarks. Returns the run, and why it failed;
        None if it ended well."""
        emulated = "cluster" in options
        where = {"quiet": True} if emulated else {"device": "cpu", "threads": 1, "engine": "local"}
        try:
            return launch(self.path, ranks, **{"timeout": PATIENCE, **where, **options}), None
        except RankError as error:
            return error.run, error


def symptom(error: RankError) -> str:
    """A failure as it's met without a course: a hang says nothing, and each rank that dies leaves the end of a
    traceback. Our launcher knows more, which it tells once somebody has bet."""
    if error.run.outcome in ("deadlock", "timeout"):
        return "And then nothing more. (All ranks were waiting, so we ended them.)"
    said = []
    for rank in error.run.ranks:
        if not rank.ok:
            said += [f"--- rank {rank.rank}: {rank.ended}"]
            said += _shortened(rank.error["traceback"].rstrip().splitlines(), error.run.script) if rank.error else []
    return "\n".join(said)


def _shortened(traceback: Sequence[str], script: str) -> list[str]:
    """Its last line of the program, and the message."""
    own = max((i for i, line in enumerate(traceback) if script in line), default=0)
    frames = max((i for i, line in enumerate(traceback) if line.startswith("  File ")), default=0)
    message = next((i for i, line in enumerate(traceback) if i > frames and line[:1].isalpha()), frames)
    ends = [line if len(line) < 400 else line[:400] + " ..." for line in traceback[message:][:6]]
    return [*traceback[own : own + 2], *["    ..."] * (message > own + 2), *ends]


def need(ok: object, sentence: str) -> None:
    """Raise StillIll with this sentence, unless `ok`."""
    if not ok:
        raise StillIll(sentence)


def reported(run: Run, key: str) -> list[Any]:
    """What each rank reported last as `key`, rank by rank. Raises StillIll where a rank hasn't: the judge looks at what
    the program reports, so that part has to stay."""
    found = []
    for rank in run.ranks:
        mine = [record[key] for record in rank.records if key in record]
        need(mine, f"Rank {rank.rank} doesn't report `{key}` any more. Leave the line that does: it's what we look at.")
        found.append(mine[-1])
    return found


def gap(a: Any, b: Any) -> float:
    """The largest difference between two lists of numbers, or two numbers; infinite for other lengths, and for NaN."""
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        return max((gap(x, y) for x, y in zip(a, b, strict=True)), default=0.0) if len(a) == len(b) else math.inf
    difference = abs(a - b) if isinstance(a, int | float) and isinstance(b, int | float) else math.inf
    return difference if difference == difference else math.inf


def alike(run: Run, key: str, what: str, within: float = 0.0) -> Any:
    """What all ranks reported as `key`. Raises StillIll if one differs by more than `within`; `what` begins the
    sentence, as in "the weights"."""
    first, *others = reported(run, key)
    for rank, other in enumerate(others, 1):
        differs = gap(first, other)
        need(differs <= within, f"On {counted(run.world_size, 'rank')}, {what} of rank 0 and rank {rank} differ.")
    return first


def split(run: Run, key: str, wanted: Sequence[Any], what: str) -> None:
    """Raise StillIll unless the ranks together reported each of `wanted` once; `what` is one of them, "sample"."""
    got = [item for part in reported(run, key) for item in part]
    where = f"On {counted(run.world_size, 'rank')}"
    missed = sorted(set(wanted) - set(got))
    twice = sorted(item for item in set(got) if got.count(item) > 1)
    need(not missed, f"{where}, {counted(len(missed), what)} of {len(wanted)} were seen by nobody: {_some(missed)}.")
    need(not twice, f"{where}, {counted(len(twice), what)} of {len(wanted)} were seen more than once: {_some(twice)}.")
    need(len(got) == len(wanted), f"{where}, something else than the {len(wanted)} samples was seen.")


def _some(items: Sequence[Any]) -> str:
    return ", ".join(map(str, items[:5])) + (", ..." if len(items) > 5 else "")
