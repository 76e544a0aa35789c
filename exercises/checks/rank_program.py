"""What runs on each rank of a check: `rank_program.py LESSON TASK ANSWER MARKER GIVEN`.

A task is a function in `LESSON/ranks.py`, or `MODULE.FUNCTION` for another file there. It gets the student's file as a
module. If its first parameter is called `load`, it gets a function that loads the file instead: that's for tasks that
prepare something first, or that compute what is expected and never load it. A second parameter gets what the judge
passed, through JSON.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import resource
import sys
import tempfile
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILE_BYTES = 64 << 20  # the largest file that an answer may write, its log included


def main() -> None:
    lesson, task, answer, marker, given = sys.argv[1:]
    sys.argv[1:] = []
    # The marker can be read from a pipe only once, and we read it after the student's code has returned.
    read_end, write_end = os.pipe()
    os.write(write_end, marker.encode())
    os.close(write_end)
    del marker
    sys.path.remove(str(HERE))
    spec = importlib.util.spec_from_file_location(
        "exercise_checks", HERE / "__init__.py", submodule_search_locations=[str(HERE)]
    )
    assert spec and spec.loader
    package = importlib.util.module_from_spec(spec)
    sys.modules["exercise_checks"] = package
    spec.loader.exec_module(package)
    from exercise_checks import rank_side  # type: ignore[import-not-found]

    file, _, function = task.rpartition(".")
    run = getattr(importlib.import_module(f"exercise_checks.{lesson}.{file or 'ranks'}"), function)
    # removed with the launch, and with it what an answer leaves there or in its working folder
    os.environ["TMPDIR"] = tempfile.tempdir = os.environ["COURSE_LAUNCH_TMP"]
    os.chdir(tempfile.mkdtemp())
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    load = partial(rank_side.load, answer)
    parameters = list(inspect.signature(run).parameters)
    run(load if parameters[0] == "load" else load(), *([json.loads(given)] if len(parameters) > 1 else []))
    rank_side.finish(os.read(read_end, 100).decode())


if __name__ == "__main__":
    main()
