"""Run lessons here and keep their main results under data/recorded/, for readers with other hardware.

After a cell tagged `record=VARIABLE`, the `Run` or `Sweep` of that name is saved as `NN_VARIABLE.MACHINE.json`. This
needs IPython and matplotlib, but not Jupyter: the cells of a lesson run one after the other in a process of its own. A
cell that fails ends its lesson, and the others go on. `--check` looks at files that somebody has sent.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from course_utils import recorded  # noqa: E402
from course_utils.machine.optional_packages import EXTRAS  # noqa: E402
from course_utils.results.run import Run  # noqa: E402
from course_utils.results.sweep import Sweep  # noqa: E402

TAG = "record="
MOST_BYTES = 200_000  # of a file: figures need the steps of some repeats, not every record of a long training
_SCALAR = (bool, int, float, str, type(None))
_SCHEMA: dict[str, type | tuple[type, ...]] = {
    "name": str, "machine": str, "versions": dict, "date": str, "placement": str, "engine": str, "script": str,
    "source": list, "kind": str, "points": list,
}  # fmt: skip
# A record, as it's written over several lines, with or without lists of numbers in it: it gets one.
_INNERMOST = re.compile(r"\{\n(?:[^{}\[\]]|\[[-+.,\de\s]*\])*\}")
_LEFT_OUT = ("time", "progress")  # of each record
_SPAN = {"start_s", "end_s"}  # of a record for a timeline: there are too many to keep, and they are of one run
_PATH = re.compile(r"(?<![\w/:.])(?:~|/[\w.+-]+)(?:/[\w.+-]+)+")  # an absolute path, not a unit or an address


def lessons(wanted: list[str], folder: Path = ROOT / "notebooks") -> list[Path]:
    """The lessons with a tagged cell: all, or those of the `wanted` numbers. Exits if there's none for a number."""
    tagged = [path for path in sorted(folder.glob("*.ipynb")) if any(names(cell) for cell in cells(path))]
    for number in wanted:
        if not any(path.name.startswith(number) for path in tagged):
            sys.exit(
                f"no lesson {number} has a cell tagged {TAG}VARIABLE; these have one:"
                f" {', '.join(path.name[:2] for path in tagged) or 'none'}"
            )
    return [path for path in tagged if not wanted or path.name[:2] in wanted]


def cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def names(cell: dict) -> list[str]:
    return [tag.removeprefix(TAG) for tag in cell["metadata"].get("tags", []) if tag.startswith(TAG)]


def record(path: Path, out: Path | None = None) -> list[Path]:
    """Run one lesson and save what its tags name; returns the files."""
    from IPython.core.interactiveshell import InteractiveShell

    os.environ["COURSE_NOTEBOOK"], os.environ["MPLBACKEND"] = path.name, "Agg"
    os.chdir(path.parent)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    written = []
    for cell in cells(path):
        if not shell.run_cell("".join(cell["source"])).success:
            sys.exit(f"{path.name} failed in the cell above; what was recorded before it is kept")
        for name in names(cell):
            result = shell.user_ns.get(name)
            if result is None:
                print(f"left out: {name} of {path.name}, which this machine couldn't run")
                continue
            if not isinstance(result, (Run, Sweep)):
                sys.exit(
                    f"{path.name}: a cell is tagged {TAG}{name}, and {name} is {type(result).__name__}, not a Run or a"
                    " Sweep"
                )
            written.append(save(f"{path.name[:2]}_{name}", result, out))
            print(f"recorded: {written[-1]}")
    return written


def save(name: str, result: Run | Sweep, folder: str | Path | None = None) -> Path:
    """Write a finished run or sweep; returns the file. A file of the same name and machine is replaced.

    What was emulated says so in the name of its machine. Raises ValueError for a result with a failed run, with runs of
    several machines, that was itself recorded, whose arguments or reports name a path, or that takes more than
    `MOST_BYTES`.
    """
    several = isinstance(result, Sweep)
    points, repeats = (result.points, result.runs) if isinstance(result, Sweep) else ([{}], [[result]])
    everything = [run for one in repeats for run in one]
    first = everything[0].provenance
    if not all(run.ok for run in everything):
        raise ValueError(f"{name} has a run that failed; record runs that finished")
    machines = {run.provenance.machine for run in everything}
    if first.kind not in ("measured", "emulated") or len(machines) > 1:
        raise ValueError(
            f"{name} is not measured or emulated on one machine:"
            f" {sorted({f'{r.provenance.kind} on {r.provenance.machine}' for r in everything})}"
        )
    machine = first.machine if first.kind == "measured" else f"emulated {first.machine}"
    raw = {
        "name": name,
        "machine": machine,
        "versions": dict(first.versions) | _frameworks(Path(everything[0].script).read_text(encoding="utf-8")),
        "date": first.date,
        "placement": everything[0].placement,
        "engine": everything[0].engine,
        "script": Path(everything[0].script).name,
        "source": Path(everything[0].script).read_text(encoding="utf-8").splitlines(),
        "kind": "sweep" if several else "run",
        "points": [
            {
                "point": point,
                "args": one[0].args,
                "repeats": [{"wall_s": run.wall_s, "ranks": [_spare(r.records) for r in run.ranks]} for run in one],
            }
            for point, one in zip(points, repeats, strict=True)
        ],
    }
    if named := paths(raw):
        raise ValueError(
            f"{name} names {', '.join(named)}: a recording is for others, so report no path and pass none as an"
            " argument"
        )
    text = _INNERMOST.sub(lambda found: re.sub(r"\n\s*", " ", found[0]), json.dumps(raw, indent=1)) + "\n"
    if len(text.encode()) > MOST_BYTES:
        raise ValueError(
            f"{name} takes {len(text.encode()):,} bytes, and a recording at most {MOST_BYTES:,}: report less, or tag"
            " another variable"
        )
    folder = Path(folder) if folder is not None else recorded.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{_slug(machine)}.json"
    path.write_text(text, encoding="utf-8")
    return path


