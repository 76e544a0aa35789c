"""What the cell shows of files that ranks write: without ranks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_utils import stream
from course_utils.stream import CELL_LIMIT, LINE_INTERVAL_S, ProgressBar, Stream


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were written to the cell, one a message."""
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
    cell = Stream(tmp_path, 2)
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
    cell = Stream(tmp_path, 1)
    for i in range(1000):  # one second
        append(tmp_path, 0, b"line %d\n" % i)
        clock[0] += 0.001
        cell.pump()
    assert len(shown) <= 1 / LINE_INTERVAL_S + 1 <= 20
    cell.pump(last=True)
    assert "".join(shown) == "".join(f"rank 0 | line {i}\n" for i in range(1000))


@pytest.mark.parametrize("letter", ["a", "é", "速"])
def test_the_limit_counts_bytes_and_names_the_logs(tmp_path: Path, shown: list[str], clock: list[float], letter: str) -> None:
    cell = Stream(tmp_path, 2)
    for rank in (0, 1):
        append(tmp_path, rank, (letter * 99 + "\n").encode() * 20_000)
    for _ in range(100):
        clock[0] += 1
        cell.pump()
    cell.pump(last=True)
    text = "".join(shown)
    assert CELL_LIMIT - 500 < len(text.encode()) < CELL_LIMIT + 500
    assert text.endswith(f"... more than {CELL_LIMIT // 1000} KB of output; all of it is in {tmp_path}/rank*.log\n")
    assert text.count("more than") == 1
    assert all(line == f"rank {line[5]} | " + letter * 99 for line in text.splitlines()[:-1])


def test_a_huge_rest_is_not_read_into_memory(tmp_path: Path, shown: list[str]) -> None:
    import tracemalloc

    append(tmp_path, 0, b"x" * 99 + b"\n")
    with open(tmp_path / "rank0.log", "r+b") as file:
        file.truncate(300 << 20)  # zeros, without a newline
    cell = Stream(tmp_path, 1)
    tracemalloc.start()
    cell.pump(last=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20, f"{peak >> 20} MB"
    assert shown[0].startswith("rank 0 | xxx") and "more than 200 KB" in shown[-1]


def test_a_long_line_comes_in_parts_that_tear_no_letter(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    cell = Stream(tmp_path, 1)
    data = ("é" * 60_000).encode()
    for at in range(0, len(data), 7001):
        append(tmp_path, 0, data[at : at + 7001])
        clock[0] += 1
        cell.pump()
    cell.pump(last=True)
    assert "".join(line.removeprefix("rank 0 | ") for text in shown for line in text.splitlines()) == "é" * 60_000
    assert len(shown) > 1


def test_records_survive_a_torn_last_line(tmp_path: Path, shown: list[str]) -> None:
    cell = Stream(tmp_path, 1, quiet=True)
    append(tmp_path, 0, b'{"loss": 1.0}\n{"loss": 0.5}\n{"lo', "jsonl")
    append(tmp_path, 0, b"never shown\n")
    cell.pump(last=True)
    assert cell.records == [[{"loss": 1.0}, {"loss": 0.5}]] and shown == []


def test_progress_counts_ranks_that_have_not_spoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []
    monkeypatch.setattr(ProgressBar, "show", lambda self, done, total, last=False: seen.append((done, total)))
    cell = Stream(tmp_path, 4)
    for done in (5, 10):
        append(tmp_path, 2, json.dumps({"progress": [done, 10]}).encode() + b"\n", "jsonl")
        cell.pump()
    assert seen == [(5, 40), (10, 40)]


def test_the_bar_is_silent_outside_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar()
    bar.show(1, 2, last=True)
    bar.show(1, 0)
    assert capsys.readouterr().out == ""


def test_harmless_lines_of_the_profiler_stay_in_the_log(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    lines = [
        "USDT:2026-11-20 22:35:43 26879:26879 SyncActivityProfilerHandler.cpp:39] profiler_start",
        "ERROR:2026-11-20 22:35:44 26879:26879 DeviceProperties.cpp:56] gpuGetDeviceCount failed with code 35",
        "ERROR:2026-11-20 22:35:44 26879:26879 CuptiActivityApi.cpp:50] CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
        "mine: gpuGetDeviceCount failed with code 35",
    ]
    append(tmp_path, 0, "".join(f"{line}\n" for line in lines).encode())
    Stream(tmp_path, 1).pump(last=True)
    assert "".join(shown) == f"rank 0 | {lines[2]}\nrank 0 | {lines[3]}\n"


def test_the_zero_byte_that_ends_a_message_is_not_shown(tmp_path: Path, shown: list[str], clock: list[float]) -> None:
    append(tmp_path, 0, b"ERROR: bus error in worker.\n\x00\n\n\x00next\n")
    Stream(tmp_path, 1).pump(last=True)
    assert "".join(shown) == "rank 0 | ERROR: bus error in worker.\nrank 0 | \nrank 0 | next\n"
