"""Where the files of lesson 12 lie."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
PROGRAMS, TAKE_HOME = HERE / "programs", HERE / "take_home"

PLAIN = PROGRAMS / "12_plain.py"
SIXTEEN = PROGRAMS / "12_sixteen.py"
EMPTY = PROGRAMS / "12_empty.py"
FILES = [
    TAKE_HOME / name for name in ("12_lightning.py", "12_lightning.sbatch", "12_tf_worker.py", "12_tf_worker.sbatch")
]
