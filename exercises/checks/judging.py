"""Shared by the checks of all lessons: an exercise, a difference from its contract, and a launch that turns failures of
the student's code into such differences."""

from __future__ import annotations

import json
import linecache
import math
import re
import secrets
import string
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from course_utils.failure.errors import RankError
from course_utils.launching.launcher import launch
from course_utils.launching.supervisor.patience import Patience
from course_utils.results.rank_result import RankResult
from course_utils.results.run import Run
from course_utils.show.units import counted

# Not a clock, which could not tell a deadlock from a busy machine: what ends an answer is that all ranks wait, or that
# one has used a processor for long. It counts from when the last rank has come to the answer.
PATIENCE = Patience(idle_s=5, work_s=45, total_s=1800, once_begun=True)
PRINTED_LINES = 40  # how much we show of what an answer prints, on each rank
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.M)
# What gloo says on a rank that waits for another one that is gone or never comes.
_ALONE = re.compile(
    r"Connection (closed|reset) by peer|Timed out waiting|Broken pipe|Connection refused|[Tt]imed out after|Socket"
    r" closed"
)

PROGRAM = Path(__file__).resolve().parent / "rank_program.py"
# Hints for symptoms that any answer may show; an exercise can override them.
HINTS = {
    "ended early": (
        "Something in your code ends the whole process. Look for `sys.exit`, `quit`, `exit` and `os._exit`.",
        "Let the program go on: `return` your result to the caller, or `raise` an exception if something is wrong.",
    ),
    "argument changed": (
        (
            "Some operations change the caller's object in place: `pop`, `append`, `sort`, `+=` on a list or a tensor,"
            " and torch's methods that end in `_`. Which of them do you use?"
        ),
        (
            "Work on a copy (`list(values)`, `tensor.clone()`), or use something that makes a new object: `sorted`,"
            " `a + b`."
        ),
    ),
    "global state": (
        (
            "You changed something that other parts of the program depend on too: a seed, a default, a mode, an"
            " environment variable. Which line does that?"
        ),
        (
            "Use an object of your own (`torch.Generator().manual_seed(...)`, `random.Random(...)`), or a `with` block"
            " that puts things back."
        ),
    ),
}


Got = str | tuple[str, str]


