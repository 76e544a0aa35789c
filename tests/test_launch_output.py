# ruff: noqa: F811 - fixtures are imported by their names
"""What ranks print appears under the cell: whole lines, in order, not too many, and nothing has to wait for it."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from kernels import Cell, Kernel, close_shared_kernel, kernel, limit  # noqa: F401
from test_launch_table import ALL_ENGINES, ENGINES, ranks

MESSAGES_A_SECOND = 20


def lines_of(text: str, rank: int) -> list[str]:
    prefix = f"rank {rank} | "
    return [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]


def check_rate(cell: Cell) -> None:
    """By the whole time of the cell, since messages may arrive late here, in a burst; one at the beginning and one at
    the end are allowed for."""
    most = MESSAGES_A_SECOND * (1 + 1.25 * cell.seconds)
    assert len(cell.streams) <= most, f"{len(cell.streams)} messages in {cell.seconds:.1f} s"


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_a_megabyte_from_each_rank(kernel: Kernel, engine: str) -> None:
    script = "for i in range(12_000):\n    print(f'{i:06d}', 'abcdefghij' * 8)\nprint('last')\n"
    got = kernel.run(ranks(engine, script, "--timeout 60"))
    assert got.error is None, got.error
    assert len(got.text.encode()) < 40_000, "a screen or two"
    for rank in (0, 1):
        lines = lines_of(got.text, rank)
        assert all(re.fullmatch(r"\d{6} (abcdefghij){8}", line) for line in lines[:-1]), "torn lines"
        numbers = [int(line[:6]) for line in lines[:-1]]
        assert numbers == sorted(numbers) and numbers[0] == 0 and numbers[-1] == 11_999 and lines[-1] == "last"
    said = re.search(r"of rank 1 left out: run.log\(1\), or (\S+)/rank1\.log", got.text)
    assert said and said[1] == kernel.ask("run.path")
    for rank in (0, 1):
        log = (Path(said[1]) / f"rank{rank}.log").read_text().splitlines()
        assert len(log) == 12_001 and log[-1] == "last"
    check_rate(got)


@pytest.mark.parametrize("engine", ENGINES)
def test_many_lines_over_time(kernel: Kernel, engine: str) -> None:
    """They appear while the ranks run, in few messages: these end only when somebody has seen the first lines."""
    script = """import os, time
for i in range(300):
    print("line", i)
    time.sleep(0.01)
while not os.path.exists("seen"):
    time.sleep(0.01)
"""
    kernel.start(ranks(engine, script))
    for rank in (0, 1):
        kernel.wait_for(f"rank {rank} | line 10\n")
    (kernel.work / "seen").touch()
    got = kernel.finish()
    (kernel.work / "seen").unlink()
    assert got.error is None
    for rank in (0, 1):
        assert lines_of(got.text, rank)[-1] == "line 299"
        assert kernel.ask(f"run.log({rank})").splitlines() == [f"line {i}" for i in range(300)]
    check_rate(got)


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_python_c_and_stderr_keep_their_order(kernel: Kernel, engine: str) -> None:
    script = """import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
for i in range(200):
    print("python", i)
    libc.printf(b"printf %d\\n", i)
    libc.puts(b"puts")
    print("stderr", i, file=sys.stderr)
    sys.stdout.write("two "); sys.stdout.write("pieces\\n")
    if i % 50 == 0:
        subprocess.run(["echo", "child"])
