"""The golden record: what users see, kept as text under tests/golden/, so that a change of the house which means to
change none of it can show that it hasn't.

    python tools/golden.py            compare, and show each line that differs
    python tools/golden.py --write    keep what is said now; git then shows the difference
    python tools/golden.py errors answers/04    only these parts

The parts: `answers/NN` (verdict, symptom and sentences of each right and wrong answer of a lesson), `explorers` (words
at some settings, and a hash of the picture at every one that the tests visit), `figures`, `errors` (the text of a
RankError for each of tests/mistakes.toml, and of LaunchErrors), `batch` (what `--dry` shows) and `help`.
Random cases of the judges are pinned here; those that ranks draw differ in numbers alone, which is said and doesn't
count. What differs from run to run (times, process ids, folders) is written as <...>.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import io
import json
import os
import random
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "golden"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
_Random = random.Random
Part = dict[str, Any]
CHANCE = "device_ids, and a model that nobody moved"  # of the mistakes, the one whose first rank differs

_MASKS = [  # what differs from run to run: a pattern, and what stands for it
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"/tmp/course-[\w-]+(/course-\w+)?"), "<temporary>"),
    (re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)*(?=site-packages/|python3\.\d+/)"), "<python>/"),
    (re.compile(r"kernel-[\w-]+|launches/[\w.-]+"), "<launch>"),
    (re.compile(r"\b(pid|process|PID) \d+"), r"\1 <pid>"),
    (re.compile(r"127\.0\.0\.1:\d+|(?<=port )\d+|(?<=port: )\d+"), "<port>"),
    (re.compile(r"\b\d+(\.\d+)? ?(?:ms|s|seconds)\b"), "<time>"),
]


class Pinned(random.Random):
    """A generator that nobody gave a seed draws the same cases each time."""

    def __init__(self, seed: Any = None):
        super().__init__(0 if seed is None else seed)


def masked(text: str, home: str) -> str:
    """`text` without what differs from run to run, and without the folders of this machine."""
    text = text.replace(home, "<home>").replace(str(ROOT), "<course>").replace(sys.prefix, "<python>")
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return text


def without_numbers(text: str) -> str:
    """For cases that ranks draw themselves, another each time: every number as #, and a list of them as one."""
    text = re.sub(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?", "#", text)
    return re.sub(r"#(, ?#)+(, \.\.\.)?", "#", text)


def answers(number: str) -> Part:
    """What the judges of a lesson say of each answer that the tests know."""
    from course_utils import check
    from tests import wrong_answers

    found: Part = {}
    asked = [
        (f"{number}.{path.stem.partition('_')[0]} {path.stem.partition('_')[2]}", path.read_text())
        for path in sorted((ROOT / "tests" / "right_answers" / number).glob("*.py"))
    ]
    asked += [
        (f"{wrong.exercise} {wrong.name}", wrong.source)
        for wrong in wrong_answers.load()
        if wrong.exercise.startswith(number)
    ]
    for name, source in asked:
        random.seed(0)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            judged = check.judge(name.partition(" ")[0], source)
        found[name] = {"outcome": judged.outcome, "symptom": judged.symptom, "checked": list(judged.checked)}
        if judged.difference:
            one = judged.difference
            hints = check.hints_of(name.partition(" ")[0]).get(judged.symptom, one.hints)
            found[name] |= {"differs": one.differs, "expected": one.expected, "got": one.got, "hints": list(hints)}
        if judged.words:
            found[name]["words"] = judged.words
    return found


def explorers() -> Part:
    """Words and picture of each explorer, at the settings that tests/test_explore.py visits."""
    from tests.test_explore import EXPLORERS, STORED, corners, make

    found: Part = {}
    for name in EXPLORERS:
        explorer = make(name)
        hashes: list[str] = []
        for settings in corners(explorer):
            explorer.set(**settings)
            for answered in (True, False):
                view = explorer.view(answered)
                hashes.append(hashlib.sha256((view.svg + view.summary).encode()).hexdigest()[:8])
        found[name] = {"words": str(make(name)).splitlines(), "pictures": " ".join(hashes)}
    stored: list[Any] = list(STORED)
    for i, (name, given, _) in enumerate(stored):
        view = make(name, **given).view()
        words = re.findall(r"<text[^>]*>(.*?)</text>", view.svg)
        found[f"{name} {i} {json.dumps(given)}"] = {"summary": view.summary, "words": words}
    return found


def drawn() -> Part:
    """The sentence of each kind of figure, over published tables."""
    from course_utils import Samples, figures, predict, published

    def step(median: float, name: str = "step_s") -> Samples:
        return Samples([0.98 * median, median, 1.02 * median], name)

    shown: dict[str, Any] = {
        "bars": figures.bars({"one": step(0.3), "two": step(0.2)}, guess={"two": 0.15}, predicted={"two": 0.16}),
        "speedup": figures.speedup({1: step(300.0), 2: step(540.0)}, published=published.ddp_scaling()),
        "throughput": figures.speedup({1: step(300.0), 2: step(540.0)}, quantity="throughput"),
        "lines": figures.lines({"loss": ([0, 1, 2], [2.0, 1.0, 0.5])}, "step", "loss"),
        "timeline": figures.rank_timeline(
            predict.ddp_step([predict.Layer(1.0, 2.0, 1.0)] * 3, lambda _: 0.5).spans, title="A step"
        ),
    }
    return {name: figure.summary for name, figure in shown.items()}


def _said(call: Callable[[], object]) -> str:
    """What a call prints, and the error that ends it."""
    out = io.StringIO()
    ended = ""
    with redirect_stdout(out), redirect_stderr(out):
        try:
            call()
        except Exception as error:
            ended = f"\n{type(error).__name__}: {error}"
    return out.getvalue() + ended


def _first(call: Callable[[], object]) -> list[str]:
    """What stands above the first blank line of the error: which rank was first and why, and what helps. How the others
    ended differs from run to run."""
    return _said(call).strip().partition("\n\n")[0].splitlines()


def errors() -> Part:
    """The first of what a learner reads when a launch fails, or isn't started."""
    from course_utils import launch

    table = tomllib.loads((ROOT / "tests" / "mistakes.toml").read_text())
    found: Part = {}
    for row in table["mistake"]:
        if "silent" in row or "prints" in row or row["name"] == CHANCE:
            continue
        Path("cell.py").write_text(table["head"] + row["program"])
        found[row["name"]] = _first(lambda: launch("cell.py", 2, quiet=True, device="cpu"))
    Path("cell.py").write_text("print('fine')\n")
    refused: list[dict[str, Any]] = [
        {"ranks": 0}, {"ranks": "two"}, {"args": "--lr 1"}, {"env": {"A=B": "1"}}, {"engine": "mpi"}, {"timeout": -1},
        {"nodes": 2}, {"nodes": 0}, {"max_restarts": -1}, {"slow": {0: 2.0}}, {"cluster": "8xB100"}, {"detach": True},
        {"cluster": "8xA100", "device": "cpu"}, {"cluster": "8xA100", "engine": "torchrun"}, {"threads": 0},
        {"dry": True}, {"engine": "cold", "max_restarts": 1}, {"device": "tpu"}, {"gpus_per_rank": -1},
    ]  # fmt: skip
    for asked in refused:
        found[f"launch {json.dumps(asked)}"] = _said(partial(launch, "cell.py", **asked)).splitlines()
    return found


def batch() -> Part:
    """What `--dry` shows of Slurm and torchrun."""
    from course_utils import launch

    Path("cell.py").write_text("print('fine')\n")
    asked: list[dict[str, Any]] = [
        {"engine": "slurm", "ranks": 8, "nodes": 2, "device": "cpu"},
        {"engine": "slurm", "ranks": 8, "nodes": 2, "device": "cuda", "gpus_per_rank": 1, "timeout": 600},
        {"engine": "slurm", "ranks": 4, "nodes": 4, "device": "cpu", "threads": 3, "max_restarts": 2},
        {"engine": "slurm", "ranks": 2, "device": "cpu", "env": {"A": "it's", "B": None}, "args": ["--x", "two words"]},
        {"engine": "torchrun", "ranks": 8, "nodes": 2, "device": "cpu"},
        {"engine": "torchrun", "ranks": 2, "device": "cpu", "max_restarts": 3},
    ]
    return {
        json.dumps(settings): _said(partial(launch, "cell.py", dry=True, **settings)).splitlines() for settings in asked
    }


def help_pages() -> Part:
    """`%%ranks?`, and the help of the front door."""
    import course_utils
    from course_utils import launch, sweep
    from course_utils.cells import magic

    return {
        "%%ranks?": str(magic.Ranks.run_on_ranks.__doc__).splitlines(),
        "course_utils": str(course_utils.__doc__).splitlines(),
        "launch": str(launch.__doc__).splitlines(),
        "sweep": str(sweep.__doc__).splitlines(),
    }


def parts() -> Mapping[str, Callable[[], Part]]:
    lessons = sorted(path.name for path in (ROOT / "tests" / "right_answers").iterdir() if path.name.isdigit())
    return {
        "help": help_pages, "batch": batch, "figures": drawn, "explorers": explorers, "errors": errors,
        **{f"answers/{number}": partial(answers, number) for number in lessons},
    }  # fmt: skip


def text_of(part: str) -> str:
    """What a part of the record is now, in a folder of its own."""
    with tempfile.TemporaryDirectory() as home:
        before, os.environ["COURSE_HOME"] = os.getcwd(), home
        for name in ("COURSE_SLURM", "COURSE_ENGINE", "COURSE_CHECKS_FILE", "COLUMNS"):
            os.environ.pop(name, None)
        os.environ["COURSE_NOTEBOOK"] = "04_golden.ipynb"
        os.chdir(home)
        vars(random)["Random"] = Pinned
        try:
            found = parts()[part]()
        finally:
            vars(random)["Random"] = _Random
            os.chdir(before)
        return masked(json.dumps(found, indent=1, ensure_ascii=False, default=str), home) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="only these; `answers` is all lessons")
    parser.add_argument("--write", action="store_true", help="keep what is said now")
    asked = parser.parse_args()
    chosen = [name for name in parts() if not asked.parts or name in asked.parts or name.split("/")[0] in asked.parts]
    if not chosen:
        parser.error(f"there are {', '.join(parts())}")
    differ = 0
    for name in chosen:
        file, now = KEPT / f"{name}.json", text_of(name)
        kept = ""
        with suppress(FileNotFoundError):
            kept = file.read_text(encoding="utf-8")
        lines = list(difflib.unified_diff(kept.splitlines(), now.splitlines(), "kept", "now", n=1, lineterm=""))
        words = without_numbers(kept) != without_numbers(now)
        differ += words
        found = f"{sum(line.startswith('+ ') for line in lines)} lines differ{'' if words else ', in numbers alone'}"
        print(f"{name}: {found if lines else 'the same'}", flush=True)
        if asked.write:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(now, encoding="utf-8")
        elif lines:
            print("\n".join(line[:300] for line in lines))
    return int(differ > 0 and not asked.write)


if __name__ == "__main__":
    sys.exit(main())
