"""Run the tests, and give what failed a second chance that hides nothing.

    python tools/run_tests.py                the gate: what every change must pass
    python tools/run_tests.py --all          everything
    python tools/run_tests.py --lesson 07    all that belongs to one lesson

A test that failed runs once more at the end: alone, and in a new process, since the first one's state may be spoilt. If
it passes then, it *wobbled*. That fails nothing, but the last lines name the test with both outputs and the load at
that time, and `artifacts/wobbled.jsonl` keeps them. What fails twice is broken, and so are more than five wobbles.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from course_utils.machine.here import usable_cores  # noqa: E402

MOST_WOBBLES = 5
MOST_SECOND_CHANCES = 12  # of more failures than these, something else is the cause
GIVE_UP_AFTER_S = 300  # one test has failed twice: so long others get their second chance
WOBBLED = ROOT / "artifacts" / "wobbled.jsonl"
SHOWN_LINES = 30  # of each output of a test that wobbled; the file has all of it


@dataclass
class Outcome:
    """What one or several runs of pytest found. `failed`: test -> what it said; `trouble`: what kept pytest itself from
    telling."""

    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)


def phases(everything: bool) -> list[tuple[str, str]]:
    """The runs of pytest, one after the other: which tests (`-m`), and how many at a time (`-n`).

    Most tests wait for processes, so they share the cores. Those that measure want the machine for themselves.
    """
    cores = str(usable_cores())
    if everything:
        return [("not timed and not alone", cores), ("timed", "2"), ("alone", "0")]
    return [("not slow and not timed and not alone", cores), ("not slow and timed", "2")]


def run(which: str, at_a_time: str, options: list[str], found: Outcome) -> None:
    """Run pytest once, in a process of its own; what it found is added to `found`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-m", which, "-n", at_a_time, "--dist", "loadgroup"]
        ended = subprocess.run([*command, f"--outcomes={report}", *options], cwd=ROOT).returncode
        try:
            told: dict[str, Any] = json.loads(report.read_text())
        except (OSError, ValueError):
            found.trouble.append(f"pytest ended with {ended} before it could tell what it found (-m {which!r})")
            return
    found.passed += told["passed"]
    found.skipped += told["skipped"]
    found.failed |= told["failed"]
    if ended not in (0, 5) and not told["failed"]:  # 5: none was chosen
        found.trouble.append(f"pytest ended with {ended}, and no test failed (-m {which!r})")


def once_more(test: str) -> tuple[bool, str]:
    """Run one test alone, in a new process: whether it passed, and what pytest printed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-m", "", "-n", "0", f"--outcomes={report}", test]
        ended = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
        try:
            passed = json.loads(report.read_text())["passed"]
        except (OSError, ValueError):
            passed = 0
    return ended.returncode == 0 and passed == 1, ended.stdout


def second_chances(failed: dict[str, str]) -> tuple[list[str], list[dict[str, Any]]]:
    """Run each failed test once more: those that failed again, and those that wobbled. When one has failed again and
    minutes have gone by, the rest count as broken: what makes every test wait for its limit would keep us for hours."""
    broken: list[str] = []
    wobbled: list[dict[str, Any]] = []
    began = time.monotonic()
    for test, first in failed.items():
        if broken and time.monotonic() - began > GIVE_UP_AFTER_S:
            print(f"\n[tests] no second chance any more, red it is: {test}", flush=True)
            broken.append(test)
            continue
        print(f"\n[tests] once more, alone: {test}", flush=True)
        load = os.getloadavg()[0]
        passed, second = once_more(test)
        if passed:
            wobbled.append(
                {"test": test, "when": time.strftime("%F %T"), "load": load, "first": first, "second": second}
            )
        else:
            broken.append(test)
            print(second, flush=True)
    return broken, wobbled


def tell_of(wobbled: list[dict[str, Any]]) -> None:
    """Print what wobbled, and keep it."""
    WOBBLED.parent.mkdir(exist_ok=True)
    with WOBBLED.open("a") as book:
        for wobble in wobbled:
            book.write(json.dumps(wobble) + "\n")
    print(f"\n{' wobbled ':=^100}")
    for wobble in wobbled:
        print(f"{wobble['test']}: failed among others, passed alone (load {wobble['load']:.1f} when it began)")
        for title, text in (("first", wobble["first"]), ("second", wobble["second"])):
            print(f"  {title}:\n" + "\n".join(f"    {line}" for line in text.splitlines()[-SHOWN_LINES:]))
    print(f"All of both outputs is in {WOBBLED.relative_to(ROOT)}.")


def verdict(found: Outcome) -> bool:
    """Give second chances where they make sense, tell what came of it, and return whether all is well."""
    broken: list[str] = list(found.failed)
    wobbled: list[dict[str, Any]] = []
    if found.failed and len(found.failed) <= MOST_SECOND_CHANCES:
        broken, wobbled = second_chances(found.failed)
    if wobbled:
        tell_of(wobbled)
    why = list(found.trouble)
    if broken:
        again = "twice" if len(found.failed) <= MOST_SECOND_CHANCES else "(too many for a second chance)"
        why.append(f"failed {again}:\n  " + "\n  ".join(broken))
    if len(wobbled) > MOST_WOBBLES:
        why.append(f"{len(wobbled)} tests wobbled, and {MOST_WOBBLES} are the most")
    if not found.passed + len(wobbled):
        why.append("no test passed")
    if why:
        print("\n[tests] red: " + "\n[tests] and: ".join(why))
    print(f"\n{found.passed + len(wobbled)} passed, {len(broken)} failed, {found.skipped} skipped", flush=True)
    return not why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--all", action="store_true", help="all tests, those marked slow too")
    what.add_argument("--lesson", metavar="NN", help="all tests of one lesson")
    chosen, options = parser.parse_known_args()
    if chosen.lesson:
        options += ["--lesson", chosen.lesson]
    if not chosen.all:  # each test may fail twice, itself and what clears up after it: this is red for sure
        options += [f"--maxfail={2 * MOST_SECOND_CHANCES + 1}"]
    began, found = time.monotonic(), Outcome()
    for which, at_a_time in phases(chosen.all or bool(chosen.lesson)):
        if chosen.all or len(found.failed) <= MOST_SECOND_CHANCES:
            run(which, at_a_time, options, found)
    fine = verdict(found)
    print(f"[tests] {'green' if fine else 'red'} after {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
