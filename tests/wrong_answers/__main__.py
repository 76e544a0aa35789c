"""Print a wrong answer: `python -m tests.wrong_answers 04.1 same_order_each_epoch`; without a name, list those of the
exercise."""

from __future__ import annotations

import argparse
import difflib
import sys

from . import WrongAnswer, WrongAnswerError, find, load, names_of, right_answer


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.wrong_answers", description="Print a wrong answer to an exercise, or list those it has."
    )
    parser.add_argument("exercise", help="such as 04.1")
    parser.add_argument("name", nargs="?", help="such as same_order_each_epoch")
    parser.add_argument("--diff", action="store_true", help="print what differs from the right answer")
    options = parser.parse_args(arguments)
    try:
        answers = load()
        if not options.name:
            for answer in names_of(options.exercise, answers).values():
                print(f"{answer.name:<40} {answer.symptom}")
            return 0
        answer = find(options.exercise, options.name, answers)
        sys.stdout.write(diff(answer) if options.diff else answer.source)
    except WrongAnswerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def diff(answer: WrongAnswer) -> str:
    """What the mistake changes, as a unified diff. Raises WrongAnswerError for one that has no right answer to compare
    it with."""
    if not answer.base:
        raise WrongAnswerError(
            f"{answer.exercise} {answer.name} is written out whole: there is no right answer to compare it with"
        )
    right = right_answer(answer.exercise, answer.base)
    return "".join(
        difflib.unified_diff(right.splitlines(True), answer.source.splitlines(True), answer.base, answer.name)
    )


if __name__ == "__main__":
    sys.exit(main())
