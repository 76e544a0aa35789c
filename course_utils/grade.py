"""Grade a class: judge every answer of every submission in processes of its own, and write a table.

    python -m course_utils.grade SUBMISSIONS [--csv F] [--json F] [--junit F]

SUBMISSIONS is a folder with a notebook for each student, or a folder for each with notebooks or answers (`04.1.py`).
The checks of the course that runs this decide, never those of a submission. What was judged before isn't judged again.
"""

from __future__ import annotations

import argparse
import ast
import csv
import ctypes
import fcntl
import hashlib
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from .check import FOLDER, blank_line
from .folders import COURSE, add_json_line, json_lines
from .machine.here import usable_cores
from .show.table import Table
from .show.units import counted

_CELL = re.compile(r"\s*%%exercise\s+(\d\d\.\d+[a-z]?)\b[^\n]*(?:\n|$)")
_FILE = re.compile(r"(\d\d)[._](\d+[a-z]?)\.py")
_DIFFICULTY = re.compile(r"\*\*Difficulty:\*\* (?:(\d) of 5|(\d) to (\d) of 5)")
KEPT = ".grades.jsonl"
MARK = "COURSE_GRADING"  # in the environment of all that an answer starts
LOOK_S = 0.2  # between two looks at what an answer uses
END_S = 10  # at most, until all that it started is gone
MOST_BYTES_WRITTEN = 1 << 30  # of one file
SHOWN = 300  # characters of what a student would see
OUTCOMES = ("solved", "not solved", "not done", "missing", "stopped", "not judged")


@dataclass(frozen=True)
class Limits:
    """What the answer to one exercise may use, with all that it starts."""

    seconds: float = 300.0
    memory_bytes: float = 8 * 2.0**30
    processes: int = 100


@dataclass
class Grade:
    """How one answer fared. `outcome` is one of OUTCOMES, `part` what it's worth of its exercise, from 0 to 1, and
    `said` what the student sees, or why there's no verdict."""

    outcome: str
    part: float = 0.0
    symptom: str = ""
    said: str = ""
    seconds: float = 0.0


@dataclass
class Submission:
    """What one student handed in: the answers by exercise, and remarks about the files."""

    name: str
    answers: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    grades: dict[str, Grade] = field(default_factory=dict)


# --- What was handed in -----------------------------------------------------------------------------------------------


