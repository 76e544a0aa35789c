"""While ranks run, show their lines under the cell, prefixed by rank, and find out how far each is. This only reads
files that the ranks write."""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Set
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ...show.units import readable
from .live import RankState
from .shown_figures import Figures

LINE_INTERVAL_S = 0.07  # with the live view's below 20 messages a second: Jupyter Server drops what comes faster
# What a cell shows of what ranks print: a screen of first lines, and at the end most of a screen of each rank's last
# ones. The ranks share both; whoever prints first may have what others haven't used. The rest stays in the logs.
HEAD_LINES, TAIL_LINES = 60, 40
LINE_LETTERS = 106  # a longer line counts as several, since the page breaks it
# at the logs, and as many at the reports: with many ranks on a shared file system, opening every file all the time
# would load its server
LOOKS_PER_S = 50
LONG_LINE = 32_768  # characters of a log's line that are shown without waiting for its end
CHUNK = 1 << 18
NEWEST = 1 << 16  # bytes at the end of a log, of which the last lines are taken
FEW_NUMBERS = 4  # of a rank's last report, in the live view
# PyTorch's profiler says that it starts and stops, and that it finds no GPU, as if these were errors. And gloo's last
# words, when ranks bring different sizes, say less than the error that follows; torch 2.10's gloo also reports every
# group that it connects. Without IPv6, ranks try it first, and without a name server they
# ask for names in vain. And torch.compile looks for a CUDA toolkit, GPU or not. We don't show these lines; the log
# keeps them.
_NOT_SHOWN = re.compile(
    r"(USDT|ERROR):\d{4}-\d\d-\d\d .*\] (profiler_start|profiler_stop|gpuGetDeviceCount failed with code \d+)\s*"
    r"|terminate called after throwing an instance of 'gloo::.*"
    r"|  what\(\):  \[enforce fail at .*gloo/.*"
    r"|\[W.* socket\.cpp:\d+\] \[c10d\] The client socket cannot be initialized to connect to .*\(errno: 97 - .*"
    r"|\[W.* socket\.cpp:\d+\] \[c10d\] The hostname of the client socket cannot be retrieved\. err=-\d+"
    r"|[WE]\d{4} .*cpp_extension\.py:\d+\] (\[\S+\] )?No CUDA runtime is found, using CUDA_HOME=.*"
    r"|\[Gloo\] Rank \d+ is connected to \d+ peer ranks\..*"
)

_FIGURE = re.compile(r"figure: /.*\.png$")  # always shown: `shown_figures` limits how many