os.write(1, b"by number\\n")
"""
    got = kernel.run(ranks(engine, script))
    assert got.error is None, got.error
    expected = []
    for i in range(200):
        expected += [f"python {i}", f"printf {i}", "puts", f"stderr {i}", "two pieces"] + ["child"] * (i % 50 == 0)
    for rank in (0, 1):
        assert kernel.ask(f"run.log({rank})").splitlines() == [*expected, "by number"]


def test_output_without_newlines(kernel: Kernel) -> None:
    """A long piece without a newline is shown in parts, a short one when the rank ends. Of a line that is overwritten,
    the last state is shown."""
    got = kernel.run(ranks("local", "for i in range(1000):\n    print('y' * 100, end='')\n", n=1))
    assert got.error is None and re.fullmatch("y+ \\.\\.\\.(\\.\\.\\. y+)?", "".join(lines_of(got.text, 0)))
    got = kernel.run(ranks("local", "for i in range(100):\n    print(f'\\r{i} of 100', end='')\n", n=1))
    assert lines_of(got.text, 0) == ["99 of 100"]
    got = kernel.run(ranks("local", "print('first', end='')\nprint('\\nsecond', end='')\n", n=1))
    assert lines_of(got.text, 0) == ["first", "second"]


def test_letters_beyond_ascii_and_bytes_that_are_no_text(kernel: Kernel) -> None:
    script = (
        "import os\nprint('größer → 速い')\nos.write(1, b'\\xff\\xfe raw\\n')\nprint('\\ud800 half')\n"
        "print('x' * 400 + 'é' * 400)\n"
    )
    got = kernel.run(ranks("local", script, n=1))
    assert got.error is None, got.error
    assert lines_of(got.text, 0)[0] == "größer → 速い"
    assert lines_of(got.text, 0)[1].endswith(" raw") and "half" in lines_of(got.text, 0)[2]
    assert got.text.count("é") == 400


def test_a_flood_is_stopped(kernel: Kernel) -> None:
    """A rank that prints forever must not fill the disk."""
    code = (
        "from pathlib import Path\n"
        "Path('flood.py').write_text('import os\\nwhile True: os.write(1, b\"0123456789abcde\\\\n\" * 65536)')\n"
        "try:\n    launch('flood.py', 1)\nexcept RankError as error:\n    run = error.run; print(error)"
    )
    got = kernel.run(code)
    assert got.error is None and "printed more than 512 MB" in got.text
    assert len(got.text) < 250_000
    assert kernel.ask("Path(run.ranks[0].log).stat().st_size") == 512 << 20, "whatever was written until it had ended"
    kernel.run("Path(run.ranks[0].log).unlink()")


def test_quiet_shows_nothing_and_keeps_all(kernel: Kernel) -> None:
    got = kernel.run(ranks("local", "from course_utils.rank import report\nprint('hidden')\nreport(x=1)", "--quiet"))
    assert got.text == "" and kernel.ask("run.values('x')") == [1, 1] and "hidden" in kernel.ask("run.log(1)")


def test_one_display_for_all_ranks(kernel: Kernel) -> None:
    """Updated in place, with text that also shows on a page without JavaScript."""
    script = """import os, time
from course_utils.rank import report
for i in range(31):
    report(progress=(i, 30), loss=1 / (i + 1))
    time.sleep(0.1 if os.environ["RANK"] == "0" else 0.01)
"""
    got = kernel.run(ranks("local", script))
    assert got.error is None
    kinds = [kind for kind, _ in got.displays]
    assert kinds[0] == "display_data" and set(kinds[1:]) == {"update_display_data"}
    assert len(kinds) <= 5 * got.seconds + 5, "updated too often"
    assert got.displays[-1][1].startswith("✓ 2 ranks, ")
    done = [int(re.search(r" (\d+)%", text)[1]) for _, text in got.displays[:-1]]  # type: ignore[index]
    assert done == sorted(done) and any(10 < d < 90 for d in done)
    assert len(kernel.ask("run.values('loss')")) == 62


def test_the_first_line_says_on_what_ranks_run(kernel: Kernel) -> None:
    """What more GPUs would change is said once in a notebook, and kept with each run."""
    kernel.run("from course_utils.launching.under_the_cell import watch\nwatch._advice_given = {''}")
    for first_time in (True, False):
        got = kernel.run(ranks("local", "print('x')"))
        first, whole = got.text.splitlines()[0], kernel.ask("run.placement")
        assert first == (
            whole if first_time else whole.partition(". ")[0].removesuffix(".") + "."
        ) and first.startswith("2 ranks on")
        assert got.streams[0][0] <= got.streams[-1][0] and all(a[0] <= b[0] for a, b in pairwise(got.streams))


def test_an_error_keeps_what_was_printed_before(kernel: Kernel) -> None:
    got = kernel.run(ranks("local", "print('before')\nraise LookupError('after')", n=1))
    assert lines_of(got.text, 0)[0] == "before"
    assert got.error and "LookupError: after" in got.error[1]
    log = kernel.ask("run.log(0)")
    assert log.startswith("before\nTraceback") and log.endswith("LookupError: after\n")
    assert time.time() - got.ended < 60


# --- a sweep that stops early -----------------------------------------------------------------------------------------


SWEPT = """import sys, time
from course_utils.rank import report
n = int(sys.argv[2])
report(n=n, inverse=1 / n)
if n == 3:
    open("reached", "w").close()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("last", "error"), [(0, "RankError"), (3, "KeyboardInterrupt")], ids=["fails", "is interrupted"]
)
def test_a_sweep_that_stops_early_says_where_its_runs_are(kernel: Kernel, last: int, error: str) -> None:
    (kernel.work / "swept.py").write_text(SWEPT)
    kernel.start(f"import sys\nfound = sweep('swept.py', over={{'n': [1, 2, {last}]}}, repeats=2, ranks=1)")
    if last:
        until = time.monotonic() + 60
        while not (kernel.work / "reached").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        kernel.interrupt()
    got = kernel.finish()
    assert got.error and got.error[0] == error, got.error
    assert "The sweep stopped after 2 of 6 launches." in got.text
    assert kernel.ask("sys.last_value.sweep.samples('n', n=2).values") == (2.0,)
    assert kernel.ask("[len(runs) for runs in sys.last_value.sweep.runs]") == [1, 1, 0]
