"""The extension of Jupyter Server that serves the first page, `course`, and the state of the machine,
`course/machine`."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.utils import url_escape, url_path_join
from tornado.web import authenticated

from ..folders import course_home
from . import FOLDER
from .lessons import lessons
from .page import render
from .progress import progress

# A process of its own, and a polite one: it imports torch, and the learner may be running cells already.
_LOOK = """
import json, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
os.nice(10)
from course_utils.machine.doctor import doctor
report = doctor()
rows = [[row.status, row.name, row.found, row.cure] for row in report.rows]
print(json.dumps({"ok": report.ok, "rows": rows}))
"""


def _load_jupyter_server_extension(app: Any) -> None:
    """Jupyter Server calls this once."""
    machine = ServersMachine()
    atexit.register(machine.stop)
    course = url_path_join(app.base_url, "course")
    app.web_app.add_handlers(
        ".*$", [(course, CourseHandler), (url_path_join(course, "machine"), MachineHandler, {"machine": machine})]
    )


def lessons_folder(served: Path) -> Path | None:
    """The folder that has the learner's `notebooks/`, relative to the folder that the server shows; None if it shows
    none."""
    for folder in (served, course_home(), served / FOLDER):
        if folder.is_relative_to(served) and any(folder.glob("notebooks/[0-9][0-9]_*.ipynb")):
            return folder.relative_to(served)
    return None


class ServersMachine:
    """What the doctor says of this machine. It's asked at the first view; a good answer is kept, for a bad one it's
    asked again."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._asking: asyncio.Task[dict[str, Any]] | None = None

    async def state(self) -> dict[str, Any]:
        if self._asking is None or (self._asking.done() and not self._asking.result()["ok"]):
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)  # a viewer who leaves doesn't stop it

    async def _ask(self) -> dict[str, Any]:
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                _LOOK,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            out, _ = await self._process.communicate()
            return dict(json.loads(out.splitlines()[-1]))
        except (OSError, ValueError, IndexError):
            return {"ok": False, "rows": []}

    def stop(self) -> None:
        """End the doctor, who then ends what it started."""
        if self._process is not None and self._process.returncode is None:
            try:
                os.kill(self._process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass


class CourseHandler(JupyterHandler):
    """The first page."""

    @authenticated
    def get(self) -> None:
        served = Path(self.settings["server_root_dir"]).expanduser().resolve()
        folder = lessons_folder(served)
        known = lessons()
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        self.set_header("Cache-Control", "no-store")  # Back from a lesson shows what was done there
        self.finish(
            render(
                known,
                progress(known),
                None if folder is None else partial(self._address, folder),
                url_path_join(self.base_url, "course", "machine"),
            )
        )

    def _address(self, folder: Path, path: str) -> str:
        return str(url_path_join(self.base_url, "lab/tree", url_escape((folder / path).as_posix())))


class MachineHandler(APIHandler):
    """What the doctor says, as JSON."""

    def initialize(self, machine: ServersMachine) -> None:
        self._machine = machine

    @authenticated
    async def get(self) -> None:
        self.finish(await self._machine.state())
