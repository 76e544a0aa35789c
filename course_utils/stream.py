"""While ranks run: their lines under the cell, prefixed by rank, and one progress bar. Reads only the files that ranks write."""

from __future__ import annotations

import codecs
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LINE_INTERVAL_S = 0.06  # below 20 messages a second: Jupyter Server drops what comes faster
CELL_LIMIT = 200_000  # bytes of output in a cell; the rest stays in the logs
LONG_LINE = 32_768
CHUNK = 1 << 18
# PyTorch's profiler says that it starts and stops, and that it finds no GPU, as if these were errors; the log keeps the lines.
_PROFILER = re.compile(r"(USDT|ERROR):\d{4}-\d\d-\d\d .*\] (profiler_start|profiler_stop|gpuGetDeviceCount failed with code \d+)\s*")


class _Tail:
    """New complete lines of a file that another process appends to. Never more of it in memory than a chunk and a line."""

    def __init__(self, path: Path):
        self.path = path
        self.offset = 0
        self.rest = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def lines(self, last: bool = False) -> Iterator[str]:
        """What a chunk holds; with `last` all that is left, also the end of a line that has none. A very long line comes in parts."""
        while True:
            data = self._read()
            *whole, self.rest = (self.rest + self.decoder.decode(data, final=last and not data)).split("\n")
            yield from whole
            if self.rest and (len(self.rest) > LONG_LINE or last and not data):
                text, self.rest = self.rest, ""
                yield text
            if not (last and data):
                return

    def _read(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read(CHUNK)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data


class Stream:
    """Shows the output of a launch whose files lie in `folder`. `quiet` shows nothing and still collects the records."""

    def __init__(self, folder: Path, world_size: int, quiet: bool = False):
        self.logs = [_Tail(folder / f"rank{r}.log") for r in range(world_size)]
        self.reports = [_Tail(folder / f"rank{r}.jsonl") for r in range(world_size)]
        self.records: list[list[dict[str, Any]]] = [[] for _ in range(world_size)]
        self.folder, self.quiet = folder, quiet
        self.shown = 0
        self.next_line = 0.0
        self.progress: dict[int, tuple[float, float]] = {}
        self.bar = ProgressBar()

    def pump(self, last: bool = False) -> None:
        """Show and collect what is new; with `last` all that is left."""
        for rank, tail in enumerate(self.reports):
            for line in tail.lines(last):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # the last line of a rank that was killed while it wrote
                self.records[rank].append(record)
                if "progress" in record:
                    done, total = record["progress"]
                    self.progress[rank] = (done, total)
        if self.quiet:
            return
        if last or time.monotonic() >= self.next_line:
            text = "".join(self._new_lines(last))
            if text:
                self.next_line = time.monotonic() + LINE_INTERVAL_S
                sys.stdout.write(text)
                sys.stdout.flush()
        if self.progress:
            done = sum(d for d, _ in self.progress.values())
            total = sum(t for _, t in self.progress.values()) * len(self.logs) / len(self.progress)
            self.bar.show(done, total, last)

    def _new_lines(self, last: bool) -> list[str]:
        if self.shown > CELL_LIMIT:
            return []
        shown = []
        for rank, tail in enumerate(self.logs):
            for line in tail.lines(last):
                said = line.removeprefix("\0")  # PyTorch writes the zero byte that ends its message about a signal; the next line begins with it
                if _PROFILER.fullmatch(said) or (line and not said):
                    continue
                text = f"rank {rank} | {said.rstrip(chr(13)).rpartition(chr(13))[2]}\n"  # of a line that was overwritten in place, its last state
                self.shown += len(text.encode(errors="replace"))
                if self.shown > CELL_LIMIT:
                    shown.append(f"... more than {CELL_LIMIT // 1000} KB of output; all of it is in {self.folder}/rank*.log\n")
                    return shown
                shown.append(text)
        return shown


class ProgressBar:
    """One line of text under the cell, updated in place; in a plain terminal or script there is none."""

    WIDTH = 30

    def __init__(self, label: str = "") -> None:
        self.label = label
        self.handle: Any = None
        self.started = time.monotonic()
        self.next = 0.0
        self.text = ""

    def show(self, done: float, total: float, last: bool = False) -> None:
        now = time.monotonic()
        if total <= 0 or (not last and now < self.next):
            return
        self.next = now + 0.2
        part = min(max(done / total, 0.0), 1.0)
        filled = round(part * self.WIDTH)
        text = f"{self.label}{'█' * filled}{'░' * (self.WIDTH - filled)} {part:4.0%}, {now - self.started:.1f} s"
        if text == self.text:
            return
        self.text = text
        bundle = {"text/plain": text}
        if self.handle is None:
            try:
                from IPython import get_ipython
                from IPython.display import display
            except ImportError:
                return
            if getattr(get_ipython(), "kernel", None) is None:
                return
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)
