"""Predict published cases from a file, and say how far each prediction is off."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..show.table import Table
from ..show.units import counted
from .experiments import CLASSES, Prediction, predict_case

EPILOG = f"""\
FILE is JSON: a list of cases, or an object with that list under "cases". A case has an id, a class (cls), the inputs of
that class, the observed value, and usually a unit, a role and a note. Classes: {", ".join(sorted(CLASSES))}.

error is predicted / observed - 1. For a bracket (amp_bound) it is how far outside the observed value lies. The summary
of a class leaves out its counterexamples: the model is known to fail on them, and their note says why.

exit code: 0 when every case was predicted; 1 when some could not be (unknown class, bad input): the output names them
and predicts the rest; 2 when FILE is not a readable list of cases. Bad predictions do not change the exit code.
"""


@dataclass(frozen=True)
class Summary:
    """The relative errors, without sign, of one class or of all cases in a role. `worst` is the id of the case with the
    largest."""

    name: str
    n: int
    median_error: float | None
    worst_error: float | None
    worst: str = ""
    counterexamples: int = 0
    not_predicted: int = 0


def summarise(name: str, predictions: Sequence[Prediction]) -> Summary:
    """Count counterexamples and cases without a prediction, but leave both out of the errors."""
    against = [p for p in predictions if p.role == "counterexample"]
    failed = [p for p in predictions if p.problem]
    counted = [(abs(p.error), p.id) for p in predictions if p.error is not None and p.role != "counterexample"]
    worst = max(counted, default=(None, ""))
    return Summary(
        name,
        len(counted),
        median(e for e, _ in counted) if counted else None,
        worst[0],
        worst[1],
        len(against),
        len(failed),
    )


def load_cases(path: str) -> list[Any]:
    """Read the cases in a file. Raises ValueError when it can't be read or has no list of cases."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise ValueError(f"{path} cannot be read: {problem.strerror or problem}") from None
    except ValueError as problem:
        raise ValueError(f"{path} is not JSON: {problem}") from None
    cases = raw.get("cases") if isinstance(raw, dict) else raw
    if not isinstance(cases, list):
        raise ValueError(f'{path} has no list of cases: write a JSON list, or an object with that list under "cases"')
    return cases


def _percent(value: float | None, signed: bool = False) -> str:
    return "" if value is None else f"{100 * value:{'+' if signed else ''}.1f}%"


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def table(predictions: Sequence[Prediction]) -> list[str]:
    """A line for each case, and a second one where there's something to explain."""
    rows = [("id", "class", "role", "predicted", "observed", "error", "unit")]
    for p in predictions:
        predicted = _value(p.predicted) if p.low is None or p.high is None else f"{_value(p.low)} to {_value(p.high)}"
        rows.append(
            (p.id, p.cls, p.role, predicted, _value(p.observed), _percent(p.error, signed=p.low is None), p.unit)
        )
    lines = str(Table(rows[0], rows[1:], "lllrrrl")).split("\n")
    shown = lines[:1]
    for p, line in zip(predictions, lines[1:], strict=True):
        shown.append(line)
        if p.problem:
            shown.append(f"    not predicted: {p.problem}")
        if p.role == "counterexample" and p.error is not None:
            why = f", because {p.cause}" if p.cause else "; the case gives no reason"
            shown.append(f"    counterexample, off by {_percent(abs(p.error))}{why}")
        elif p.low is not None and p.error and p.note:
            shown.append(f"    outside the bracket: {p.note}")
        if p.unused:
            shown.append(f"    inputs not used by {p.cls}: {', '.join(p.unused)}")
    return shown


def summary_line(s: Summary, width: int) -> str:
    """The line that sums up a class or a role."""
    text = f"{s.name.ljust(width)}  n {s.n:3d}"
    if s.n:
        text += f"  median {_percent(s.median_error):>6}  worst {_percent(s.worst_error):>6}  ({s.worst})"
    text += f"  and {counted(s.counterexamples, 'counterexample')}" if s.counterexamples else ""
    text += f"  and {s.not_predicted} not predicted" if s.not_predicted else ""
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.predict",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE.json")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    options = parser.parse_args(arguments)
    try:
        cases = load_cases(options.file)
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    predictions = [predict_case(case, number) for number, case in enumerate(cases, 1)]
    by_class: dict[str, list[Prediction]] = {}
    by_role: dict[str, list[Prediction]] = {}
    for p in predictions:
        by_class.setdefault(p.cls or "(none)", []).append(p)
        by_role.setdefault(p.role or "(none)", []).append(p)
    classes = [summarise(cls, members) for cls, members in by_class.items()]
    roles = [summarise(f"all {role}", members) for role, members in by_role.items() if role != "counterexample"]
    failed = [p for p in predictions if p.problem]
    if options.json:
        answer = {
            "cases": [asdict(p) for p in predictions],
            "classes": [asdict(s) for s in classes],
            "roles": [asdict(s) for s in roles],
        }
        print(json.dumps(answer, indent=1))
    else:
        width = max((len(s.name) for s in [*classes, *roles]), default=0)
        print("\n".join(table(predictions)))
        print()
        print("\n".join(summary_line(s, width) for s in [*classes, *roles]))
    if failed:
        names = ", ".join(p.id for p in failed[:10]) + " ..." * (len(failed) > 10)
        print(f"{len(failed)} of {len(cases)} cases could not be predicted: {names}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