class Difference(Exception):
    """One way in which an answer differs from its contract.

    symptom   a short name, by which hints are found
    differs   one sentence: what was seen
    expected  what the contract asks for
    got       what came back, a line each; what a rank got as a pair, ("rank 0", what), see `by_rank`
    hints     where to look, and nearly the answer, for symptoms that aren't in the exercise's `hints.toml`
    facts     what its row in `hints.toml` puts into sentence and expectation, in place of `differs` and `expected`
    """

    def __init__(
        self, symptom: str, differs: str = "", expected: str = "", got: Sequence[Got] = (),
        hints: tuple[str, ...] = (), facts: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        super().__init__(differs or symptom)
        self.symptom, self.differs, self.expected, self.facts = symptom, differs, expected, facts
        self.got = [("", line) if isinstance(line, str) else line for line in got]
        self.hints = hints or HINTS.get(symptom, ())

    def in_words(self, row: Mapping[str, Any]) -> Difference:
        """The same, in the words that the exercise has for it: `differs` and `expected`, with the facts put in. Where
        there are several sentences, the fact `how` says which."""
        if self.facts is None:
            return self
        differs, expected = (
            _WORDS.format(text[self.facts["how"]] if isinstance(text, Mapping) else text, **self.facts)
            for text in (row["differs"], row.get("expected", ""))
        )
        return Difference(self.symptom, differs, expected, self.got, self.hints)


class _Words(string.Formatter):
    """As str.format has it, and `{n:sample}` is "1 sample" or "3 samples"."""

    def format_field(self, value: Any, spec: str) -> Any:
        noun = len(spec) > 1 and spec.replace(" ", "").replace("-", "").isalpha()
        return counted(value, spec) if noun else super().format_field(value, spec)


_WORDS = _Words()


def differ(symptom: str, got: Sequence[Got] = (), **facts: Any) -> NoReturn:
    """The answer breaks its contract: its row in `hints.toml` says in what, with these facts."""
    raise Difference(symptom, got=got, facts=facts)


def require(ok: object, symptom: str, got: Sequence[Got] = (), **facts: Any) -> None:
    """`differ`, unless `ok`."""
    if not ok:
        differ(symptom, got, **facts)


@dataclass(frozen=True)
class Exercise:
    """One exercise: `judge` takes the student's answer, raises a `Difference`, or returns what was checked, a sentence
    each.

    Some exercises start from a faulty program. `handed_out` is then the digest of its code
    (`course_utils.check.digest`): we run it and show its symptom, but it counts as not done yet. `how` ends the
    sentence "solved. Checked ...". `needs` names an optional package (`course_utils.machine.optional_packages`);
    without it we run nothing.
    """

    name: str
    title: str
    judge: Callable[[Answer], list[str]]
    handed_out: str = ""
    how: str = "on real ranks"
    needs: str = ""


@dataclass(frozen=True)
class Answer:
    """A student's file, as the answer to an exercise of a lesson (`lesson` is the name of a folder here,
    `lesson_04`)."""

    path: Path
    lesson: str
    guarded: list[str] = field(default_factory=list)  # what it changed that the whole program shares, a sentence each

    def check_guard(self) -> None:
        """Raise the first `Difference` that the guard around each call found, when nothing else was wrong."""
        if self.guarded:
            raise Difference("global state", self.guarded[0], "the same after the call as before")

    def on_ranks(
        self, task: str, ranks: int, said: Mapping[str, str] | None = None, given: Any = None
    ) -> list[dict[str, Any]]:
        """Run a task of the lesson with this answer on several CPU ranks; returns what each rank reported.

        `given` (anything that JSON can hold) is the task's second argument: the questions. Their answers can then stay
        out of the processes that run the student's code.

        It's always the CPU, so that an answer is judged alike everywhere and sums agree to the last bit. `said` maps
        patterns of error messages to symptoms. Raises `Difference` if the student's code does something wrong on a
        rank, and RankError if ours does.
        """
        marker = secrets.token_hex(8)
        arguments = [self.lesson, task, self.path, marker, json.dumps(given)]
        try:
            run = launch(
                PROGRAM, ranks, arguments, timeout=PATIENCE, device="cpu", threads=1, engine="local", quiet=True
            )
        except RankError as error:
            _show_printed(error.run)
            _raise_problem(error.run)
            _raise_early(error.run, marker)
            raise (_difference(error, self.path, said or {}) or error) from None
        _show_printed(run)
        _raise_problem(run)
        _raise_early(run, marker)
        self.guarded.extend(record["guard"] for r in run.ranks for record in r.records if "guard" in record)
        return [_told(result, marker) or {} for result in run.ranks]


def stopped(error: Exception) -> Difference:
    """The verdict where an answer made the check itself stop, with an error that nobody had expected."""
    if isinstance(error, RankError):
        what, at = error.cause, [r.error["traceback"].rstrip().splitlines()[-1] for r in error.run.ranks if r.error][:1]
    else:
        frames = traceback.extract_tb(error.__traceback__)
        what, at = (
            f"{type(error).__name__}: {error}",
            [f"{Path(f.filename).name}, line {f.lineno}" for f in frames[-1:]],
        )
    what = " ".join(what.split())
    return Difference(
        "check stopped",
        f"The check stopped before it could tell: {what[:300]}",
        "an answer that the check can follow to its end",
        at,
        (
            "What does your code return, or leave behind, that the text doesn't name? Look at types, shapes and NaN.",
            "If it does just what the text asks for, the fault is in the check. Then please send us your answer.",
        ),
    )


@contextmanager
def dealt(parts: Sequence[Any]) -> Iterator[str]:
    """A folder with a part for each rank, anything that JSON holds.

    On a rank `rank_side.take` reads its part and removes the file, before the answer is loaded: no answer sees the part
    of another rank.
    """
    with tempfile.TemporaryDirectory(prefix="course-dealt-") as folder:
        for rank, part in enumerate(parts):
            (Path(folder) / f"rank{rank}.json").write_text(json.dumps(part))
        yield folder


def some(values: list[Any], n: int = 6) -> str:
    """The first values, as text."""
    return ", ".join(str(v) for v in values[:n]) + (", ..." if len(values) > n else "") if values else "nothing"


def apart(expected: float, got: float, digits: int = 4) -> tuple[str, str]:
    """Two numbers as text, with enough digits to tell them apart."""
    while digits < 17 and f"{expected:.{digits}g}" == f"{got:.{digits}g}":
        digits += 1
    return f"{expected:.{digits}g}", f"{got:.{digits}g}"


def apart_all(expected: Sequence[float], got: Sequence[float], digits: int = 4) -> tuple[list[str], list[str]]:
    """Both lists as text, with enough digits to tell them apart."""
    while True:
        texts = [f"{v:.{digits}g}" for v in expected], [f"{v:.{digits}g}" for v in got]
        if texts[0] != texts[1] or digits > 16:
            return texts
        digits += 2


def gap(a: Any, b: Any) -> float:
    """The largest difference between the numbers of two nested lists; infinite for another shape, or where a number is
    missing or NaN."""
    if isinstance(a, list) and isinstance(b, list):
        return max(map(gap, a, b), default=0.0) if len(a) == len(b) else math.inf
    if isinstance(a, list) or isinstance(b, list) or a is None or b is None or a != a or b != b:
        return math.inf
    return 0.0 if a == b else abs(a - b)


def left_the_group(ranks: list[dict[str, Any]]) -> None:
    """Raise unless each rank told that there was no process group any more when `main` had returned."""
    if not all(rank["left"] for rank in ranks):
        raise Difference(
            "group left",
            "`main` returns, and its process group is still there.",
            "no process group, as before the call",
            by_rank(["left it" if rank["left"] else "still in the group" for rank in ranks]),
        )


def one_rank_writes(ranks: list[dict[str, Any]]) -> None:
    """Raise where several ranks told that they had written files."""
    writers = sum(bool(rank["writes"]) for rank in ranks)
    if writers > 1:
        raise Difference(
            "all write",
            f"{'All' if writers == len(ranks) else 'Several'} ranks write the file, at the same time.",
            "one rank writes",
            by_rank([f"{rank['writes']} files written" for rank in ranks]),
        )


def by_rank(values: list[Any]) -> list[Got]:
    """What each rank got, for `Difference`."""
    return [(f"rank {rank}", str(value)) for rank, value in enumerate(values)]


def samples(n: int) -> str:
    return f"{n} sample" if n == 1 else f"{n} samples"


def _told(result: RankResult, marker: str) -> dict[str, Any] | None:
    """What a rank reported, if its task ran to the end; otherwise None."""
    for record in result.records:
        if record.get("marker") == marker:
            return {name: fact for facts in record["told"] for name, fact in json.loads(facts).items()}
    return None


def _raise_early(run: Run, marker: str) -> None:
    """Raise a `Difference` if a rank exited without an error, but before its task was done."""
    early = [result for result in run.ranks if result.ok and _told(result, marker) is None]
    if early:
        who = "The program" if run.world_size == 1 else f"Rank {early[0].rank}"
        raise Difference(
            "ended early", f"{who} ended before its part was done{_doing(early[0])}.", "a function that returns"
        )


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
            print(f"rank {result.rank} | ... {len(lines) - PRINTED_LINES} more lines")


def _difference(error: RankError, answer: Path, said: Mapping[str, str]) -> Difference | None:
    """What the student's code did to make a launch fail; None if it wasn't their code."""
    run = error.run
    # If a framework raises after it called the student's code, the traceback has none of their lines. `said` knows
    # such messages; otherwise it counts if the task was in a call of that code.
    raised = [
        r
        for r in run.ranks
        if r.error
        and (_lines(r, answer) or _symptom(r.error, said) or _doing(r))
        and not _ALONE.search(r.error["message"])
    ]
    if raised:
        first = min(raised, key=lambda r: r.error["time"] if r.error else 0.0)
        assert first.error is not None
        message = " ".join(first.error["message"].split())
        symptom = _symptom(first.error, said) or f"raised {first.error['type']}"
        if first.error["type"] == "OSError" and "Errno 27" in message:
            message += ". No file may be larger than 64 MB here, and that includes what you print"
        message = message if len(message) < 300 else message[:300] + " ..."
        during = _doing(first)
        who = "The program" if run.world_size == 1 else f"Rank {first.rank}"
        where = " in your code" if _lines(first, answer) else ""
        if first.error["type"] == "NameError" and symptom == "raised NameError":
            message += ". The answer runs by itself: whatever it needs from other cells must be in this one too"
        return Difference(
            symptom,
            f"{who} stopped{where}{during}: {first.error['type']}: {message}",
            "no exception",
            _lines(first, answer),
        )
    signals = [r for r in run.ranks if r.signal in ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")]
    if run.outcome != "timeout" and signals and not any(r.error for r in run.ranks):
        who = "The program" if run.world_size == 1 else f"Rank {signals[0].rank}"
        return Difference("killed", f"{who} was killed by {signals[0].signal}.", "a program that runs to its end")
    inside = [r for r in run.ranks if str(answer) in (r.stack or "")]
    # Some ranks keep a processor busy while they wait for a message that never comes.
    waited = run.outcome == "timeout" and ("only waited" in error.cause or bool(inside) and all(map(_in_torch, inside)))
    if run.outcome == "timeout" and not waited:
        return (
            Difference(
                "endless",
                f"Your code was still running after {PATIENCE.work_s:g} s of processor time.",
                "code that finishes",
                [_stood(r, answer) for r in inside],
            )
            if inside
            else None
        )
    cut_off = any(r.error and _ALONE.search(r.error["message"]) and _lines(r, answer) for r in run.ranks)
    if cut_off or waited and inside:
        during = next((d for r in run.ranks if not _returned(r) and (d := _doing(r))), "")
        return Difference(
            "hang",
            f"A rank waits for another one that never comes{during}. A real run would hang; here it was stopped.",
            "every rank calls the same collectives in the same order, and finishes",
            [_stood(r, answer, "waited") for r in run.ranks],
            (
                "Find the line that waits. Which ranks get there, and how often?",
                (
                    "Only some ranks call a collective that's inside `if rank == 0`, or in a loop that's longer on one"
                    " rank. Move it to a place that all ranks pass, equally often."
                ),
            ),
        )
    return None


def _symptom(error: Mapping[str, Any], said: Mapping[str, str]) -> str:
    """The symptom that `said` has for an exception's message; "" if it has none."""
    message = " ".join(error["message"].split())
    return next((symptom for pattern, symptom in said.items() if re.search(pattern, message)), "")


def _returned(result: RankResult) -> bool:
    """Whether this rank had come back from its last call of the student's code."""
    calls = [record["call"] for record in result.records if "call" in record]
    return bool(calls) and calls[-1] == ""


def _doing(result: RankResult) -> str:
    """What the task was asking the student's code to do, as `, while ...`."""
    calls = [record["call"] for record in result.records if "call" in record]
    return f", while {calls[-1]}" if calls and calls[-1] else ""


def _in_torch(result: RankResult) -> bool:
    """Whether a rank's main thread stood in a call of torch.distributed when it was stopped."""
    ours = next((part for part in (result.stack or "").split("\n\n") if "rank_program.py" in part), "")
    return "torch/distributed/" in next((line for line in ours.splitlines() if line.startswith("  File ")), "")


def _stood(result: RankResult, answer: Path, verb: str = "was") -> Got:
    who, lines = f"rank {result.rank}", _lines(result, answer)
    if result.error and lines and _ALONE.search(result.error["message"]):
        return who, f"waited at {lines[-1]}"
    if _returned(result) or result.ok:
        return who, "had left your function"
    at = re.search(rf'File "{re.escape(str(answer))}", line (\d+)', result.stack or "")  # the innermost comes first
    if at:
        return who, f"{verb} at {_line(answer, int(at[1]))}"
    return who, result.ended


def _lines(result: RankResult, answer: Path) -> list[str]:
    """The lines of the student's file in a rank's traceback, outermost first."""
    if not result.error:
        return []
    return [
        _line(answer, int(m["line"])) for m in _FRAME.finditer(result.error["traceback"]) if m["file"] == str(answer)
    ]


def _line(answer: Path, number: int) -> str:
    """A line of the student's file, numbered as in the cell. The cell's first line is the magic, so the file is one
    behind."""
    return f"line {number + 1} of the cell: `{linecache.getline(str(answer), number).strip()}`"
