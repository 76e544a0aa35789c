"""Run the lessons, and the tests of what a launch passes through, with the oldest versions that pyproject.toml allows,
as Kaggle and Colab have them. `old_versions.py 04 05` runs only these two lessons.

The environment is made in `build/old`, once for each pyproject.toml. COURSE_PYTHON=/path/to/python chooses its
interpreter, TORCH=cpu its build of PyTorch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import bootstrap  # noqa: E402

FOLDER = ROOT / "build" / "old"
PYTHON = FOLDER / "bin" / "python"
TOOLS = ("nbclient", "nbformat", "nbval", "psutil", "pytest", "pytest-timeout", "pytest-xdist", "pyyaml")
CHAIN = ("magic", "launch_*", "stream", "live", "lesson_modules", "progress", "run", "rank", "emulated_launch")
NAMED = ("torch", "IPython", "ipykernel", "ipywidgets")


def make() -> None:
    """Install the lowest versions that have wheels for this Python."""
    project = ROOT / "pyproject.toml"
    stamp = FOLDER / "pyproject.toml"
    if stamp.exists() and stamp.read_text() == project.read_text():
        return
    uv = bootstrap.find_uv() or bootstrap.install_uv()
    shutil.rmtree(FOLDER, ignore_errors=True)
    run = [uv, "pip", "install", "--quiet", "--python", str(PYTHON)]
    lowest = ["--resolution", "lowest-direct", "--only-binary", ":all:", "-r", str(project)]
    if torch := os.environ.get("TORCH"):
        lowest.append(f"--torch-backend={torch}")
    subprocess.run([uv, "venv", "--quiet", "--python", bootstrap.choose_python(uv), str(FOLDER)], check=True)
    subprocess.run([*run, *lowest], check=True)
    subprocess.run([*run, *TOOLS], check=True)
    shutil.copyfile(project, stamp)


def passes(name: str, *arguments: str) -> bool:
    """Run pytest there; its output is shown only if a test fails."""
    command = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # or that ipykernel's debugger warns at each start of a kernel
    if name.endswith(".ipynb"):
        env["COURSE_NOTEBOOK"] = name  # a run by a tool is nobody's progress
    answer = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    print(answer.stdout if answer.returncode else f"{name}: {answer.stdout.strip().splitlines()[-1]}", flush=True)
    return answer.returncode == 0


def main() -> int:
    make()
    shown = "; ".join(f"print({name!r}, __import__('importlib.metadata').metadata.version({name!r}))" for name in NAMED)
    subprocess.run([str(PYTHON), "-c", shown], check=True)
    notebook = ("--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=180", "-o", "addopts=", "-o", "timeout=900")
    failed = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if (not sys.argv[1:] or path.name[:2] in sys.argv[1:]) and not passes(path.name, str(path), *notebook):
            failed.append(path.name)
    if not sys.argv[1:]:
        tests = sorted({str(path) for name in CHAIN for path in (ROOT / "tests").glob(f"test_{name}.py")})
        if not passes("the tests of what a launch passes through", *tests):
            failed.append("tests of what a launch passes through")
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
