"""Each private part of Python that ranks depend on, in the Python that runs this: what it does, and what happens
without it."""

from __future__ import annotations

import ast
import gzip
import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import ROOT

ON_RANK = ROOT / "course_utils" / "launching" / "on_rank"
# Names of Python's own modules that begin with one underscore, used from outside.
PRIVATE = re.compile(
    r"\b(threading|atexit|weakref\.finalize|multiprocessing\.[a-z]+|tempfile|subprocess|socket)\._[a-z]"
)


def said(code: str, *args: str) -> str:
    """What a new Python prints when it runs `code` and finds `cpython` as a cold rank does: in its folder."""
    answer = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ON_RANK)!r})\n{textwrap.dedent(code)}", *args],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_what_is_private_is_used_in_one_place() -> None:
    for path in sorted((ROOT / "course_utils").rglob("*.py")):
        source = path.read_text()
        imported = {
            name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        }
        # `_random`, `_posixshmem`: parts of Python under names of their own
        private = sorted(name for name in imported if name in sys.stdlib_module_names and name.startswith("_"))
        found = [] if path == ON_RANK / "cpython.py" else [*private, *PRIVATE.findall(source)]
        assert not [name for name in found if name != "__future__"], f"{path} uses private parts of Python: {found}"


def test_the_end_waits_for_threads_and_then_calls_exit_functions() -> None:
    text = said("""
        import atexit, concurrent.futures, threading, time
        import cpython
        def late(words, s):
            time.sleep(s)
            print(words)
        atexit.register(print, "first registered")
        atexit.register(print, "last registered")
        threading.Thread(target=late, args=["a thread", 0.1]).start()
        threading.Thread(target=time.sleep, args=[600], daemon=True).start()
        pool = concurrent.futures.ThreadPoolExecutor(1)
        pool.submit(late, "a task of an executor", 0.4)
        for step in cpython.steps_of_the_end():
            step()
        print("the end", flush=True)
        __import__("os")._exit(0)
    """)
    assert text.splitlines() == ["a thread", "a task of an executor", "last registered", "first registered", "the end"]


def test_the_end_calls_what_a_library_has_put_in_its_place() -> None:
    text = said("""
        import threading
        import cpython
        threading._shutdown = lambda: print("a library's")
        cpython.steps_of_the_end()[0]()
    """)
    assert text == "a library's\n" * 2, "called by us, and by Python at its own end"


def test_exit_functions_of_libraries_are_forgotten_and_later_ones_are_called() -> None:
    text = said("""
        import atexit, logging, multiprocessing.util, weakref
        import cpython
        class Thing: pass
        old, new = Thing(), Thing()
        atexit.register(print, "of a library, by atexit")
        weakref.finalize(old, print, "of a library, by weakref")
        cpython.forget_exit_functions()
        atexit.register(print, "of the script, by atexit")
        weakref.finalize(new, print, "of the script, by weakref")
        class Shows(logging.Handler):
            def flush(self): print("logging is flushed")
        multiprocessing.util.Finalize(None, print, args=["a queue is written"], exitpriority=1)
        handler = Shows()
    """)
    assert set(text.splitlines()) == {
        "of the script, by atexit",
        "of the script, by weakref",
        "logging is flushed",
        "a queue is written",
    }


SPAWNS = """
import multiprocessing, sys
import cpython
GONE = {gone!r}
if GONE == "configuration":
    del multiprocessing.process.current_process()._config
if GONE == "shared memory":
    sys.modules["_posixshmem"] = None
cpython.name_semaphores("/course-made-up")
cpython.note_shared_memory(sys.argv[1])
{then}
"""
MAKES = """
from multiprocessing.shared_memory import SharedMemory
block = SharedMemory(create=True, size=10)
again = SharedMemory(block.name)
print(block._name)
again.close(); block.close(); block.unlink()
"""


def spawns(notes: str | Path, then: str, gone: str = "") -> str:
    """What a process prints that has named its semaphores and records its shared memory in the file `notes`."""
    return said(SPAWNS.format(gone=gone, then=then), str(notes))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is named or noted")
def test_semaphores_are_named_here_and_in_children() -> None:
    assert spawns(os.devnull, "print(multiprocessing.get_context('spawn').Lock()._semlock.name)").startswith(
        "/course-made-up-"
    )
    child = "print(multiprocessing.Process(target=print)._config['semprefix'])"
    assert spawns(os.devnull, child) == "/course-made-up\n"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is named or noted")
def test_shared_memory_is_noted_here_and_in_what_is_spawned(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    name = spawns(notes, MAKES).strip()
    (line,) = notes.read_text().splitlines()
    assert re.fullmatch(rf"{name}\t\d+ \d+", line), "made once, and opened once more"
    # A spawned process unpickles the configuration of the one that started it.
    held = "multiprocessing.process.current_process()._config['course_shared_memory']"
    config = spawns(notes, f"import pickle; print(pickle.dumps({held}).hex())").strip()
    name = said(f"import pickle; pickle.loads(bytes.fromhex({config!r}))\n{MAKES}").strip()
    assert [line.partition("\t")[0] for line in notes.read_text().splitlines()][1:] == [name]


@pytest.mark.parametrize("gone", ["configuration", "shared memory"])
def test_a_python_without_them_runs_all_the_same(gone: str, tmp_path: Path) -> None:
    assert spawns(tmp_path / "notes", "print('runs')", gone) == "runs\n"


def test_what_is_like_a_file_is_seen_without_asking_it(tmp_path: Path) -> None:
    from course_utils.launching.on_rank import cpython

    class Own(io.RawIOBase):
        """What a library written in Python may do."""

    with gzip.open(tmp_path / "x.gz", "wt") as text, open(tmp_path / "y", "wb") as file:
        for found in (text, text.buffer, file, io.BytesIO(), io.StringIO(), Own()):
            assert issubclass(type(found), cpython.File), found
        assert issubclass(type(file.raw), cpython.RawFile) and issubclass(Own, cpython.RawFile)
        assert not issubclass(type(file), cpython.RawFile)

    class Answers:
        @property
        def __class__(self) -> type:  # as a lazily imported module does, which would be imported
            raise AssertionError("it was asked")

    assert not issubclass(type(Answers()), cpython.File)
