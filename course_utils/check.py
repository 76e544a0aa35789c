"""Feedback on an exercise: run the student's cell through its judge, and say what differs, with hints for who asks.

The judges are in `exercises/checks`. `python -m course_utils.check 04.1 ANSWER.py` judges a file like a cell.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.util
import io
import json
import os
import re
import sys
import time
import tokenize
import tomllib
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .failure.errors import CourseError, LaunchError
from .folders import COURSE, add_json_line, json_lines, notebook_folder, notebook_name, save_script
from .machine.optional_packages import missing
from .show.card import Card, Outcome
from .show.table import Table, show

if TYPE_CHECKING:
    from checks.judging import Difference, Exercise

FOLDER = COURSE / "exercises" / "checks"
PACKAGE = "exercise_checks"
RECORDS = "exercises.jsonl"


class ExerciseNotSolved(CourseError):
    """The answer breaks the exercise's contract. `symptom` is a short name for how; `card` says it in full, and is
    shown before this is raised."""

    def __init__(self, name: str, symptom: str, card: Card):
        super().__init__(f"{name} is not solved yet ({symptom})")
        self.symptom, self.card = symptom, card


class UnknownExercise(CourseError, KeyError):
    """There is no exercise with this name."""

    def __str__(self) -> str:  # KeyError would quote the sentence
        return str(self.args[0])


@dataclass(frozen=True)
class Judgement:
    """What a check found. `outcome` is "solved", "not solved" or "not done" (a blank is left, or a faulty program is
    unchanged)."""

    outcome: Outcome
    symptom: str = ""
    seconds: float = 0.0
    checked: tuple[str, ...] = ()  # for a solved exercise: what was checked, a sentence each
    difference: Difference | None = None
    words: str = ""  # why it isn't done, or isn't Python


def judge(name: str, source: str) -> Judgement:
    """Judge `source` as the answer to exercise `name` ("04.1"). Raises UnknownExercise, and LaunchError where ranks
    can't be started."""
    exercise = _find(name)
    started = time.monotonic()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deep
        line = ""
        if isinstance(error, SyntaxError) and error.lineno:
            line = f", line {error.lineno + 1} of the cell: `{(error.text or '').strip()}`"
        words = f"not valid Python{line} ({getattr(error, 'msg', error)})"
        return Judgement("not solved", "syntax", words=words)
    if blank := blank_line(tree):
        return Judgement("not done", words=f"not done yet. Line {blank + 1} of the cell waits for your code.")
    if exercise.needs and (lacking := missing(exercise.needs)):
        return Judgement("not done", words=f"not checked here, it {lacking}.")
    path = save_script(source, f"exercise_{re.sub(r'[^0-9a-z]', '_', name)}.py")
    untouched = bool(exercise.handed_out) and digest(source) == exercise.handed_out
    try:
        answer = judging().Answer(path, f"lesson_{name[:2]}")
        checked = exercise.judge(answer)
        answer.check_guard()
        return Judgement("solved", seconds=time.monotonic() - started, checked=tuple(checked))
    except judging().Difference as found:
        difference = found.in_words(words_for(name).get(found.symptom, {}))
    except LaunchError:
        raise
    except Exception as error:  # ours, or a RankError: every answer gets a verdict
        difference = judging().stopped(error)
    outcome: Outcome = "not done" if untouched else "not solved"
    words = "not done yet. You haven't changed the program so far, and this is what it does:" if untouched else ""
    return Judgement(outcome, difference.symptom, time.monotonic() - started, difference=difference, words=words)


def check_exercise(name: str, source: str, hint: bool = False) -> None:
    """Judge `source` as the answer to exercise `name` ("04.1"), record the outcome, and show it as a card. `hint` opens
    the next hint for what is wrong.

    If a blank is left (`...` or NotImplementedError), or a faulty program is unchanged, the exercise isn't done yet.
    Raises ExerciseNotSolved for an answer that breaks the contract, once its card is shown, and UnknownExercise. The
    answer runs in its own processes, so it can't see or change the notebook's variables.
    """
    exercise, found = _find(name), judge(name, source)
    answers, opened = _tries(name, found.symptom)
    hints = _hints(exercise, found)
    opened = min(opened + hint, len(hints))
    tries = len(answers | {_short_hash(source)})
    _record(exercise, found, source, opened)
    card = _card(exercise, found, hints, opened, tries)
    if found.outcome == "solved":
        card = _with_next(card, name)
    elif hint and not hints:
        note = "There's no hint for this." if found.difference else "Hints come once your code has run."
        card = replace(card, note=note)
    show(card)
    if found.outcome == "not solved":
        raise ExerciseNotSolved(name, found.symptom, card)


