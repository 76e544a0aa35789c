"""What the cell shows of the files that ranks write, tested without ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_utils.launching.under_the_cell import stream
from course_utils.launching.under_the_cell.live import INTERVAL_S, RankState
from course_utils.launching.under_the_cell.stream import (
    HEAD_LINES,
    LINE_INTERVAL_S,
    LINE_LETTERS,
    TAIL_LINES,
    OutputStream,
)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts written to the cell, one per message."""
    texts: list[str] = []
    out = SimpleNamespace(write=texts.append, flush=lambda: None)
    monkeypatch.setattr(stream, "sys", SimpleNamespace(stdout=out))
    return texts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(stream.time, "monotonic", lambda: now[0])
    return now


def append(folder: Path, rank: int, data: bytes, kind: str = "log") -> None:
    with open(folder / f"rank{rank}.{kind}", "ab") as file:
        file.write(data)


def test_only_whole_lines_are_shown(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    cell = OutputStream(tmp_path, 2)
    cell.pump()  # no file yet
    append(tmp_path, 0, b"one\ntw")
    append(tmp_path, 1, "grö".encode()[:-1])
    for more in ((0, b"o\nthree"), (1, "ö".encode()[1:] + b"sser\n")):
        clock[0] += 1
        cell.pump()
        append(tmp_path, *more)
    clock[0] += 1
    cell.pump()
    assert "".join(shown) == "rank 0 | one\nrank 0 | two\nrank 1 | grösser\n"
    cell.pump(last=True)
    assert shown[-1] == "rank 0 | three\n"


def test_messages_are_spaced(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    cell = OutputStream(tmp_path, 1)
    for i in range(HEAD_LINES):
        append(tmp_path, 0, b"line %d\n" % i)
        clock[0] += 0.001
        cell.pump()
    assert len(shown) <= 0.001 * HEAD_LINES / LINE_INTERVAL_S + 1 and 1 / LINE_INTERVAL_S + 1 / INTERVAL_S <= 20
    cell.pump(last=True)
    assert "".join(shown) == "".join(f"rank 0 | line {i}\n" for i in range(HEAD_LINES))


@pytest.mark.parametrize("ranks", [2, 64, 1000])
def test_a_shared_file_system_is_asked_seldom(
    tmp_path: Path, shown: list[str], clock: list[float], monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """Ten seconds of a launch, which looks every 50 ms. It opens at most 100 files a second, and every rank has its
    turn."""
    opened: list[Path] = []
    real = open
    monkeypatch.setattr(stream, "open", lambda path, mode: opened.append(path) or real(path, mode), raising=False)
    for rank in range(ranks):
        append(tmp_path, rank, b"hello\n")
    cell = OutputStream(tmp_path, ranks)
    for _ in range(200):
        clock[0] += 0.05
        cell.pump()
    assert len(opened) <= min(10 * 100 + 100, ranks * 2 * 200)
    assert set(opened) >= {
        tmp_path / f"rank{rank}.{kind}" for rank in range(min(ranks, 500)) for kind in ("log", "jsonl")
    }
    if ranks == 2:
        assert opened.count(tmp_path / "rank1.jsonl") == 200, "few ranks are looked at every time"
    append(tmp_path, ranks - 1, b"bye\n")
    cell.pump(last=True)
    assert "".join(shown).count("hello") == ranks and f"rank {ranks - 1} | bye\n" in "".join(shown), (
        "nothing is left out at the end"
    )


def test_a_file_that_begins_again_is_read_from_its_beginning(
    tmp_path: Path, shown: list[str], clock: list[float]
) -> None:
    cell = OutputStream(tmp_path, 1)
    for text in (b"the first attempt\nhalf a li", b"again\n"):
        (tmp_path / "rank0.log").write_bytes(text)
        clock[0] += 1
        cell.pump()
    append(tmp_path, 0, b"and on\n")  # as a job that was queued again appends
    cell.pump(last=True)
    assert "".join(shown) == "rank 0 | the first attempt\nrank 0 | again\nrank 0 | and on\n"


@pytest.mark.parametrize("letter", ["a", "é", "速"])
@pytest.mark.parametrize("pumps", [0, 100])
@pytest.mark.parametrize("ranks", [1, 2, 16])
def test_a_flood_keeps_the_head_and_the_tail_of_each_rank(
    tmp_path: Path, shown: list[str], clock: list[float], letter: str, pumps: int, ranks: int
) -> None:
    """On a screen or two, and it says how to read the rest."""
    cell, wide = OutputStream(tmp_path, ranks), letter * 50
    for rank in range(ranks):
        append(tmp_path, rank, "".join(f"{i} {wide}\n" for i in range(20_000)).encode())
    for _ in range(pumps):
        clock[0] += 1
        cell.pump()
    cell.pump(last=True)
    text = "".join(shown)
    assert len(text.splitlines()) <= 2 * HEAD_LINES + TAIL_LINES + 2 * ranks and len(text.encode()) < 60_000
    for rank in range(ranks):
        lines = [line.split()[3] for line in text.splitlines() if line.startswith(f"rank {rank} | ")]
        numbers = [int(number) for number in lines]
        head = next(i for i, number in enumerate(numbers) if number != i)
        tail = numbers[head:]
        assert head >= HEAD_LINES // ranks and len(tail) == TAIL_LINES // ranks
        assert tail == list(range(20_000 - len(tail), 20_000))
        note = f"of rank {rank} left out: run.log({rank}), or {tmp_path}/rank{rank}.log\n"
        assert text.count(note) == 1
        mib = sum(len(f"{i} {wide}\n".encode()) for i in range(20_000)) / 2**20
        assert abs(float(text.partition(note)[0].rpartition("... ")[2].split()[0]) - mib) < 0.05
    assert text.count("the last lines of each rank come at the end") == (pumps > 0)


def test_whoever_prints_alone_has_all_the_room(tmp_path: Path, shown: list[str]) -> None:
    cell = OutputStream(tmp_path, 4)
    append(tmp_path, 0, b"".join(b"%d\n" % i for i in range(HEAD_LINES + TAIL_LINES)))
    append(tmp_path, 3, b"done\n")
    cell.pump(last=True)
    lines = "".join(shown).splitlines()
    alone = [f"rank 0 | {i}" for i in range(HEAD_LINES + TAIL_LINES)]
    assert lines == [*alone[:HEAD_LINES], "rank 3 | done", *alone[HEAD_LINES:]], "and nothing is left out"


def test_the_live_view_shows_what_a_rank_printed_last(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    cell = OutputStream(tmp_path, 1)
    for i in range(2 * HEAD_LINES):
        append(tmp_path, 0, b"step %d\n" % i)
        clock[0] += 1
        cell.pump()
    assert cell.ranks({})[0].numbers == f"step {2 * HEAD_LINES - 1}"


def test_a_figure_is_shown_however_much_was_printed(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    cell = OutputStream(tmp_path, 1)
    append(tmp_path, 0, b"x\n" * 500)
    cell.pump()
    append(tmp_path, 0, b"figure: /runs/rank0.figure1.png\n" + b"y\n" * 500)
    cell.pump(last=True)
    assert "rank 0 | figure: /runs/rank0.figure1.png\n" in "".join(shown)


def test_a_huge_rest_is_not_read_into_memory(tmp_path: Path, shown: list[str]) -> None:
    import tracemalloc

    append(tmp_path, 0, b"x" * 99 + b"\n")
    with open(tmp_path / "rank0.log", "r+b") as file:
        file.truncate(300 << 20)  # zeros, without a newline
    cell = OutputStream(tmp_path, 1)
    tracemalloc.start()
    cell.pump(last=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20, f"{peak >> 20} MB"
    assert "".join(shown).startswith("rank 0 | xxx") and "300 MiB of rank 0 left out" in "".join(shown)


def test_of_a_long_line_the_beginning_and_the_end_are_shown(
    tmp_path: Path, shown: list[str], clock: list[float]
) -> None:
    """No letter is torn."""
    cell = OutputStream(tmp_path, 1)
    data = ("é" * 60_000).encode()
    for at in range(0, len(data), 7001):
        append(tmp_path, 0, data[at : at + 7001])
        clock[0] += 1
        cell.pump()
    append(tmp_path, 0, b" end\n")
    cell.pump(last=True)
    lines = [line for line in "".join(shown).splitlines() if line.startswith("rank 0 | ")]
    assert lines[0] == f"rank 0 | {'é' * (len(lines[0]) - 13)} ..." and len(lines[0]) > 50 * LINE_LETTERS
    assert lines[-1].endswith("éé end") and len("".join(lines)) < (HEAD_LINES + TAIL_LINES + 2) * LINE_LETTERS
    assert "\ufffd" not in "".join(shown)


def test_records_survive_a_torn_last_line(tmp_path: Path, shown: list[str]) -> None:
    cell = OutputStream(tmp_path, 1, quiet=True)
    append(tmp_path, 0, b'{"loss": 1.0}\n{"loss": 0.5}\n{"lo', "jsonl")
    append(tmp_path, 0, b"never shown\n")
    cell.pump(last=True)
    assert cell.records == [[{"loss": 1.0}, {"loss": 0.5}]] and shown == []


@pytest.mark.parametrize("last", [False, True])
def test_a_long_record_is_read_whole(tmp_path: Path, shown: list[str], clock: list[float], last: bool) -> None:
    cell, values = OutputStream(tmp_path, 1, quiet=True), [i / 7 for i in range(100_000)]
    line = json.dumps({"losses": values}).encode() + b"\n"
    assert len(line) > 3 * stream.CHUNK
    append(tmp_path, 0, line + json.dumps({"step": 2}).encode() + b"\n", "jsonl")
    for _ in range(1 if last else len(line) // stream.CHUNK + 1):
        clock[0] += 1
        cell.pump(last)
    assert cell.records == [[{"losses": values}, {"step": 2}]]


def test_progress_counts_ranks_that_have_not_spoken(tmp_path: Path) -> None:
    cell = OutputStream(tmp_path, 4)
    assert cell.part is None
    for done in (5, 10):
        append(tmp_path, 2, json.dumps({"progress": [done, 10]}).encode() + b"\n", "jsonl")
        cell.pump()
        assert cell.part == done / 40


def test_how_far_each_rank_is(tmp_path: Path) -> None:
    """By the files that are there, and by what each reported last: a few numbers, with their names."""
    cell = OutputStream(tmp_path, 4, quiet=True)
    for name in ("rank1.pid", "rank2.pid", "rank2.ended", "rank3.pid", "rank3.error.json", "rank3.ended"):
        (tmp_path / name).touch()
    for record in ({"loss": 1 / 3, "step": 4, "name": "x", "all": [1]}, {"progress": [1, 2]}):
        append(tmp_path, 1, json.dumps({**record, "time": 1.0}).encode() + b"\n", "jsonl")
    cell.pump()
    assert cell.ranks({1: "at `f()`", 2: "where it was"}) == [
        RankState(0, "starting"),
        RankState(1, "running", (1, 2), "loss=0.3333, step=4", "at `f()`"),
        RankState(2, "finished"),
        RankState(3, "failed"),
    ]
    shutil.rmtree(tmp_path)
    assert cell.ranks({})[3] == RankState(3, "starting"), "a folder that is gone ends nothing"


def test_held_lines_are_not_lost(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    """They wait for the live view, which stands above them."""
    cell = OutputStream(tmp_path, 1)
    append(tmp_path, 0, b"early\n")
    append(tmp_path, 0, b'{"loss": 1.0}\n', "jsonl")
    cell.pump(hold=True)
    assert shown == [] and cell.records == [[{"loss": 1.0}]]
    cell.pump()
    assert shown == ["rank 0 | early\n"]


def test_lines_that_mislead_stay_in_the_log(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    lines = [
        "USDT:2026-11-20 22:35:43 26879:26879 SyncActivityProfilerHandler.cpp:39] profiler_start",
        "ERROR:2026-11-20 22:35:44 26879:26879 DeviceProperties.cpp:56] gpuGetDeviceCount failed with code 35",
        "ERROR:2026-11-20 22:35:44 26879:26879 CuptiActivityApi.cpp:50] CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
        "mine: gpuGetDeviceCount failed with code 35",
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "  what():  [enforce fail at /x/gloo/transport/tcp/pair.cc:464] op.preamble.length <= op.nbytes",
        "terminate called after throwing an instance of 'std::runtime_error'",
        "[W1122 19:09:29.008116632 socket.cpp:764] [c10d] The client socket cannot be initialized to connect to"
        " [::ffff:127.0.0.1]:45153 (errno: 97 - Address family not supported by protocol).",
        "[W1122 19:14:04.201 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",
        "W1123 06:26:29.503000 1079 .venv/lib/python3.11/site-packages/torch/utils/cpp_extension.py:183] [0/0] No CUDA"
        " runtime is found, using CUDA_HOME='/usr/local'",
        "W1123 06:26:29.5 7 /a/torch/utils/cpp_extension.py:183] No CUDA runtime is found, using CUDA_HOME='/cuda'",
    ]
    append(tmp_path, 0, "".join(f"{line}\n" for line in lines).encode())
    OutputStream(tmp_path, 1).pump(last=True)
    assert "".join(shown) == "".join(f"rank 0 | {lines[i]}\n" for i in (2, 3, 6))


def test_the_zero_byte_that_ends_a_message_is_not_shown(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    append(tmp_path, 0, b"ERROR: bus error in worker.\n\x00\n\n\x00next\n")
    OutputStream(tmp_path, 1).pump(last=True)
    assert "".join(shown) == "rank 0 | ERROR: bus error in worker.\nrank 0 | \nrank 0 | next\n"


SPAWNED = (
    'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 122, in spawn_main\n    exitcode = _main(fd)\n'
    "RuntimeError: \n        An attempt has been made to start a new process before the\n\n        To fix this issue\n"
)


def test_a_traceback_of_a_process_that_a_rank_started_is_one_line(
    tmp_path: Path, shown: list[str], clock: list[float]
) -> None:
    own = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: mine\n'
    cell = OutputStream(tmp_path, 2)
    append(tmp_path, 0, f"before\n{SPAWNED}{SPAWNED}after\n        indented\n\n{own}".encode())
    append(tmp_path, 1, b"Traceback (most recent call last):\n")
    cell.pump()
    clock[0] += 1
    cell.pump(last=True)
    folded = "RuntimeError (in a process that this rank started; the log has its traceback)"
    zero = ["before", folded, folded, "after", "        indented", "", *own.splitlines()]
    lines = "".join(shown).splitlines()
    assert [line.removeprefix("rank 0 | ") for line in lines if line.startswith("rank 0")] == zero
    assert [line for line in lines if line.startswith("rank 1")] == ["rank 1 | Traceback (most recent call last):"]
