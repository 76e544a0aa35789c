"""Wrong answers to exercises, each as a right answer with a mistake put in: a table a lesson, `04.toml` for lesson 04.

    [04.1]
    base = "strided"                          # tests/right_answers/04/1_strided.py; "solution": the notebook's answer

    [04.1.same_order_each_epoch]
    symptom = "same every epoch"              # the check must give it this symptom
    says = "same order in every epoch"        # and say this
    replace = [["seed + epoch", "seed"]]      # each of the first stands in the right answer exactly once

A row may name a `base` of its own. Where the mistake changes most of the program, `source` has the whole of it, in
place of `replace`.
Of several mistakes with one symptom, `make test` tries the first in the table, `make test-all` all of them.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
SOLUTION = "solution"
KEYS = {"symptom", "says", "base", "replace", "source"}


class WrongAnswerError(ValueError):
    """A table of wrong answers has a row that cannot be used, or none of the name that was asked for."""


@dataclass(frozen=True)
class WrongAnswer:
    """One mistake: `source` is the program that makes it, and the check of `exercise` ("04.1") must say `symptom` and
    `says`."""

    exercise: str
    name: str
    symptom: str
    says: str
    source: str
    base: str = ""

    @property
    def id(self) -> str:
        return f"{self.exercise.replace('.', '-')}_{self.name}"


def load(tests: Path = TESTS) -> list[WrongAnswer]:
    """All wrong answers, in the order of their tables. Raises WrongAnswerError for a row that cannot be used."""
    return [answer for table in sorted((tests / "wrong_answers").glob("*.toml")) for answer in _table(table, tests)]


def find(exercise: str, name: str, answers: list[WrongAnswer]) -> WrongAnswer:
    """The wrong answer `name` of `exercise`. Raises WrongAnswerError that lists those there are."""
    names = names_of(exercise, answers)
    if name not in names:
        raise WrongAnswerError(f"{exercise} has no wrong answer {name!r}; it has {', '.join(names)}")
    return names[name]


def names_of(exercise: str, answers: list[WrongAnswer]) -> dict[str, WrongAnswer]:
    """The wrong answers of `exercise` by name. Raises WrongAnswerError where it has none."""
    names = {answer.name: answer for answer in answers if answer.exercise == exercise}
    if not names:
        known = dict.fromkeys(answer.exercise for answer in answers)
        raise WrongAnswerError(
            f"there are no wrong answers to an exercise {exercise!r}; there are some to {', '.join(known)}"
        )
    return names


def right_answer(exercise: str, base: str, tests: Path = TESTS) -> str:
    """The right answer that a row's `base` names. Raises WrongAnswerError that lists those there are."""
    lesson, _, number = exercise.partition(".")
    if base == SOLUTION:
        return _solution(exercise, tests.parent / "solutions")
    folder = tests / "right_answers" / lesson
    path = folder / f"{number}_{base}.py"
    if not path.is_file():
        names = sorted(other.stem.partition("_")[2] for other in folder.glob(f"{number}_*.py"))
        raise WrongAnswerError(
            f"there is no right answer {path.relative_to(tests.parent)}; base may be {', '.join([*names, SOLUTION])}"
        )
    return path.read_text()


def mutate(source: str, replacements: list[list[str]]) -> str:
    """`source` with each pair's first text replaced by its second. Each is looked for in `source` itself, so their
    order doesn't matter.

    Raises WrongAnswerError for a text that doesn't stand there exactly once, and for two that overlap.
    """
    spans = []
    for old, new in replacements:
        count = source.count(old) if old else 0
        if count != 1:
            cure = "take more of what stands around it" if count else "has the right answer changed?"
            raise WrongAnswerError(
                f"{old!r} stands {count} times in the right answer, and must stand there once: {cure}"
            )
        spans.append((source.index(old), old, new))
    end, parts = 0, []
    for start, old, new in sorted(spans):
        if start < end:
            raise WrongAnswerError(f"{old!r} overlaps with the replacement before it: make them one")
        parts += [source[end:start], new]
        end = start + len(old)
    return "".join([*parts, source[end:]])


def _table(path: Path, tests: Path) -> Iterator[WrongAnswer]:
    where = path.relative_to(tests.parent)
    try:
        table = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:  # two rows of one name are an error of TOML
        raise WrongAnswerError(f"{where}: {error}") from None
    if list(table) != [path.stem]:
        raise WrongAnswerError(
            f"{where}: every row begins with [{path.stem}.NUMBER.NAME], not with"
            f" {', '.join(key for key in table if key != path.stem)}"
        )
    for number, rows in table[path.stem].items():
        base = rows.pop("base", "")
        seen: dict[str, str] = {}
        for name, row in rows.items():
            try:
                answer = _answer(f"{path.stem}.{number}", name, row, base, tests)
                if answer.source in seen:
                    raise WrongAnswerError(f"the same program as {seen[answer.source]}")
            except WrongAnswerError as error:
                raise WrongAnswerError(f"{where}, {path.stem}.{number} {name}: {error}") from None
            seen[answer.source] = name
            yield answer


def _answer(exercise: str, name: str, row: Mapping[str, Any], base: str, tests: Path) -> WrongAnswer:
    if not isinstance(row, Mapping) or row.keys() - KEYS:
        raise WrongAnswerError(
            f"a row has {', '.join(sorted(KEYS))}, and not"
            f" {', '.join(sorted(row.keys() - KEYS)) if isinstance(row, Mapping) else row}"
        )
    if lacking := [key for key in ("symptom", "says") if not row.get(key)]:
        raise WrongAnswerError(f"has no {' and no '.join(lacking)}")
    base = row.get("base", base if "replace" in row else "")
    if bool(base) != ("replace" in row) or bool(base) == ("source" in row):
        raise WrongAnswerError("give it `base` and `replace`, or else the whole `source`")
    source = row.get("source", "")
    if base:
        right = right_answer(exercise, base, tests)
        source = mutate(right, row["replace"])
        if source == right:
            raise WrongAnswerError("its replacements change nothing")
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise WrongAnswerError(f"is not valid Python, line {error.lineno}: {error.msg}") from None
    return WrongAnswer(exercise, name, row["symptom"], row["says"], source, base)


def _solution(exercise: str, folder: Path) -> str:
    """The last cell that answers `exercise` in its solution notebook; one before it may be the faulty program that is
    handed out."""
    cells = [
        "".join(cell["source"])
        for path in folder.glob(f"{exercise.partition('.')[0]}_*.ipynb")
        for cell in json.loads(path.read_text())["cells"]
    ]
    answers = [
        body for head, _, body in (cell.partition("\n") for cell in cells) if head.split() == ["%%exercise", exercise]
    ]
    if not answers:
        raise WrongAnswerError(f"no solution notebook answers {exercise}")
    lines = answers[-1].rstrip("\n").splitlines()
    return "\n".join(line for line in lines if line.strip() not in ("### BEGIN SOLUTION", "### END SOLUTION")) + "\n"