def summary(lesson: str | None = None) -> None:
    """Show which exercises are solved, going by the last try of each in this notebook. `lesson` ("04") defaults to the
    notebook's own."""
    lesson = (
        lesson
        or (
            re.match(r"\d\d", notebook_name())
            or re.match(r"(\d\d)", next(iter(_records()), {"exercise": ""})["exercise"])
            or [""]
        )[0]
    )
    exercises = lesson_exercises(lesson)
    if not exercises:
        raise UnknownExercise(f"there are no exercises for lesson {lesson!r}; name one, as in summary('04')")
    last = _last()
    words = {"solved": "✓ solved", "not solved": "✗ not solved yet", "not done": "  not done yet"}
    rows = [(name, e.title, words.get(last.get(name, ""), "  not tried yet")) for name, e in exercises.items()]
    solved = sum(last.get(name) == "solved" for name in exercises)
    show(Table((), rows, "lll", note=f"{solved} of {len(rows)} solved"))


_here: dict[str, str] = {}  # how the last try of each exercise ended, in this kernel


def solved(name: str) -> bool:
    """Whether the last try of exercise `name` in this kernel solved it: for graders that run a whole notebook, such as
    nbgrader. Raises UnknownExercise."""
    _find(name)
    return _here.get(name) == "solved"


def digest(source: str) -> str:
    """A short hash of a program, the same whatever its comments and the white space at its line ends."""
    tokens = []
    for token in tokenize.generate_tokens(io.StringIO(source.rstrip() + "\n").readline):
        if token.type == tokenize.INDENT:
            tokens.append(">")
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            tokens.append("<" if token.type == tokenize.DEDENT else token.string.strip())
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:12]


def words_for(name: str) -> dict[str, dict[str, Any]]:
    """What an exercise says of each symptom: its row in `hints.toml`. A table for 04.3 also applies to 04.3a, and one
    for 04 to the whole lesson; the narrower one adds to it, or says it otherwise. An `expected` of the table itself is
    for all symptoms that have none."""
    tables = tomllib.loads((FOLDER / f"lesson_{name[:2]}" / "hints.toml").read_text(encoding="utf-8"))
    rows: dict[str, dict[str, Any]] = {}
    for prefix in sorted((prefix for prefix in tables if name.startswith(prefix)), key=len):
        expected = {"expected": tables[prefix].pop("expected")} if "expected" in tables[prefix] else {}
        for symptom, row in tables[prefix].items():
            rows[symptom] = expected | rows.get(symptom, {}) | row
    return rows


def hints_of(name: str) -> dict[str, tuple[str, str]]:
    """The hints of an exercise by symptom: where to look, and nearly the answer."""
    return {symptom: (row["where"], row["nearly"]) for symptom, row in words_for(name).items() if "where" in row}


def judging() -> Any:
    """Import what the judges share, `exercises/checks/judging.py`. The folder gets the module name
    `exercise_checks`."""
    if PACKAGE not in sys.modules:
        places = [str(FOLDER)]
        spec = importlib.util.spec_from_file_location(
            PACKAGE, FOLDER / "__init__.py", submodule_search_locations=places
        )
        if spec is None or spec.loader is None or not (FOLDER / "__init__.py").exists():
            raise UnknownExercise(
                f"the judges of the exercises are not in {FOLDER}; use the package from a checkout of the course"
            )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[PACKAGE] = module
    return importlib.import_module(f"{PACKAGE}.judging")


def _find(name: str) -> Exercise:
    exercises = lesson_exercises(name.partition(".")[0])
    if name not in exercises:
        known = (
            f"lesson {name.partition('.')[0]} has {', '.join(exercises)}"
            if exercises
            else "exercises are named like 04.1"
        )
        raise UnknownExercise(f"there is no exercise {name!r}; {known}")
    return exercises[name]


def lesson_exercises(number: str) -> dict[str, Exercise]:
    """The exercises of a lesson ("04") by name. Empty for a lesson without exercises."""
    judging()
    if not re.fullmatch(r"\d\d", number) or not (FOLDER / f"lesson_{number}" / "judge.py").exists():
        return {}
    return importlib.import_module(f"{PACKAGE}.lesson_{number}.judge").EXERCISES


def blank_line(tree: ast.AST) -> int:
    """The line of a blank that is left; 0 if there is none."""
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return))
            and isinstance(node.value, ast.Constant)
            and node.value.value is ...
        ):
            return node.lineno
        if isinstance(node, ast.Raise) and isinstance(node.exc, (ast.Name, ast.Call)):
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(raised, ast.Name) and raised.id == "NotImplementedError":
                return node.lineno
    return 0


def _card(exercise: Exercise, found: Judgement, hints: tuple[str, ...], opened: int, tries: int = 1) -> Card:
    title = f"{exercise.name} {exercise.title}: "
    if found.outcome == "solved":
        title += f"solved, in {found.seconds:.1f} s."
    elif found.words:
        title += found.words
    else:
        title += "not solved yet." + (f" Try {tries} with this symptom." if tries > 1 else "")
    difference = found.difference
    return Card(
        found.outcome,
        title,
        difference.differs if difference else "",
        difference.expected if difference else "",
        difference.got if difference else (),
        hints,
        opened,
        f"%%exercise {exercise.name} --hint",
        found.checked,
        exercise.how,
    )


