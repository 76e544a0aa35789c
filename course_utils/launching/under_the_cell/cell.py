"""The cell below which a launch runs: what's said there, the wait until its ranks can start and until they have ended,
and the user's interrupts meanwhile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...machine.busy import disturbed
from ...machine.here import Machine
from ...results.run import Run
from ...show.table import print_lines
from ...show.units import is_speed
from ..request import Handle, LaunchLost
from .live import Known, LiveView
from .stream import OutputStream
from .watch import LaunchWatch, last_line, stop

POLL_S = 0.05


class LaunchCell:
    """What happens under the cell while a launch lasts, as a context. `quiet` shows nothing.

    Within it an interrupt doesn't raise, since an exception in the wrong place would leave a launch half stopped: it's
    counted, and ends the ranks first. (Only the main thread is interrupted.)
    """

    def __init__(self, quiet: bool):
        self.quiet = quiet
        self.view = LiveView(quiet)
        self.interrupts = 0
        self.wrote = False  # anything that ranks printed

    def __enter__(self) -> LaunchCell:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._previous = signal.signal(signal.SIGINT, self._interrupt)
        self.view.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.view.__exit__(*error)
        finally:
            if self._main:
                signal.signal(signal.SIGINT, signal.default_int_handler if self._previous is None else self._previous)

    def _interrupt(self, *_: object) -> None:
        self.interrupts += 1

    def say(self, words: str, wrap: bool = False) -> None:
        """Print a remark, if there is one."""
        if words and not self.quiet:
            print_lines(words) if wrap else print(words, flush=True)

    def await_start(self, prepare: Callable[[], str]) -> None:
        """Call `prepare` until it waits for nothing more. Nothing has started yet, so an interrupt ends the waiting."""
        while (awaited := prepare()) and not self.interrupts:
            self.view.tick(lambda: Known(awaited))
        if self.interrupts:
            raise stop(f"stopped{' while ' if awaited else ''}{awaited}; no rank had started")

    def follow(
        self, handle: Handle, folder: Path, ranks: int, doing: str
    ) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
        """Show the ranks' output, and what they are `doing`, until they have ended. Returns the launch's outcome, and
        each rank's records."""
        stops, stream = 0, OutputStream(folder, ranks, self.quiet)
        watch = LaunchWatch(handle, stream, doing)
        try:
            while (outcome := handle.wait(POLL_S)) is None:
                if self.interrupts > stops:  # a second one no longer waits for ranks that handle SIGTERM
                    stops += 1
                    handle.stop()
                self.view.tick(lambda: watch.known(stopping=stops > 0))  # noqa: B023 - called at once
                stream.pump(hold=self.view.to_come)
        except LaunchLost:
            outcome = {"cause": "interrupted" if stops else "lost", "wall_s": float("nan"), "ranks": {}}
        stream.pump(last=True)
        watch.close()
        self.wrote = stream.wrote
        if self.interrupts and outcome["cause"] == "":
            outcome["cause"] = "interrupted"  # it came while the last ranks were ending
        return outcome, stream.records

    def end(self, run: Run) -> None:
        """Leave the launch's last line."""
        self.view.end(last_line(run, self.view.seconds), run.ok, below=self.wrote)


def busy_machine(runs: Sequence[Run], machine: Machine) -> str:
    """What to say of runs that timed something while other programs took the cores; empty if they didn't matter."""
    if not any(is_speed(name) for run in runs for record in run.records for name in record):
        return ""
    found = disturbed((run.others for run in runs if run.others), machine.cores)
    return f"A busy machine. {found}, so these times are too long. Close them, then run the cell again." * bool(found)
