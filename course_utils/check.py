"""Feedback on an exercise: runs the student's cell on ranks beside a twin, and says what differs, with a hint that grows with each try."""

from __future__ import annotations

import ast
import hashlib
import importlib
import io
import json
import os
import re
import textwrap
import time
import tokenize
from pathlib import Path
from typing import Any

from .checks.base import Difference, Exercise
from .extras import missing
from .failure import CourseError
from .folders import notebook_folder, notebook_name, save_script

WIDTH = 110
RECORDS = "exercises.jsonl"


class ExerciseNotSolved(CourseError):
    """The answer to an exercise does not keep to its contract; `symptom` is a short name for how."""

    def __init__(self, message: str, symptom: str):
        super().__init__(message)
        self.symptom = symptom


class UnknownExercise(CourseError, KeyError):
    """There is no exercise of this name."""

    def __str__(self) -> str:  # KeyError would quote the sentence
        return str(self.args[0])


def check_exercise(name: str, source: str, namespace: dict[str, Any] | None = None) -> None:
    """Keep `source` as the answer to exercise `name` ("04.1"), run it, and print what was checked.

    A blank that is left (`...` or NotImplementedError), or the faulty program of an exercise as it was handed out, prints that it is not
    done yet. Raises ExerciseNotSolved for an answer that differs from the contract, and UnknownExercise. `namespace` are the
    notebook's variables; a check leaves them alone, for the answer runs in processes of its own.
    """
    exercise = _find(name)
    started = time.monotonic()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno + 1} of the cell: `{(error.text or '').strip()}`" if isinstance(error, SyntaxError) and error.lineno else ""
        _record(exercise, "not solved", "syntax", source)
        raise ExerciseNotSolved(f"{name} is not valid Python{line} ({getattr(error, 'msg', error)})", "syntax") from None
    blank = _blank(tree)
    if blank:
        _record(exercise, "not done", "", source)
        print(f"{name} {exercise.title}: not done yet. Line {blank + 1} of the cell waits for your code.")
        return
    if exercise.needs and (lacking := missing(exercise.needs)):
        _record(exercise, "not done", "", source)
        print(f"{name} {exercise.title}: not checked here, it {lacking}.")
        return
    answer = save_script(source, f"exercise_{re.sub(r'[^0-9a-z]', '_', name)}.py")
    untouched = bool(exercise.handed_out) and digest(source) == exercise.handed_out
    try:
        checked = exercise.judge(answer)
    except Difference as difference:
        if untouched:
            _record(exercise, "not done", difference.symptom, source)
            print(f"{name} {exercise.title}: not done yet. This is the program as it was handed out, and what it does:\n\n{_text(difference)}")
            return
        tries = 1 + _tries(name, difference.symptom)
        _record(exercise, "not solved", difference.symptom, source, time.monotonic() - started)
        hints = exercise.hints.get(difference.symptom, difference.hints)
        head = f"{name} {exercise.title}: not solved yet." + (f" Try {tries} with this symptom." if tries > 1 else "")
        raise ExerciseNotSolved(f"{head}\n\n{_text(difference, hints, tries)}", difference.symptom) from None
    _record(exercise, "solved", "", source, time.monotonic() - started)
    print(f"✓ {name} {exercise.title}: solved, in {time.monotonic() - started:.1f} s. {f'Checked {exercise.how}'.strip()}:")
    print("\n".join(textwrap.fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    ") for line in checked))


def summary(lesson: str | None = None) -> None:
    """Print which exercises are solved, by the last try of each in this notebook. `lesson` ("04") otherwise follows from the notebook's name."""
    lesson = lesson or (re.match(r"\d\d", notebook_name()) or re.match(r"(\d\d)", next(iter(_records()), {"exercise": ""})["exercise"]) or [""])[0]
    exercises = _lesson(lesson)
    if not exercises:
        raise UnknownExercise(f"there are no exercises for lesson {lesson!r}; name one, as in summary('04')")
    last = {record["exercise"]: record for record in _records()}
    words = {"solved": "✓ solved", "not solved": "✗ not solved yet", "not done": "  not done yet"}
    rows = [(name, e.title, words[last[name]["outcome"]] if name in last else "  not tried yet") for name, e in exercises.items()]
    wide = max(len(title) for _, title, _ in rows)
    for name, title, state in rows:
        print(f"{name:<6}  {title:<{wide}}  {state}")
    solved = sum(state.startswith("✓") for _, _, state in rows)
    print(f"{solved} of {len(rows)} solved")


def digest(source: str) -> str:
    """A short hash of a program that does not change with comments and white space at line ends."""
    tokens = []
    for token in tokenize.generate_tokens(io.StringIO(source.rstrip() + "\n").readline):
        if token.type == tokenize.INDENT:
            tokens.append(">")
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            tokens.append("<" if token.type == tokenize.DEDENT else token.string.strip())
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:12]


def _find(name: str) -> Exercise:
    exercises = _lesson(name.partition(".")[0])
    if name not in exercises:
        known = f"lesson {name.partition('.')[0]} has {', '.join(exercises)}" if exercises else "exercises are named like 04.1"
        raise UnknownExercise(f"there is no exercise {name!r}; {known}")
    return exercises[name]


def _lesson(number: str) -> dict[str, Exercise]:
    if not re.fullmatch(r"\d\d", number):
        return {}
    try:
        return importlib.import_module(f"{__package__}.checks.lesson_{number}").EXERCISES
    except ModuleNotFoundError:
        return {}


def _blank(tree: ast.AST) -> int:
    """The line of a blank that was left; 0 when there is none."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)) and isinstance(node.value, ast.Constant) and node.value.value is ...:
            return node.lineno
        if isinstance(node, ast.Raise) and isinstance(node.exc, (ast.Name, ast.Call)):
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(raised, ast.Name) and raised.id == "NotImplementedError":
                return node.lineno
    return 0


def _text(difference: Difference, hints: tuple[str, ...] = (), tries: int = 1) -> str:
    """What differs, was expected and was got; the first hint from the second try on, the next from the third."""
    rows = [("What differs:", difference.differs), ("Expected:", difference.expected)]
    rows += [("Got:" if i == 0 else "", line) for i, line in enumerate(difference.got)]
    rows += list(zip(("Where to look:", "Nearly there:"), hints, strict=False))[: tries - 1]
    lines = [textwrap.fill(text, WIDTH, initial_indent=f"  {label:<15}", subsequent_indent=" " * 17) for label, text in rows if text]
    if hints and tries <= len(hints):
        lines += ["", "  Run it again for a hint." if tries == 1 else "  Run it again for more."]
    return "\n".join(lines)


def _tries(name: str, symptom: str) -> int:
    """How often this exercise showed this symptom since it was last solved."""
    count = 0
    for record in _records():
        if record["exercise"] == name:
            count = 0 if record["outcome"] == "solved" else count + (record["outcome"] == "not solved" and record["symptom"] == symptom)
    return count


def _records() -> list[dict[str, Any]]:
    """What was checked from notebooks of this name in this folder: an exercise and its solution have the same name and lie in two."""
    try:
        lines = (notebook_folder() / RECORDS).read_text().splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue  # a line that was cut off when its writer was killed
    return [record for record in records if record.get("folder") == Path.cwd().name]


def _record(exercise: Exercise, outcome: str, symptom: str, source: str, seconds: float = 0.0) -> None:
    """One line of JSON for the learner's summary, and one for an instructor where COURSE_CHECKS_FILE says."""
    record = {
        "exercise": exercise.name, "outcome": outcome, "symptom": symptom, "notebook": notebook_name(), "folder": Path.cwd().name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "seconds": round(seconds, 2), "answer": hashlib.sha256(source.encode()).hexdigest()[:12],
    }  # fmt: skip
    line = (json.dumps(record) + "\n").encode()
    for path in (notebook_folder() / RECORDS, os.environ.get("COURSE_CHECKS_FILE")):
        if path:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)