def _hints(exercise: Exercise, found: Judgement) -> tuple[str, ...]:
    """The hints for what is wrong; none for a faulty program that nobody has looked into yet."""
    if found.outcome != "not solved" or not found.difference:
        return ()
    return hints_of(exercise.name).get(found.symptom, found.difference.hints)


def _with_next(card: Card, name: str) -> Card:
    """The card of a solved exercise also says how many of the lesson are solved, and what comes next."""
    exercises, last = lesson_exercises(name[:2]), _last()
    names = [*exercises][[*exercises].index(name) :] + [*exercises]  # those that follow come first
    left = next((other for other in names if last.get(other) != "solved"), None)
    solved = sum(last.get(other) == "solved" for other in exercises)
    note = f"{solved} of {len(exercises)} solved."
    if left:
        return replace(card, note=f"{note} Next: {left} {exercises[left].title}")
    number = f"{int(name[:2]) + 1:02}"
    notebook = next((COURSE / "notebooks").glob(f"{number}_*.ipynb"), None)
    if not notebook:
        return replace(card, note=f"{note} That was the last lesson.")
    link = f"../notebooks/{notebook.name}"
    if not Path(link).exists():  # a copy that lies elsewhere
        link = ""
    return replace(card, note=f"{note} Next: ", link=link, link_words=f"lesson {number}")


def _tries(name: str, symptom: str) -> tuple[set[str], int]:
    """The answers to this exercise that have shown this symptom since it was last solved, and how many hints were
    opened."""
    answers: set[str] = set()
    opened = 0
    for record in _records():
        if record["exercise"] == name and record["outcome"] == "solved":
            answers, opened = set(), 0
        elif record["exercise"] == name and record["outcome"] == "not solved" and record["symptom"] == symptom:
            answers.add(record["answer"])
            opened = max(opened, record.get("hints", 0))
    return answers, opened


def _last() -> dict[str, str]:
    """How the last try of each exercise ended."""
    return {record["exercise"]: record["outcome"] for record in _records()}


def _records() -> list[dict[str, Any]]:
    """What was checked from notebooks with this name in this folder. (Copies in other folders share the name.)"""
    records = json_lines(notebook_folder() / RECORDS)
    return [record for record in records if record.get("folder") == Path.cwd().name]


def _short_hash(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def _record(exercise: Exercise, found: Judgement, source: str, opened: int) -> None:
    """Write a line of JSON for the learner's summary, and the same to COURSE_CHECKS_FILE, if set, for an instructor."""
    _here[exercise.name] = found.outcome
    record = {
        "exercise": exercise.name,
        "outcome": found.outcome,
        "symptom": found.symptom,
        "notebook": notebook_name(),
        "folder": Path.cwd().name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": round(found.seconds, 2),
        "answer": _short_hash(source),
        "hints": opened,
    }
    for path in (notebook_folder() / RECORDS, os.environ.get("COURSE_CHECKS_FILE")):
        if path:
            add_json_line(Path(path), record)


def main(argv: Sequence[str] | None = None) -> int:
    """Judge a file. Returns 0 when it solves the exercise, 1 when it doesn't, 2 when it can't be judged (in the JSON
    `solved` is then null)."""
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.check", description="Judge a file as the answer to an exercise."
    )
    parser.add_argument("exercise", help="its name, such as 04.1")
    parser.add_argument(
        "answer", type=Path, metavar="ANSWER.py", help="the text of the cell, with or without its first line"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--hint", action="count", default=0, help="add a hint: where to look; twice: also what is nearly the answer"
    )
    options = parser.parse_args(argv)
    try:
        source = options.answer.read_text(encoding="utf-8")
        if source.startswith("%%exercise"):
            source = source.partition("\n")[2]
        with redirect_stdout(sys.stderr):  # what the answer prints
            found = judge(options.exercise, source)
        exercise = _find(options.exercise)
    except (OSError, UnicodeDecodeError, CourseError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps({"solved": None, "symptom": "", "seconds": 0.0, "differs": str(error)}))
        return 2
    if options.json:
        words = found.difference.differs if found.difference else found.words
        print(
            json.dumps(
                {
                    "solved": found.outcome == "solved",
                    "outcome": found.outcome,
                    "symptom": found.symptom,
                    "seconds": round(found.seconds, 2),
                    "differs": words,
                }
            )
        )
    else:
        hints = _hints(exercise, found)
        card = _card(exercise, found, hints, min(options.hint, len(hints)))
        note = f"Symptom: {found.symptom}" if found.symptom else ""
        print(replace(card, ask="--hint" + " --hint" * options.hint, note=note))
    return int(found.outcome != "solved")


if __name__ == "__main__":
    sys.exit(main())
