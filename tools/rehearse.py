"""Run the lessons' programs that have a GPU branch on emulated GPUs, one after the other, and keep what came of it in
tests/rehearsals.md.

    python tools/rehearse.py               all of them
    python tools/rehearse.py 04 05/hooks   those of a lesson, or with names that begin so; the other rows stay

Ends with 1 if one fails, needs more memory than its GPU has, or more modelled time than its cell's timeout.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

rehearsal: Any = importlib.import_module("rehearsal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", help="lessons or programs; all unless said")
    parser.add_argument("--cluster", choices=list(rehearsal.CLUSTERS), action="append", help="only on these")
    parser.add_argument("--timeout", type=float, default=300, help="real seconds for each (300)")
    args = parser.parse_args()
    table = rehearsal.Table()
    failed = 0
    with tempfile.TemporaryDirectory() as home:
        _images(Path(home))
        os.environ["COURSE_HOME"] = home
        for program in rehearsal.programs():
            if args.which and not program.id.startswith(tuple(args.which)):
                continue
            folder = Path(home) / program.lesson
            if not folder.exists():
                folder.mkdir()
                rehearsal.write(program.lesson, folder)
            for cluster in args.cluster or rehearsal.CLUSTERS:
                words, wrong = rehearsal.judged(program, cluster, folder, args.timeout)
                table.set(program, cluster, words)
                failed += bool(wrong)
                print(f"{program.id:<40}{cluster:<8}{wrong or words}", flush=True)
            table.write()
    print(f"{failed} failed" if failed else "all ran")
    sys.exit(bool(failed))


def _images(home: Path) -> None:
    """The images of both sizes, drawn once on a machine and not by the first program, whose time that would be."""
    from course_utils.workloads import PIXELS, image_set
    from course_utils.workloads.image_folders import cache_root

    os.environ.pop("COURSE_HOME", None)
    for size in ("cpu", "gpu"):
        for split in ("train", "test"):
            image_set(split=split, pixels=PIXELS[size])
    (home / "data").mkdir()
    (home / "data" / "cache").symlink_to(cache_root())


if __name__ == "__main__":
    main()