def submissions(folder: Path) -> list[Submission]:
    """All submissions of a folder, by name. Raises FileNotFoundError for no folder, ValueError for an empty one."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there's no folder {folder}")
    found = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith((".", "__")):
            continue
        files = [entry] if entry.is_file() else [p for p in sorted(entry.rglob("*")) if not _hidden(p, entry)]
        files = [path for path in files if path.suffix in (".ipynb", ".py") and path.is_file()]
        if entry.is_dir() or files:
            found.append(_read(entry.name if entry.is_dir() else entry.stem, files))
    if not found:
        raise ValueError(f"{folder} has no submissions: a notebook, or a folder, for each student")
    return found


def _hidden(path: Path, below: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.relative_to(below).parts)


def _read(name: str, files: Sequence[Path]) -> Submission:
    found = Submission(name)
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
            sources = list(_cells(text)) if path.suffix == ".ipynb" else [_headed(path, text)]
        except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
            found.remarks.append(f"{path.name} can't be read: {str(error) or type(error).__name__}"[:SHOWN])
            continue
        for source in sources:
            head = _CELL.match(source)
            if head is None:
                continue
            exercise, answer = head[1], source[head.end() :]
            if exercise in found.answers and found.answers[exercise] != answer:
                if _open(answer):
                    continue
                if not _open(found.answers[exercise]):
                    found.remarks.append(f"{exercise} is there more than once, and the last one counts")
            found.answers[exercise] = answer
    return found


def _open(answer: str) -> bool:
    """Whether there's nothing in an answer, or a blank is left."""
    try:
        return not answer.strip() or bool(blank_line(ast.parse(answer)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _cells(text: str) -> Iterator[str]:
    """The sources of a notebook's cells, of whatever kind. Raises ValueError for what is no notebook."""
    notebook = json.loads(text)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ValueError("it's no notebook")
    for cell in cells:
        source = cell.get("source", "") if isinstance(cell, dict) else ""
        if isinstance(source, list):
            source = "".join(line for line in source if isinstance(line, str))
        if isinstance(source, str):
            yield source


def _headed(path: Path, text: str) -> str:
    """An answer in a file: it says its exercise in its first line, or by its name."""
    named = _FILE.fullmatch(path.name)
    return f"%%exercise {named[1]}.{named[2]}\n{text}" if named and not _CELL.match(text) else text


# --- What it's worth --------------------------------------------------------------------------------------------------


def points(file: Path | None = None) -> dict[str, float]:
    """What each exercise of the course is worth: its difficulty, from 1 to 5, or what `file` says, a TOML table of
    numbers by exercise. Raises ValueError for a name that's no exercise or a number below 0."""
    known: dict[str, float] = {}
    for notebook in sorted((COURSE / "exercises").glob("[0-9][0-9]_*.ipynb")):
        worth = 1.0
        for source in _cells(notebook.read_text(encoding="utf-8")):
            if said := _DIFFICULTY.search(source):
                worth = float(said[1] or said[3])
            if head := _CELL.match(source):
                known[head[1]] = worth
    if file is None:
        return known
    own = tomllib.loads(file.read_text(encoding="utf-8"))
    for name, worth in own.items():
        if name not in known:
            raise ValueError(f"{file}: there is no exercise {name!r}")
        if isinstance(worth, bool) or not isinstance(worth, (int, float)) or not worth >= 0:
            raise ValueError(f"{file}: {name} must be a number of points, 0 or more; got {worth!r}")
    return known | own


def chosen(wanted: Sequence[str], handed_in: Sequence[Submission], known: Mapping[str, float]) -> list[str]:
    """The exercises to grade: those asked for, by lesson ("04") or name ("04.1"), or else those of all lessons from
    which somebody has handed something in. Raises ValueError for one that's not there."""
    for name in wanted:
        if not any(exercise == name or exercise[:2] == name for exercise in known):
            raise ValueError(f"there is no exercise or lesson {name!r}")
    lessons = {name[:2] for submission in handed_in for name in submission.answers}
    return [name for name in known if (name in wanted or name[:2] in wanted if wanted else name[:2] in lessons)]


# --- One answer -------------------------------------------------------------------------------------------------------


def grade(name: str, answer: str, limits: Limits, network: bool = False) -> Grade:
    """Judge one answer in processes of its own, which end with it whatever they do."""
    mark, began = uuid.uuid4().hex, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="course-grade-", ignore_cleanup_errors=True) as folder:
        file, out, errors = (Path(folder) / part for part in ("answer.py", "out", "errors"))
        file.write_text(answer, encoding="utf-8", errors="surrogatepass")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("COURSE_", "PYTHON"))}
        env |= {MARK: mark, "COURSE_HOME": folder, "HOME": folder, "TMPDIR": folder, "PYTHONPATH": str(COURSE_PATH)}
        command = [sys.executable, "-m", "course_utils.check", name, str(file), "--json"]
        with out.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                start_new_session=True, preexec_fn=lambda: _confine(network),
            )  # fmt: skip
            why = _watch(process, mark, limits, began)
        _end(process, mark)
        said = _last_line(out)
        seconds = round(time.monotonic() - began, 2)
        if why:
            return Grade("stopped", said=why, seconds=seconds)
        try:
            told = json.loads(said)
            solved, symptom, words = told["solved"], str(told["symptom"]), str(told["differs"])
            outcome = "not judged" if solved is None else str(told["outcome"])
        except (ValueError, KeyError, TypeError):
            ended = f"the check ended with {process.returncode} and no verdict: {_last_line(errors)}"
            return Grade("stopped", said=ended[:SHOWN], seconds=seconds)
        return Grade(outcome, float(bool(solved)), symptom, words[:SHOWN], seconds)


COURSE_PATH = Path(__file__).resolve().parent.parent  # where this package lies


