"""A lesson in a real browser: JupyterLab as `make lab` starts it, run from the menu as a reader would, in a copy of the lessons.

A screenshot of the first figure is kept in artifacts/.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Descendants, add_claims, load_tool, skip_or_fail

from course_utils.claim import read

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EVERY_CHANGE = "04"  # the lesson that runs in `make test`; the others run in `make test-all`
READY_S = 60
RUN_S = 300

# What the notebook's model knows, whichever cells the page has drawn: JupyterLab draws only those in view.
STATE = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const cells = Array.from(panel.content.model.cells).map((cell, index) => ({
    index,
    code: cell.type === 'code' && cell.sharedModel.source.trim() !== '',
    source: cell.sharedModel.source,
    count: cell.executionCount ?? null,
    state: cell.executionState ?? null,
    outputs: cell.type === 'code' ? cell.outputs.toJSON() : [],
  }));
  return {path: panel.context.path, status: panel.sessionContext.session?.kernel?.status ?? null, cells};
}"""


@pytest.fixture(scope="module")
def chromium() -> str:
    path = load_tool("chromium").find()
    if path is None:
        skip_or_fail("no chromium is here; `make browser` says how one could be installed")
    return path


class Lab:
    """A running JupyterLab: its process, and the address with its token."""

    def __init__(self, folder: Path, runtime: Path, descendants: Descendants, *arguments: str, port: int = 8899):
        self.runtime, self.descendants = runtime, descendants
        # A home of its own: the test neither sees nor touches the settings of whoever runs it.
        home = {"HOME": str(folder), "JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
        self.claims = folder / "claims.jsonl"
        home["COURSE_CLAIMS_FILE"] = str(self.claims)
        env = os.environ | descendants.env | home | {"JUPYTER_RUNTIME_DIR": str(runtime), "BROWSER": "no", "PORT": str(port)}
        self.log = folder / "lab.log"
        with open(self.log, "wb") as log:
            command = [sys.executable, str(ROOT / ".ci" / "lab.py"), *arguments]
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.info = self._await_info(runtime)

    def _await_info(self, runtime: Path) -> dict[str, Any]:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for file in runtime.glob("jpserver-*.json"):
                try:
                    return dict(json.loads(file.read_text()))
                except ValueError:  # half written
                    pass
            time.sleep(0.1)
        pytest.fail(f"JupyterLab did not start:\n{self.log.read_text()}")

    def address(self, path: str) -> str:
        return f"{self.info['url']}{path}?token={self.info['token']}"

    def stop(self) -> list[str]:
        """End it as Ctrl-C does when it was answered with yes; returns what is left of it and of its kernels."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        return self.descendants.wait_gone(10)


@pytest.fixture
def start_lab(tmp_path: Path, descendants: Descendants) -> Iterator[Callable[..., Lab]]:
    """Starts a JupyterLab with more arguments; what a failed test leaves of it is ended and removed."""
    with tempfile.TemporaryDirectory(prefix="lab-") as runtime:  # short: kernels' sockets lie here
        yield lambda *arguments, **options: Lab(tmp_path, Path(runtime), descendants, *arguments, **options)
        descendants.kill()


@pytest.fixture
def page(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        yield page
        browser.close()


def copy_of_lessons(folder: Path) -> Path:
    """JupyterLab saves what it runs, so it runs a copy."""
    root = folder / "course"
    shutil.copytree(ROOT / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return root


def run_all(page: Any, lab: Lab, notebook: str) -> dict[str, Any]:
    """Open a notebook, choose Run All Cells from the menu, wait until every code cell has run; returns its state."""
    page.goto(lab.address(f"lab/tree/{notebook}"))
    page.wait_for_selector(".jp-NotebookPanel", timeout=READY_S * 1000)
    deadline = time.monotonic() + READY_S
    # The page says "idle" before the session exists, and Run All would then ask for a kernel.
    while not any(session["kernel"]["execution_state"] == "idle" for session in page.request.get(lab.address("api/sessions")).json()):
        assert time.monotonic() < deadline, "no kernel came up"
        page.wait_for_timeout(200)
    page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'", timeout=READY_S * 1000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator("[data-command='runmenu:run-all']").click()
    deadline = time.monotonic() + RUN_S
    while True:
        state: dict[str, Any] = page.evaluate(STATE)
        todo = [cell["index"] for cell in state["cells"] if cell["code"] and (cell["count"] is None or cell["state"] == "running")]
        if not todo or any(output["output_type"] == "error" for cell in state["cells"] for output in cell["outputs"]):
            return state
        assert time.monotonic() < deadline, f"{RUN_S} s after Run All the cells {todo} have not run"
        assert page.locator(".jp-Dialog").count() == 0, f"a dialog asks: {page.locator('.jp-Dialog').first.inner_text()}"
        page.wait_for_timeout(500)


def see_figures(page: Any, state: dict[str, Any], screenshot: Path) -> int:
    """Scroll to every cell with an image and wait until the browser has drawn it; the first goes into the screenshot. Returns how many."""
    seen = 0
    for cell in state["cells"]:
        images = sum("image/png" in output.get("data", {}) or "image/svg+xml" in output.get("data", {}) for output in cell["outputs"])
        if not images:
            continue
        page.evaluate(
            "async (i) => { const c = window.jupyterapp.shell.currentWidget.content; c.activeCellIndex = i; await c.scrollToItem(i, 'center'); }", cell["index"]
        )
        drawn = page.locator(f".jp-Cell[data-windowed-list-index='{cell['index']}'] .jp-OutputArea-output img")
        drawn.first.wait_for(timeout=15_000)
        assert drawn.count() == images, f"cell {cell['index']} has {images} figures, and {drawn.count()} are on the page"
        for i in range(images):
            width = drawn.nth(i).evaluate("async (img) => { await img.decode(); return img.naturalWidth; }")
            assert width > 100, f"a figure of cell {cell['index']} is {width} pixels wide"
        if not seen:
            screenshot.parent.mkdir(exist_ok=True)
            page.screenshot(path=str(screenshot))
        seen += images
    return seen


def check(state: dict[str, Any]) -> None:
    """No red cell, and nothing on stderr, which JupyterLab shows on red."""
    for cell in state["cells"]:
        for output in cell["outputs"]:
            first = f"cell {cell['index']} ({cell['source'][:80]!r})"
            if output["output_type"] == "error":
                pytest.fail(f"{first} failed: {output['ename']}: {output['evalue']}\n" + "\n".join(output["traceback"]), pytrace=False)
            if output["output_type"] == "stream" and output["name"] == "stderr":
                pytest.fail(f"{first} wrote to stderr: {''.join(output['text'])}", pytrace=False)


def lessons() -> list[Any]:
    return [pytest.param(p, id=p.stem, marks=[] if p.name.startswith(EVERY_CHANGE) else pytest.mark.slow) for p in LESSONS]


@pytest.mark.parametrize("lesson", lessons())
def test_lesson_runs_in_the_browser(
    lesson: Path, tmp_path: Path, page: Any, start_lab: Callable[..., Lab], capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    root = copy_of_lessons(tmp_path)
    lab = start_lab(f"--ServerApp.root_dir={root}", "--expose-app-in-browser")
    start = time.perf_counter()
    state = run_all(page, lab, f"notebooks/{lesson.name}")
    seconds = time.perf_counter() - start
    check(state)
    add_claims(pytestconfig.cache, lesson, read([lab.claims]))
    figures = see_figures(page, state, ROOT / "artifacts" / f"browser_{lesson.stem}.png")
    assert figures, "the lesson shows no figure"
    assert page.locator(".jp-Dialog, .jp-toast-message, .Toastify__toast").count() == 0, "something popped up"
    assert lab.info["hostname"] == "127.0.0.1" and len(lab.info["token"]) >= 32
    page.close()
    left = lab.stop()
    assert not left, f"left running: {left}"
    with capsys.disabled():
        print(f"\n  {lesson.stem} in the browser: {seconds:.0f} s, {figures} figures, screenshot in artifacts/")


def test_lab_opens_on_the_course_with_its_own_defaults(page: Any, start_lab: Callable[..., Lab]) -> None:
    """As `make lab` opens it: the README as a page, no news pop-up, a kernel that no other user can reach, another port when one is taken."""
    before = {path: path.stat().st_mtime_ns for path in ROOT.glob("*") if path.is_file()}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        lab = start_lab(port=taken.getsockname()[1])
        assert lab.info["port"] != taken.getsockname()[1]
    page.goto(next(line.strip() for line in lab.log.read_text().splitlines() if "?token=" in line))  # the address that it prints
    page.wait_for_selector(".jp-MarkdownViewer h1", timeout=READY_S * 1000)
    assert page.locator(".jp-MarkdownViewer h1").first.inner_text().strip()
    page.wait_for_timeout(3000)  # a pop-up would come a moment after the page
    assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0, page.locator(".jp-Dialog, .Toastify__toast").first.inner_text()
    answer = page.request.post(lab.address("api/kernels"), headers={"X-XSRFToken": xsrf(page)}, data={"name": "python3"})
    assert answer.status == 201, answer.text()
    kernel = answer.json()
    connection = json.loads((lab.runtime / f"kernel-{kernel['id']}.json").read_text())
    assert connection["transport"] == ("ipc" if sys.platform == "linux" else "tcp")
    without_token = page.context.browser.new_context()
    assert without_token.request.get(lab.info["url"] + "api/contents").status == 403
    page.close()
    assert not lab.stop()
    assert {path: path.stat().st_mtime_ns for path in ROOT.glob("*") if path.is_file()} == before, "files of the course were changed"


def xsrf(page: Any) -> str:
    return str(next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "_xsrf"))