def faults(path: Path) -> list[str]:
    """What's wrong with a recording, such as one that somebody has sent; empty if nothing is."""
    found = [f"takes more than {MOST_BYTES:,} bytes"] * (path.stat().st_size > MOST_BYTES)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return [*found, f"is no JSON: {error}"]
    if not isinstance(raw, dict):
        return [*found, "is no object"]
    found += [f"has no {key}" for key, kind in _SCHEMA.items() if not (isinstance(raw.get(key), kind) and raw[key])]
    found += [f"has {key}, which nobody reads" for key in raw if key not in _SCHEMA]
    found += [f"names {named}" for named in paths(raw)]
    if any(text.startswith(("has no", "is no")) for text in found):
        return found
    found += ["does not say which torch"] * ("torch" not in raw["versions"])
    found += [f"has the date {raw['date']}"] * (not re.fullmatch(r"20\d\d-[01]\d-[0-3]\d", raw["date"]))
    if path.name != f"{raw['name']}.{_slug(raw['machine'])}.json":
        found.append(f"should be called {raw['name']}.{_slug(raw['machine'])}.json")
    found += ["is neither a run nor a sweep"] * (raw["kind"] not in ("run", "sweep"))
    found += ["is a run of several points"] * (raw["kind"] == "run" and len(raw["points"]) != 1)
    for i, point in enumerate(raw["points"]):
        found += [f"point {i} {wrong}" for wrong in _faults_of_point(point)]
    return found


def _faults_of_point(point: Any) -> list[str]:
    if not isinstance(point, dict) or set(point) != {"point", "args", "repeats"}:
        return ["needs a point, args and repeats, and nothing else"]
    found = ["has a point that isn't a dict of names and values"] * (not _is_record(point["point"]))
    found += ["has args that aren't a list of words"] * (not _all(point["args"], lambda arg: isinstance(arg, str)))
    repeats = point["repeats"]
    if not (_all(repeats, lambda repeat: isinstance(repeat, dict) and set(repeat) == {"wall_s", "ranks"}) and repeats):
        return [*found, "has repeats that aren't a list of wall_s and ranks"]
    for repeat in repeats:
        seconds = repeat["wall_s"]
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 86400:
            found.append(f"took {seconds} s")
        if not (_all(repeat["ranks"], lambda records: _all(records, _is_record)) and repeat["ranks"]):
            found.append("has ranks that aren't lists of records")
    numbers = {len(repeat["ranks"]) for repeat in repeats if isinstance(repeat["ranks"], list)}
    return [*dict.fromkeys(found), *["has repeats of different numbers of ranks"] * (len(numbers) > 1)]


def _all(values: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and all(map(fits, values))


def _is_record(value: Any) -> bool:
    """Whether a dict holds what `report` takes: numbers, strings, booleans, and lists of them."""

    def plain(inside: Any) -> bool:
        return isinstance(inside, _SCALAR) or (isinstance(inside, list) and all(map(plain, inside)))

    return isinstance(value, dict) and all(isinstance(key, str) and plain(inside) for key, inside in value.items())


def paths(raw: Any) -> list[str]:
    """The absolute paths in whatever a recording holds, without repeats, in order; but for those that all have."""
    if isinstance(raw, str):
        return [found[0] for found in _PATH.finditer(raw) if found[0] not in ("/bin/bash", "/dev/null")]
    inside = raw.values() if isinstance(raw, Mapping) else raw if isinstance(raw, list) else ()
    return list(dict.fromkeys(path for value in inside for path in paths(value)))


def _spare(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without their times and without spans, and with numbers of six digits."""
    kept = [record for record in records if not record.keys() >= _SPAN]
    return [{k: _short(v) for k, v in record.items() if k not in _LEFT_OUT} for record in kept]


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _frameworks(source: str) -> dict[str, str]:
    """The versions of the optional frameworks that a program imports."""
    used = [package for package in EXTRAS if re.search(rf"^\s*(import|from) {package}\b", source, re.M)]
    return {package: metadata.version(metadata.packages_distributions()[package][0]) for package in used}


def _slug(machine: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")[:80]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lessons", nargs="*", help="numbers, such as 04; default: all that record something")
    parser.add_argument("--out", type=Path, help="a folder other than data/recorded")
    parser.add_argument(
        "--check", type=Path, nargs="+", metavar="FILE", help="look at recordings instead of making any"
    )
    arguments = parser.parse_args()
    if arguments.check:
        wrong = [f"{path.name} {fault}" for path in arguments.check for fault in faults(path)]
        sys.exit("\n".join(wrong) or None)
    out = arguments.out.resolve() if arguments.out else None
    chosen = lessons(arguments.lessons)
    if len(chosen) == 1:
        record(chosen[0], out)
        sys.exit()
    failed = []
    for lesson in chosen:
        print(f"== {lesson.name}", flush=True)
        command = [sys.executable, __file__, lesson.name[:2], *(["--out", str(out)] if out else [])]
        if subprocess.run(command).returncode:
            failed.append(lesson.name)
    if failed:
        sys.exit(f"not recorded whole: {', '.join(failed)}")