def _confine(network: bool) -> None:
    """In the child, before it becomes the check: no large files, no core dumps, and no network but its own loopback,
    where the system lets us."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES_WRITTEN, MOST_BYTES_WRITTEN))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not network:
        with suppress(OSError, AttributeError):
            _cut_off()


def _cut_off() -> None:
    """A network of its own for this process and its children, with a loopback. Raises OSError where that isn't
    allowed."""
    new_user, new_net = 0x10000000, 0x40000000
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(new_net) != 0:
        if libc.unshare(new_user | new_net) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for path, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path(f"/proc/self/{path}").write_text(text)
    up = struct.pack("16sh", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        fcntl.ioctl(some, 0x8914, up)  # SIOCSIFFLAGS


def network_can_be_cut() -> bool:
    """Whether answers can be kept from the network here."""
    child = os.fork()
    if not child:
        try:
            _cut_off()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _watch(process: subprocess.Popen[bytes], mark: str, limits: Limits, began: float) -> str:
    """Wait for the check, and say what it used too much of; empty if nothing."""
    while True:
        try:
            process.wait(LOOK_S)
            return ""
        except subprocess.TimeoutExpired:
            pass
        if time.monotonic() - began > limits.seconds:
            return f"not done after {limits.seconds:g} s"
        members = [int(pid) for pid in _members(mark)]
        if len(members) > limits.processes:
            return f"more than {limits.processes} processes at once"
        if sum(map(_memory, members)) > limits.memory_bytes:
            return f"more than {limits.memory_bytes / 2**30:g} GiB of memory"


def _members(mark: str) -> Iterator[str]:
    """All processes that an answer has started, however far they went."""
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (path / "environ").read_bytes():
                yield path.name


def _memory(pid: int) -> float:
    """Bytes that a process takes; what it shares with others, as forks do with each other, counts in equal parts."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return float(line.split()[1]) * 1024
    return 0.0


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End all that an answer has started. It may start more meanwhile, and a busy machine takes its time with many, so
    look again until there's nobody."""
    began = time.monotonic()
    while (members := list(_members(mark))) and time.monotonic() - began < END_S:
        for pid in members:
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 10_000))
        lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""


# --- The class --------------------------------------------------------------------------------------------------------


def grade_all(
    handed_in: Sequence[Submission], exercises: Sequence[str], kept: Path | None, jobs: int, limits: Limits,
    network: bool = False,
) -> None:  # fmt: skip
    """Fill in the grades. Verdicts are written to `kept` as they come, by the answer and the state of the checks, so
    that a second run judges only what's new."""
    known = {record["key"]: record for record in (json_lines(kept) if kept else []) if "key" in record}
    checks = {lesson: _state_of_checks(lesson) for lesson in {name[:2] for name in exercises}}
    waiting: dict[tuple[str, str], list[Submission]] = {}
    for submission in handed_in:
        for name in exercises:
            answer = submission.answers.get(name)
            if answer is None:
                submission.grades[name] = Grade("missing")
                continue
            text = f"{name}\n{checks[name[:2]]}\n{answer}".encode(errors="surrogatepass")
            key = hashlib.sha256(text).hexdigest()[:24]
            if key in known:
                submission.grades[name] = Grade(**{k: v for k, v in known[key].items() if k != "key"})
            else:
                waiting.setdefault((name, key), []).append(submission)
    lock = threading.Lock()

    def judged(name: str, key: str, whose: list[Submission]) -> None:
        found = grade(name, whose[0].answers[name], limits, network)
        for submission in whose:  # who copied each other are judged once
            submission.grades[name] = found
        if kept and found.outcome != "not judged":
            with lock:
                add_json_line(kept, {"key": key} | asdict(found))

    with ThreadPoolExecutor(jobs) as pool:
        tasks = [pool.submit(judged, name, key, whose) for (name, key), whose in waiting.items()]
        for done, task in enumerate(as_completed(tasks), 1):
            task.result()
            print(f"\r{done} of {counted(len(tasks), 'answer')} judged", end="", file=sys.stderr, flush=True)
        if tasks:
            print(file=sys.stderr)


def _state_of_checks(lesson: str) -> str:
    """A digest of all that decides about a lesson's answers."""
    found = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.py"), *(FOLDER / f"lesson_{lesson}").glob("*")]):
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


def total(submission: Submission, worth: Mapping[str, float]) -> float:
    return sum(worth[name] * grade.part for name, grade in submission.grades.items())


_SIGNS = {"solved": "✓", "not solved": "✗", "not done": "·", "missing": "–", "stopped": "!", "not judged": "?"}


def table(handed_in: Sequence[Submission], exercises: Sequence[str], worth: Mapping[str, float]) -> Table:
    """A row for each submission, a column for each exercise."""
    most = sum(worth[name] for name in exercises)
    rows = [
        (s.name, *(_SIGNS[s.grades[name].outcome] for name in exercises), f"{total(s, worth):g}") for s in handed_in
    ]
    note = f"of {most:g} points. ✓ solved, ✗ not solved, · not done, – missing, ! stopped, ? couldn't be judged"
    return Table(("", *exercises, "points"), rows, "l" + "c" * len(exercises) + "r", note=note)


