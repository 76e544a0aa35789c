"""The programs of the lessons that have a GPU branch, and what they're rehearsed with on emulated clusters.

A rehearsal proves that the branch runs at GPU size, and fits; not that it's fast or right.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from conftest import ROOT

from course_utils.cells.magic_line import ranks_options, words_of
from course_utils.launching.launcher import RankError, launch
from course_utils.results.run import Run

GB = 10**9
CLUSTERS = {"2xT4": 14e9, "2xH100": 80e9, "8xH100": 80e9}  # the most bytes that a rank may use
# What an emulated cluster refuses, why, and the second way: what a program's first line sets in its place.
INSTEAD = {
    "torch.jit": (
        "TorchScript's interpreter passes by what the emulation sees",
        "import stand_ins; stand_ins.no_torchscript()",
        "its functions stay Python's",
    )
}
TENSORFLOW = "TensorFlow sees no emulated GPUs: `make test-all` runs it on the CPU, and nothing runs its GPU branch"
# Arguments where the notebook computes them, and for scripts that only a later cell launches; by lesson and file.
ARGS: dict[str, list[list[str]]] = {
    "00/00_job": [[], ["--share-test"]],
    "00/00_pieces": [["--batch-size", "64"]],
    "01/compiled": [["aot_eager"]],
    "01/one_line": [["aot_eager"]],
    "01/race": [["aot_eager", "200"]],
    "02/copies": [[]],
    "02/overlap": [[]],
    "02/train": [["0"], ["1"]],
    "03/03_both_ways": [["ddp"], ["dp"]],
    "04/04_inference": [[]],
    "04/04_scaling": [["--batch-size", "32"]],
    "05/05_buckets": [["--bucket-mb", "25", "--parts"]],
    "06/06_here": [["1", "8"]],
    "06/06_schedules": [["--micro-batches", "16"]],
    "06/06_twin": [[]],
    "09/09_here": [[]],
    "09/09_left_out": [[]],
    "10/10_counted": [
        ["DDP", "ZeRO-1", "FSDP, weights kept", "FSDP"],
        ["FSDP", "FSDP, gathers of 16 bits", "FSDP, all of 16 bits"],
    ],
    "11/11_link": [["--sums", "--alone", "32", "--together", "32"]],
    "12/12_plain": [[]],
    "12/12_sixteen": [["--by", by, "--parts", "4", "--precision", "bf16-mixed"] for by in ("DDP", "Lightning")],
    "12/12_empty": [["--by", by] for by in ("DDP", "Fabric", "Accelerate", "Lightning")],
    "05/hooks": [["none"], ["fp16"], ["bf16"], ["powersgd"]],
    "08/08_counting": [["--ways", "float32", "bf16 model", "fp16", "--powers", "-7", "16"]],
    "08/08_here": [[]],
    # 8 sequences under DDP leave a T4 no room
    "08/08_steps": [["--ways", "fp32", "TF32", "bf16", "fp16", "--batch", "6", "1024"]],
}
# Files that programs of a lesson import, as its module puts them next to the cells'.
HELPERS = {"12": ("quiet", "keras_task")}
# Programs that read what an earlier one saved.
AFTER = {"04/evaluate": "ddp.py", "04/04_inference": "ddp.py"}
# More for the first line of a program, and why.
LINES = {
    "01/won": (
        "import bench; bench.compare.__kwdefaults__.update(block_s=1e-6); ",
        "Python alone takes no modelled time, so a block of 4 ms would repeat it forever",
    )
}
# Races that a program really has, and whose they are.
_OF_FABRIC = (
    "a race of Lightning's: `DDPStrategy.setup_module` makes DDP on a stream of its own, where DDP copies rank 0's"
    " weights to all, and nothing has the first forward pass wait for that stream"
)
RACES = {"12/fabric_loop": _OF_FABRIC, "12/12_empty --by Fabric": _OF_FABRIC}


@dataclass(frozen=True)
class Program:
    """A program as its cell launches it. `gpus` are those of each rank. `reason` says why an emulated cluster refuses
    it, and `prelude` what then comes into its first line so that it can run all the same."""

    lesson: str
    name: str  # of its file, or else of the variable that its run goes to
    file: str
    ranks: int | str
    gpus: int | str = 1
    timeout: float = 120
    args: tuple[str, ...] = ()
    needs: str = ""
    reason: str = ""
    prelude: str = ""

    @property
    def id(self) -> str:
        return " ".join([f"{self.lesson}/{self.name}", *self.args])

    def ranks_on(self, gpus: int) -> int:
        """How many ranks it has on so many GPUs, 0 if they don't suffice."""
        per_rank = gpus if self.gpus == "all" else int(self.gpus)
        ranks = max(1, gpus // per_rank) if self.ranks == "auto" else int(self.ranks)
        return ranks if ranks * per_rank <= gpus else 0


@functools.cache
def programs() -> tuple[Program, ...]:
    """All programs on ranks that could run on a GPU, in the order of the lessons; then those that no cell shows."""
    shown = (p for path in sorted((ROOT / "notebooks").glob("*.ipynb")) for p in _of(path))
    return (*shown, *(p for path in sorted((ROOT / "notebooks" / "programs").glob("*.py")) for p in _behind(path)))


def _behind(path: Path) -> Iterator[Program]:
    """A program that the module of a lesson launches: with the arguments of the table, or not at all."""
    lesson, source = path.name[:2], path.read_text()
    reason, prelude = _instead(source)
    for args in ARGS.get(f"{lesson}/{path.stem}", []):
        ranks = "auto" if "init_process_group" in source else 1
        yield Program(lesson, path.stem, path.name, ranks, args=tuple(args), reason=reason, prelude=prelude)


def _instead(source: str) -> tuple[str, str]:
    """Why an emulated cluster refuses a program, and what its first line then sets in the place of that; or nothing."""
    found = "", ""
    for word, (why, line, how) in INSTEAD.items():
        if re.search(word, source):
            found = f"{why}; run so that {how}", line
    return found


def _of(notebook: Path) -> Iterator[Program]:
    lesson = notebook.name[:2]
    for options, words, file, source in _cells(notebook):
        name = Path(file).stem
        given = ARGS.get(f"{lesson}/{name}")
        own = options.device in ("cpu", "shared") or options.cluster
        if own or options.expect_error or options.engine == "torchrun":
            continue
        if options.no_launch and given is None:
            continue
        reason, prelude = _instead(source)
        if options.needs == "tensorflow":
            reason = TENSORFLOW
        line, why = LINES.get(f"{lesson}/{name}", ("", ""))
        prelude, reason = line + prelude, "; ".join(filter(None, (reason, why)))
        for args in given or [words]:
            yield Program(
                lesson, name, file, options.ranks, options.gpus_per_rank, options.timeout or 120, tuple(args),
                options.needs or "", reason, prelude,
            )  # fmt: skip


def _cells(notebook: Path) -> Iterator[tuple[Any, list[str], str, str]]:
    """The cells for ranks: options, arguments, the name of the program's file, and the program."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.source.startswith("%%ranks"):
            line, _, source = cell.source.partition("\n")
            words = words_of(line.removeprefix("%%ranks").replace("{on}", "auto"))
            at = words.index("--") if "--" in words else len(words)
            options = ranks_options(words[:at])
            file = f"{options.output}.py" if options.file == "cell.py" else options.file
            yield options, words[at + 1 :], file, source


def write(lesson: str, folder: Path) -> None:
    """The files of a lesson's programs, next to each other as in its runs folder."""
    (notebook,) = (ROOT / "notebooks").glob(f"{lesson}_*.ipynb")
    for _, _, file, source in _cells(notebook):
        (folder / file).write_text("\n" + source)
    for path in (ROOT / "notebooks" / "programs").glob(f"{lesson}_*.py"):
        (folder / path.name).write_text("\n" + path.read_text())  # as a cell's file: its first line may get a prelude
    for helper in HELPERS.get(lesson, ()):
        shutil.copy(ROOT / "notebooks" / "programs" / f"{lesson}_{helper}.py", folder / f"{helper}.py")
    shutil.copy(Path(__file__).parent / "stand_ins.py", folder)


@dataclass
class Rehearsal:
    """What came of one: the most memory that a rank used, in bytes, its modelled seconds, and how long that took."""

    run: Run | None
    peak: int = 0
    seconds: float = 0.0
    said: str = ""
    error: str = ""
    wall_s: float = 0.0


def rehearse(program: Program, cluster: str, folder: Path, timeout: float = 200) -> Rehearsal:
    """Run a program on an emulated cluster."""
    ranks = program.ranks_on(int(cluster.partition("x")[0]))
    earlier = AFTER.get(f"{program.lesson}/{program.name}")
    file = folder / program.file
    if program.prelude:
        file = folder / f"with_stand_ins_{program.file}"
        file.write_text(program.prelude + (folder / program.file).read_text())
    settings = {"cluster": cluster, "quiet": True, "timeout": timeout, "env": {"MPLBACKEND": "agg"}}
    began = time.monotonic()
    try:
        if earlier:
            launch(folder / earlier, ranks, **settings)
        run = launch(file, ranks, program.args, gpus_per_rank=program.gpus, **settings)
    except RankError as error:
        return Rehearsal(error.run, error=str(error), wall_s=time.monotonic() - began)
    found = [json.loads(path.read_text()) for path in sorted(Path(run.path).glob("rank*.emulated.json"))]
    logs = "".join(path.read_text(errors="replace") for path in sorted(Path(run.path).glob("rank*.log")))
    said = "\n".join(sorted({line for line in logs.splitlines() if line.startswith("emulated:")}))
    return Rehearsal(
        run, max(f["peak_bytes"] for f in found), max(f["host_s"] for f in found), said,
        wall_s=time.monotonic() - began,
    )  # fmt: skip


def judged(program: Program, cluster: str, folder: Path, timeout: float) -> tuple[str, str]:
    """Rehearse a program, unless that's left out. Returns a cell of the table, and what's wrong, if anything is."""
    if why := left_out(program, cluster):
        return why, ""
    found = rehearse(program, cluster, folder, timeout)
    limit = CLUSTERS[cluster]
    wrong = ""
    if found.error:
        wrong = found.error
    elif found.peak > limit:
        wrong = f"{found.peak / GB:.1f} GB, and a rank may use {limit / GB:.0f} GB"
    elif found.seconds > program.timeout:
        wrong = f"{found.seconds:.0f} modelled seconds, and its timeout is {program.timeout:.0f}"
    elif "a race" in found.said and program.id not in RACES:
        wrong = found.said
    elif "a race" not in found.said and program.id in RACES:
        wrong = "no race any more: take it out of RACES"
    if "did not end within its timeout" in wrong:
        return f"not ended in {timeout:.0f} s here", wrong
    if wrong:
        return f"**fails**: {wrong.splitlines()[0]}", wrong
    return f"{found.peak / GB:.2f} GB, {found.seconds:.2f} s ({found.wall_s:.0f} s)", ""


def left_out(program: Program, cluster: str) -> str:
    """Why a program isn't rehearsed on a cluster; empty if it is."""
    gpus = int(cluster.partition("x")[0])
    if program.needs == "tensorflow":
        return "no"
    if not program.ranks_on(gpus):
        return "too few GPUs"
    if program.ranks == 1 and program.gpus != "all" and gpus > 2:
        return "as on 2xH100"  # one rank on 8 GPUs is one rank on 2
    return ""


class Table:
    """The table of all rehearsals, in a Markdown file. What isn't run again stays as it was."""

    FILE = Path(__file__).parent / "rehearsals.md"

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], str] = {}
        for line in self.FILE.read_text().splitlines() if self.FILE.exists() else ():
            parts = [part.strip() for part in line.strip("|").split("|")]
            if "/" in parts[0] and len(parts) > len(CLUSTERS):
                self.cells.update({(parts[0], c): part for c, part in zip(CLUSTERS, parts[1:], strict=False)})

    def set(self, program: Program, cluster: str, words: str) -> None:
        self.cells[program.id, cluster] = words.replace("|", "/")

    def write(self) -> None:
        """Put the rows of today's programs into the file."""
        lines = [HEAD, f"| program | {' | '.join(CLUSTERS)} | |", "|---" * (len(CLUSTERS) + 2) + "|"]
        for program in programs():
            found = [self.cells.get((program.id, cluster), "not yet") for cluster in CLUSTERS]
            why = "; ".join(filter(None, [program.reason, RACES.get(program.id)]))
            lines.append(f"| {program.id} | {' | '.join(found)} | {why} |")
        self.FILE.write_text("\n".join(lines) + "\n")


HEAD = """# Rehearsals

Every program on ranks in the lessons that has a GPU branch, at GPU size, on emulated GPUs: the most memory that a rank
took, modelled seconds, and in brackets how long that took here. `make rehearse` writes this file (`ONLY="04 05/hooks"`
for a few programs). A program fails if it ends with an error or a race of its own, takes more than 14 GB on a T4 or
80 GB on an H100, or more modelled seconds than its cell's timeout.

Where an emulated cluster refuses what a program is about, the last column says why, and how the rest of it was run.
The exercises' checks run every answer on the CPU, so answers and solutions have no GPU branch.
"""