class _Tail:
    """The new, complete lines of a file that another process appends to. Memory holds at most a chunk and a line. A
    line longer than `longest` characters comes in parts.

    It opens the file anew for each look: on NFS that is when a client asks the server for what other machines have
    written.
    """

    def __init__(self, path: Path, longest: float = math.inf):
        self.path, self.longest = path, longest
        self.offset = 0
        self.skipped = 0
        self.rest = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def lines(self, last: bool = False) -> Iterator[str]:
        """The lines of the next chunk; with `last` all that are left, even one without an end."""
        while True:
            data = self._read()
            *whole, self.rest = (self.rest + self.decoder.decode(data, final=last and not data)).split("\n")
            yield from whole
            if self.rest and (len(self.rest) > self.longest or last and not data):
                text, self.rest = self.rest, ""
                yield text
            if not (last and data):
                return

    def skip(self, keep: int) -> None:
        """Leave out what is new, but for the lines in the last `keep` bytes of the file."""
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset:  # emptied by another attempt, or cut at the limit of logs
                    self.offset = 0
                to = size - keep
                if to <= self.offset:
                    return
                file.seek(to)
                data = file.read(keep)
        except FileNotFoundError:
            return
        at = data.find(b"\n") + 1
        while not at and len(data) > 1 and data[0] & 0xC0 == 0x80:  # no line begins there: tear no letter
            data, to = data[1:], to + 1
        self.skipped += to + at - self.offset + len(self.rest)
        self.offset, self.rest = to + at, ""
        self.decoder.reset()

    def _read(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset, self.rest = 0, ""  # another file of this name, or emptied: begin again
                    self.decoder.reset()
                file.seek(self.offset)
                data = file.read(CHUNK)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data


class _Spawned:
    """Of the traceback of a process that a rank started by spawn, keeps the last line. Without `if __name__ ==
    "__main__"` there's one of 40 lines for each process, above the error that says what to do."""

    FIRST = (r"Traceback \(most recent call last\):", r'  File "<string>", line 1, in <module>', r".* in spawn_main")
    MESSAGE = 20  # lines of the exception's message, which may be indented, or empty

    def __init__(self) -> None:
        self.held: list[str] = []
        self.inside, self.swallow = False, 0

    def __call__(self, line: str) -> list[str]:
        """What to show now that this line has come."""
        if self.inside:
            if line.startswith(" "):
                return []
            self.inside, self.swallow = False, self.MESSAGE
            return [f"{line.rstrip(': ')} (in a process that this rank started; the log has its traceback)"]
        if self.swallow and (not line.strip() or line.startswith("        ")):
            self.swallow -= 1
            return []
        self.swallow = 0
        self.held.append(line)
        if not re.fullmatch(self.FIRST[len(self.held) - 1], line):
            return self.rest()
        if len(self.held) == len(self.FIRST):
            self.inside, self.held = True, []
        return []

    def rest(self) -> list[str]:
        """What is held back."""
        held, self.held = self.held, []
        return held


class _Turns:
    """Which files it's time to look at: each in turn, at most `LOOKS_PER_S` a second, or a second's worth at once after
    a pause."""

    def __init__(self, tails: list[_Tail]):
        self.all = list(enumerate(tails))
        self.turns = deque(self.all)
        self.saved, self.since = float(LOOKS_PER_S), time.monotonic()

    def due(self, last: bool) -> list[tuple[int, _Tail]]:
        """(rank, file), in the order of the ranks; with `last` all of them."""
        now = time.monotonic()
        self.saved = min(LOOKS_PER_S, self.saved + (now - self.since) * LOOKS_PER_S)
        self.since = now
        count = len(self.turns) if last else min(len(self.turns), int(self.saved))
        self.saved -= min(count, self.saved)
        found = [self.turns[i] for i in range(count)]
        self.turns.rotate(-count)
        return sorted(found, key=lambda turn: turn[0])


class _Room:
    """What a cell has shown of a rank, and what it keeps of it for the end."""

    def __init__(self) -> None:
        self.used = 0  # lines on the page
        self.full = False
        self.last: deque[str] = deque()
        self.kept = 0  # lines on the page
        self.dropped = 0  # bytes

    def keep(self, line: str) -> None:
        """Keep a line for the end, and let go of older ones."""
        self.last.append(line)
        self.kept += _height(line)
        while self.kept > TAIL_LINES and len(self.last) > 1:
            self._drop()

    def tail(self, most: int) -> list[str]:
        """The last lines, as many as `most` lines on the page hold; of a line that is longer, its end."""
        while self.kept > most and len(self.last) > 1:
            self._drop()
        if self.last and _height(self.last[0]) > most:
            cut = self.last[0][-most * LINE_LETTERS :]
            self.dropped += len(self.last[0].encode(errors="replace")) - len(cut.encode(errors="replace"))
            self.last[0] = f"... {cut}"
        return list(self.last)

    def _drop(self) -> None:
        line = self.last.popleft()
        self.kept -= _height(line)
        self.dropped += len(line.encode(errors="replace")) + 1


class OutputStream:
    """Shows the output of a launch whose files lie in `folder`. `quiet` shows nothing but still collects the
    records."""

    def __init__(self, folder: Path, world_size: int, quiet: bool = False):
        self.logs = _Turns([_Tail(folder / f"rank{r}.log", LONG_LINE) for r in range(world_size)])
        self.reports = _Turns([_Tail(folder / f"rank{r}.jsonl") for r in range(world_size)])
        self.records: list[list[dict[str, Any]]] = [[] for _ in range(world_size)]
        self.folder, self.quiet = folder, quiet
        self.rooms = [_Room() for _ in range(world_size)]
        self.spawned = [_Spawned() for _ in range(world_size)]
        self.shown = 0  # lines on the page
        self.said = False  # where the rest is
        self.wrote = False  # anything
        self.next_line = 0.0
        self.progress: dict[int, tuple[float, float]] = {}
        self.figures = Figures()
        self.heard = time.monotonic()  # when something came last

    def pump(self, last: bool = False, hold: bool = False) -> None:
        """Show and collect what is new; with `last`, all that is left. With `hold` it shows nothing yet."""
        for rank, tail in self.reports.due(last):
            for line in tail.lines(last):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # the last line of a rank that was killed while it wrote
                self.records[rank].append(record)
                self.heard = time.monotonic()
                if "progress" in record:
                    done, total = record["progress"]
                    self.progress[rank] = (done, total)
        if self.quiet or hold:
            return
        if last or time.monotonic() >= self.next_line:
            text = "".join(self._new_lines(last))
            if text:
                self.heard = time.monotonic()
                self.next_line = self.heard + LINE_INTERVAL_S
                self.wrote = True
                self.figures.write(text, sys.stdout)

    @property
    def part(self) -> float | None:
        """Which part is done, of all ranks, also of those that haven't said so; None if none has."""
        done = sum(d for d, _ in self.progress.values())
        total = sum(t for _, t in self.progress.values()) * len(self.records) / max(1, len(self.progress))
        return min(max(done / total, 0.0), 1.0) if total > 0 else None

    def ranks(self, places: Mapping[int, str]) -> list[RankState]:
        """What is known of each rank. `places` says where some of them stand."""
        try:
            there = set(os.listdir(self.folder))  # one look for all of them
        except OSError:
            there = set()
        found = []
        for rank, records in enumerate(self.records):
            state = self._state(rank, there)
            place = places.get(rank, "") if state == "running" else ""
            numbers = _numbers(records) or "".join([*self.rooms[rank].last][-1:])  # or what it printed last
            found.append(RankState(rank, state, self.progress.get(rank), numbers, place))
        return found

    def _state(self, rank: int, there: Set[str]) -> str:
        """How far a rank is, by the files that are `there`."""
        files = {"failed": "error.json", "finished": "ended", "running": "pid"}
        return next((state for state, file in files.items() if f"rank{rank}.{file}" in there), "starting")

    def _new_lines(self, last: bool) -> list[str]:
        shown = []
        for rank, tail in self.logs.due(last):
            room, fold = self.rooms[rank], self.spawned[rank]
            if room.full:
                tail.skip(NEWEST)
            lines = (line for text in tail.lines(last) for line in fold(text))
            for line in chain(lines, _late(fold) if last else ()):
                # PyTorch writes the zero byte at the end of its message about a signal; the next line begins with it
                said = line.removeprefix("\0")
                if _NOT_SHOWN.fullmatch(said) or (line and not said):
                    continue
                # a line may be overwritten in place: show its last state
                said = said.rstrip(chr(13)).rpartition(chr(13))[2]
                if _FIGURE.search(said) or self._has_room(room, said):
                    shown.append(f"rank {rank} | {said}\n")
                    continue
                if not room.full:
                    room.full = True
                    tail.skip(NEWEST)
                    shown += self._cut(room, f"rank {rank} | {said}", last)
                room.keep(said)
        return [*shown, *self._ends()] if last else shown

    def _has_room(self, room: _Room, line: str) -> bool:
        """Whether a line still belongs to what the cell shows at once; if so, it's counted."""
        high, share = _height(line), max(1, HEAD_LINES // len(self.rooms))
        if room.full or room.used + high > share and self.shown + high > HEAD_LINES:
            return False
        room.used += high
        self.shown += high
        return True

    def _cut(self, room: _Room, line: str, last: bool) -> list[str]:
        """What to show when a rank has printed too much: the beginning of a first line that is too long, and once what
        becomes of the rest."""
        first = [] if room.used else [f"{line[: HEAD_LINES // len(self.rooms) * LINE_LETTERS]} ...\n"]
        if last or self.said:
            return first
        self.said = True
        return [*first, f"... the last lines of each rank come at the end; all are in {self.folder}/rank*.log\n"]

    def _ends(self) -> list[str]:
        """The last lines of each rank that printed more than there was room for."""
        cut = [(rank, room) for rank, room in enumerate(self.rooms) if room.last]
        shown = []
        for rank, room in cut:
            lines = room.tail(max(1, TAIL_LINES // len(cut)))
            _, tail = self.logs.all[rank]
            if left_out := room.dropped + tail.skipped:
                shown.append(
                    f"... {readable('bytes', left_out)} of rank {rank} left out: run.log({rank}), or {tail.path}\n"
                )
            shown += [f"rank {rank} | {line}\n" for line in lines]
            room.last.clear()
        return shown


def _height(line: str) -> int:
    return 1 + len(line) // LINE_LETTERS


def _late(fold: _Spawned) -> Iterator[str]:
    yield from fold.rest()


def _numbers(records: list[dict[str, Any]]) -> str:
    """The newest numbers that a rank reported, `loss=0.52, step_s=0.031`."""
    for record in islice(reversed(records), 100):
        found = {k: v for k, v in record.items() if k not in ("time", "progress") and isinstance(v, (int, float))}
        if found:
            few = list(found.items())[:FEW_NUMBERS]
            return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in few)
    return ""