def write_csv(
    path: Path, handed_in: Sequence[Submission], exercises: Sequence[str], worth: Mapping[str, float]
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["submission", *exercises, "points", "remarks"])
        for s in handed_in:
            marks = [f"{worth[name] * s.grades[name].part:g}" for name in exercises]
            writer.writerow([s.name, *marks, f"{total(s, worth):g}", "; ".join(s.remarks)])


def write_json(path: Path, handed_in: Sequence[Submission], worth: Mapping[str, float]) -> None:
    found = [
        {"submission": s.name, "points": total(s, worth), "remarks": s.remarks}
        | {"grades": {name: asdict(grade) | {"worth": worth[name]} for name, grade in s.grades.items()}}
        for s in handed_in
    ]
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")


def write_junit(path: Path, handed_in: Sequence[Submission]) -> None:
    """A test suite for each submission, as CI systems show it."""
    suites = ElementTree.Element("testsuites")
    for s in handed_in:
        bad = [g for g in s.grades.values() if g.outcome != "solved"]
        suite = ElementTree.SubElement(
            suites, "testsuite", name=s.name, tests=str(len(s.grades)), failures=str(len(bad)), errors="0"
        )
        for name, g in s.grades.items():
            case = ElementTree.SubElement(suite, "testcase", classname=s.name, name=name, time=f"{g.seconds:g}")
            if g.outcome != "solved":
                message = _printable(f"{g.outcome}{': ' * bool(g.symptom)}{g.symptom}")
                ElementTree.SubElement(case, "failure", message=message).text = _printable(g.said)
    ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Without the control characters that XML has no form for."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, 1 if something couldn't be judged, 2 for a wrong argument."""
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.grade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("submissions", type=Path)
    parser.add_argument("exercises", nargs="*", help="lessons (04) or exercises (04.1); else those that were handed in")
    parser.add_argument("--csv", type=Path, help="points, a row for each submission")
    parser.add_argument("--json", type=Path, help="everything: outcome, symptom, and what the student saw")
    parser.add_argument("--junit", type=Path, help="for CI")
    parser.add_argument("--points", type=Path, help='a TOML file with lines such as "04.1" = 10; else the difficulty')
    parser.add_argument("-j", "--jobs", type=int, default=max(1, usable_cores() // 2), help="answers at a time")
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="for one answer (%(default)s)")
    parser.add_argument("--memory", type=float, default=Limits.memory_bytes / 2**30, help="GiB, for one (%(default)s)")
    parser.add_argument("--network", action="store_true", help="let answers reach the network")
    parser.add_argument("--fresh", action="store_true", help="judge everything again")
    options = parser.parse_args(argv)
    limits = Limits(options.seconds, options.memory * 2**30)
    try:
        if options.jobs < 1 or not options.seconds > 0 or not options.memory > 0:
            raise ValueError("--jobs, --seconds and --memory must be above 0")
        handed_in = submissions(options.submissions)
        worth = points(options.points)
        exercises = chosen(options.exercises, handed_in, worth)
        if not exercises:
            raise ValueError(f"nobody in {options.submissions} has answered an exercise of this course")
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    if not options.network and not network_can_be_cut():
        print("Answers can reach the network: this system doesn't let us cut it off.", file=sys.stderr)
    kept = options.submissions / KEPT
    if options.fresh:
        kept.unlink(missing_ok=True)
    grade_all(handed_in, exercises, kept, options.jobs, limits, options.network)
    print(table(handed_in, exercises, worth))
    for s in handed_in:
        unknown = sorted(set(s.answers) - set(worth))
        for remark in [*s.remarks, *(f"there is no exercise {name}" for name in unknown)]:
            print(f"{s.name}: {remark}")
    if options.csv:
        write_csv(options.csv, handed_in, exercises, worth)
    if options.json:
        write_json(options.json, handed_in, worth)
    if options.junit:
        write_junit(options.junit, handed_in)
    return int(any(g.outcome == "not judged" for s in handed_in for g in s.grades.values()))


if __name__ == "__main__":
    sys.exit(main())
