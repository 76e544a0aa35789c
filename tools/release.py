"""The course as students get it: everything but the solutions, and the tests that hold them.

    python tools/release.py OUT

What git tracks is copied, so nothing of yours goes along. The judges of the exercises do, since they give the feedback;
each knows how to recognise an answer, and none has one.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT_BACK = ("solutions", "tests", ".ci", ".github")
NOTE = "Your instructor has the solutions.\n"


def release(out: Path) -> int:
    """Copy the course to a new folder; returns how many files. Raises FileExistsError for a folder that isn't empty,
    RuntimeError outside of a git checkout."""
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} has something in it: name a new folder")
    told = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if told.returncode:
        raise RuntimeError(f"{ROOT} is no git checkout, so nobody knows what belongs to the course")
    files = [name for name in told.stdout.split("\0") if name and name.split("/")[0] not in KEPT_BACK]
    for name in files:
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    (out / "solutions").mkdir()
    (out / "solutions" / "README.md").write_text(NOTE)
    return len(files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    try:
        count = release(out)
    except (OSError, RuntimeError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    print(f"{count} files in {out}, without {', '.join(KEPT_BACK[:2])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
