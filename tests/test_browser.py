"""A lesson in a real browser: JupyterLab as `make lab` starts it, in a copy of the lessons, run from the menu as a
reader would.

A screenshot of the first figure is kept in artifacts/.
"""

from __future__ import annotations

import itertools
import json
import os
import re
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

import nbformat
import pytest
from conftest import ROOT, Descendants, add_claims, load_tool

from course_utils.lab.lessons import lessons as lessons_known

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EVERY_CHANGE = "04"  # the lesson whose first half runs in `make test`; all run whole in `make test-all`
STOP = "**A good place to stop.**"
READY_S = 180
RUN_S = 600

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


def own_port() -> int:
    """Where this worker's labs begin to look for a port. Jupyter looks for a free one, lets go of it, and takes it a
    moment later: two that start at once would choose the same."""
    return 8899 + 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


class Lab:
    """A running JupyterLab: its process, and the address with its token."""

    def __init__(
        self,
        folder: Path,
        runtime: Path,
        descendants: Descendants,
        *arguments: str,
        port: int | None = None,
        extra_env: dict[str, str] | None = None,
    ):
        self.runtime, self.descendants = runtime, descendants
        # A home of its own: the test neither sees nor touches the settings of whoever runs it.
        home = {
            "HOME": str(folder),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        }
        self.claims = folder / "claims.jsonl"
        home |= {"COURSE_CLAIMS_FILE": str(self.claims)}
        env = (
            os.environ
            | descendants.env
            | home
            | {"JUPYTER_RUNTIME_DIR": str(runtime), "BROWSER": "no", "PORT": str(port or own_port())}
            | (extra_env or {})
        )
        self.log = folder / "lab.log"
        with open(self.log, "wb") as log:
            command = [sys.executable, "-m", "course_utils.lab", *arguments]
            # A terminal, where Jupyter would ask whether Ctrl-C was meant.
            ours, its = os.openpty()
            self.process = subprocess.Popen(command, env=env, stdin=its, stdout=log, stderr=subprocess.STDOUT)
            os.close(its)
            self._terminal = os.fdopen(ours)
        self.info = self._await_info(runtime)

    def _await_info(self, runtime: Path) -> dict[str, Any]:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for file in runtime.glob("jpserver-*.json"):
                try:
                    info = dict(json.loads(file.read_text()))
                    socket.create_connection(("127.0.0.1", info["port"]), 1).close()  # the file comes before the socket
                    return info
                except (ValueError, OSError):  # half written, or nobody listens yet
                    pass
            time.sleep(0.1)
        pytest.fail(f"JupyterLab did not start:\n{self.log.read_text()}")

    def address(self, path: str) -> str:
        return f"{self.info['url']}{path}?token={self.info['token']}"

    def stop(self) -> list[str]:
        """End it as Ctrl-C does, which asks nothing. Returns what is left of it and of its kernels."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        self._terminal.close()
        return self.descendants.wait_gone(10)


@pytest.fixture
def start_lab(tmp_path: Path, descendants: Descendants) -> Iterator[Callable[..., Lab]]:
    """Starts a JupyterLab with extra arguments. Whatever a failed test leaves of it is ended and removed."""
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
    """JupyterLab saves the notebooks it runs, so it runs copies."""
    root = folder / "course"
    shutil.copytree(ROOT / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return root


def run_all(page: Any, lab: Lab, notebook: str) -> dict[str, Any]:
    """Open a notebook, choose Run All Cells from the menu, and wait until every code cell has run. Returns its
    state."""
    page.goto(lab.address(f"lab/tree/{notebook}"))
    page.wait_for_selector(".jp-NotebookPanel", timeout=READY_S * 1000)
    deadline = time.monotonic() + READY_S
    # The page says "idle" before the session exists, and Run All would then ask for a kernel.
    while not any(
        session["kernel"]["execution_state"] == "idle"
        for session in page.request.get(lab.address("api/sessions")).json()
    ):
        assert time.monotonic() < deadline, "no kernel came up"
        page.wait_for_timeout(200)
    page.wait_for_function(
        "() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=READY_S * 1000,
    )
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator("[data-command='runmenu:run-all']").click()
    deadline = time.monotonic() + RUN_S
    while True:
        state: dict[str, Any] = page.evaluate(STATE)
        todo = [
            cell["index"]
            for cell in state["cells"]
            if cell["code"] and (cell["count"] is None or cell["state"] == "running")
        ]
        if not todo or any(output["output_type"] == "error" for cell in state["cells"] for output in cell["outputs"]):
            return state
        assert time.monotonic() < deadline, f"{RUN_S} s after Run All the cells {todo} have not run"
        assert page.locator(".jp-Dialog").count() == 0, (
            f"a dialog asks: {page.locator('.jp-Dialog').first.inner_text()}"
        )
        page.wait_for_timeout(500)


def see_figures(page: Any, state: dict[str, Any], screenshot: Path) -> int:
    """Scroll to every cell with an image and wait until the browser has drawn it. The first one goes into the
    screenshot. Returns how many there are."""
    seen = 0
    for cell in state["cells"]:
        images = sum(
            "image/png" in output.get("data", {}) or "image/svg+xml" in output.get("data", {})
            for output in cell["outputs"]
        )
        if not images:
            continue
        page.evaluate(
            "async (i) => { const c = window.jupyterapp.shell.currentWidget.content; c.activeCellIndex = i; await"
            " c.scrollToItem(i, 'center'); }",
            cell["index"],
        )
        drawn = page.locator(f".jp-Cell[data-windowed-list-index='{cell['index']}'] .jp-OutputArea-output img")
        drawn.first.wait_for(timeout=120_000)
        assert drawn.count() == images, (
            f"cell {cell['index']} has {images} figures, and {drawn.count()} are on the page"
        )
        for i in range(images):
            width = drawn.nth(i).evaluate("async (img) => { await img.decode(); return img.naturalWidth; }")
            assert width > 100, f"a figure of cell {cell['index']} is {width} pixels wide"
        if not seen:
            screenshot.parent.mkdir(exist_ok=True)
            page.screenshot(path=str(screenshot))
        seen += images
    return seen


def check(state: dict[str, Any]) -> None:
    """No cell is red, and nothing is on stderr, which JupyterLab shows in red."""
    for cell in state["cells"]:
        for output in cell["outputs"]:
            first = f"cell {cell['index']} ({cell['source'][:80]!r})"
            if output["output_type"] == "error":
                pytest.fail(
                    f"{first} failed: {output['ename']}: {output['evalue']}\n" + "\n".join(output["traceback"]),
                    pytrace=False,
                )
            if output["output_type"] == "stream" and output["name"] == "stderr":
                pytest.fail(f"{first} wrote to stderr: {''.join(output['text'])}", pytrace=False)


def keep_first_half(notebook: Path) -> None:
    """Leave only the code cells of the core, up to the place where one may stop."""
    lesson = nbformat.read(notebook, as_version=4)
    lesson.cells = [c for c in lesson.cells if c.cell_type != "code" or "core" in c.metadata.get("tags", [])]
    stop = next(i for i, c in enumerate(lesson.cells) if c.cell_type == "markdown" and STOP in c.source)
    lesson.cells = lesson.cells[: stop + 1]
    nbformat.write(lesson, notebook)


def lessons() -> list[Any]:
    # One by one: what a whole lesson claims about speed is judged from these runs.
    whole = [pytest.param(p, False, id=p.stem, marks=[pytest.mark.slow, pytest.mark.alone]) for p in LESSONS]
    return [*(pytest.param(p, True, id=f"{p.stem}-first-half") for p in LESSONS if p.name[:2] == EVERY_CHANGE), *whole]


@pytest.mark.parametrize(("lesson", "half"), lessons())
def test_lesson_runs_in_the_browser(
    lesson: Path,
    half: bool,
    tmp_path: Path,
    page: Any,
    start_lab: Callable[..., Lab],
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    root = copy_of_lessons(tmp_path)
    if half:
        keep_first_half(root / "notebooks" / lesson.name)
    lab = start_lab(
        f"--ServerApp.root_dir={root}", "--expose-app-in-browser", extra_env={"COURSE_NOTEBOOK": lesson.name}
    )
    start = time.perf_counter()
    state = run_all(page, lab, f"notebooks/{lesson.name}")
    seconds = time.perf_counter() - start
    check(state)
    add_claims(pytestconfig.cache, lesson, load_tool("list_claims").read([lab.claims]))
    figures = see_figures(page, state, ROOT / "artifacts" / f"browser_{lesson.stem}.png")
    assert figures, "the lesson shows no figure"
    assert page.locator(".jp-Dialog, .jp-toast-message, .Toastify__toast").count() == 0, "something popped up"
    assert lab.info["hostname"] == "127.0.0.1" and len(lab.info["token"]) >= 32
    page.close()
    left = lab.stop()
    assert not left, f"left running: {left}"
    with capsys.disabled():
        print(f"\n  {lesson.stem} in the browser: {seconds:.0f} s, {figures} figures, screenshot in artifacts/")


def test_lab_opens_on_the_course_with_its_own_defaults(
    page: Any, start_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    """As a learner opens it: the first page leads to a lesson and then knows what ran there, no dialog or pop-up comes,
    lines have numbers, no other user can reach the kernel, and another port serves if this one is taken."""
    before = {path: path.stat().st_mtime_ns for path in ROOT.glob("*") if path.is_file()}
    mine = tmp_path / "my course"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        lab = start_lab(str(mine), port=taken.getsockname()[1])
        assert lab.info["port"] != taken.getsockname()[1]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(
        next(line.strip() for line in lab.log.read_text().splitlines() if "?token=" in line)
    )  # the address that it prints
    assert page.locator("h3").count() == len(LESSONS) and page.locator(".go").inner_text().startswith("Start")
    page.locator(".go").click()
    page.wait_for_selector(".jp-NotebookPanel", timeout=READY_S * 1000)
    page.locator(".jp-CodeCell .cm-lineNumbers").first.wait_for()
    page.locator(".jp-TableOfContents-content").first.wait_for()
    page.wait_for_timeout(3000)  # a pop-up would come a moment after the page
    assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0, page.locator(
        ".jp-Dialog, .Toastify__toast"
    ).first.inner_text()
    page.keyboard.press("Escape")
    lesson, cells = lessons_known()[0], nbformat.read(LESSONS[0], as_version=4).cells
    opening = itertools.takewhile(lambda cell: cell.id != lesson.core[0][0], cells)
    kinds = [*(cell.cell_type for cell in opening), "code"]  # links, title, and the first cell of the lesson
    for _ in kinds:
        page.keyboard.press("Shift+Enter")
    page.locator(".jp-InputPrompt", has_text=f"[{kinds.count('code')}]:").wait_for(timeout=READY_S * 1000)
    page.get_by_role("link", name="All lessons").click()
    page.wait_for_url("**/course")
    assert page.locator(".go").inner_text().startswith("Continue")
    assert re.search(r"^1 of \d+ cells$", page.locator("li label").inner_text())
    page.locator("#machine", has_text=re.compile("eady")).wait_for(timeout=READY_S * 1000)
    assert all(url.startswith((lab.info["url"], "data:", "blob:")) for url in asked), asked
    shown = [item["name"] for item in page.request.get(lab.address("api/contents")).json()["content"]]
    assert sorted(shown) == ["data", "docs", "exercises", "notebooks", "runs"]
    assert page.request.get(lab.address(f"api/contents/solutions/{LESSONS[4].stem}_solutions.ipynb")).ok, "by its link"
    page.locator("li a", has_text="exercise").nth(4).click()
    page.locator(".lm-TabBar-tabLabel", has_text="04 exercises · distributed data").wait_for(timeout=READY_S * 1000)
    answer = page.request.post(
        lab.address("api/kernels"), headers={"X-XSRFToken": xsrf(page)}, data={"name": "python3"}
    )
    assert answer.status == 201, answer.text()
    kernel = answer.json()
    connection = json.loads((lab.runtime / f"kernel-{kernel['id']}.json").read_text())
    assert connection["transport"] == ("ipc" if sys.platform == "linux" else "tcp")
    without_token = page.context.browser.new_context()
    assert without_token.request.get(lab.info["url"] + "api/contents").status == 403
    assert without_token.request.get(lab.info["url"] + "course/machine").status == 403
    assert "/login" in without_token.request.get(lab.info["url"] + "course").url
    page.close()
    assert not lab.stop()
    assert {path: path.stat().st_mtime_ns for path in ROOT.glob("*") if path.is_file()} == before, (
        "files of the course were changed"
    )


def own_notebook(tmp_path: Path, *sources: str) -> str:
    """A notebook of these cells, in the folder that a lab serves."""
    (tmp_path / "course").mkdir()
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "course" / "own.ipynb")
    return "own.ipynb"


RESTART = "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"


def test_an_explorer_leaves_its_picture_when_its_kernel_is_gone(
    page: Any, start_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    """After a restart of the kernel or the server: the picture, and what to run, where JupyterLab alone would say
    'model not found'. Until then, only the controls."""
    served = f"--ServerApp.root_dir={tmp_path / 'course'}", "--expose-app-in-browser"
    notebook = own_notebook(tmp_path, "from course_utils import explore\nexplore.fsdp()")
    lab = start_lab(*served)
    check(run_all(page, lab, notebook))
    live, still = page.locator("svg[role=img]"), page.locator(".course-still figure img")
    live.wait_for(timeout=READY_S * 1000)
    assert still.count() == 1 and not still.is_visible()
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")
    page.evaluate(RESTART)
    still.wait_for(timeout=READY_S * 1000)
    assert not live.is_visible() and page.get_by_text("These controls ended with their kernel").is_visible()
    page.goto("about:blank")
    assert not lab.stop()
    lab = start_lab(*served)
    page.goto(lab.address(f"lab/tree/{notebook}"))
    still.wait_for(timeout=READY_S * 1000)
    error = page.get_by_text("model not found")
    error.wait_for(state="attached")
    assert not error.is_visible() and page.get_by_text("These controls ended with their kernel").is_visible()
    page.screenshot(path=str(ROOT / "artifacts" / "explorer_without_its_kernel.png"))
    page.close()
    assert not lab.stop()


def test_a_launch_whose_kernel_is_gone_says_that_it_ended(
    page: Any, start_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    """Nobody can update its display any more, so the page itself says so, a while after the last update."""
    notebook = own_notebook(tmp_path, "%load_ext course_utils", "%%ranks 2\nimport time\ntime.sleep(600)")
    lab = start_lab(f"--ServerApp.root_dir={tmp_path / 'course'}", "--expose-app-in-browser")
    page.goto(lab.address(f"lab/tree/{notebook}"))
    page.wait_for_function(
        "() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=READY_S * 1000,
    )
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    was, ended = page.locator(".course-was"), page.locator(".course-is")
    was.filter(has_text="2 s · running").wait_for(timeout=READY_S * 1000)
    assert was.is_visible() and not ended.is_visible()
    later = "() => document.getAnimations().filter(a => a.animationName?.startsWith('course-')).map(a => a.finish())"
    page.evaluate(later)
    was.filter(has_text="4 s · running").wait_for()
    assert was.is_visible() and not ended.is_visible(), "an update begins to wait anew"
    page.evaluate(RESTART)
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )
    page.evaluate(later)
    ended.wait_for()
    assert not was.is_visible() and "this launch ended with it: run the cell again" in ended.inner_text()
    page.screenshot(path=str(ROOT / "artifacts" / "launch_without_its_kernel.png"))
    page.close()
    assert not lab.stop()


def xsrf(page: Any) -> str:
    return str(next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "_xsrf"))


EXPLORERS = {  # a cell; a box or a menu, and what is typed or chosen there; what the picture then says
    "bits": ("number", "70000", "70000 as 70144"),
    "buckets": ("bucket size (MiB)", "500", "1 bucket of"),
    "checkpoints": ("save every (min)", "240", "every 4 h loses"),
    "deadlock": ("step", "5", "Nothing has moved since step 1"),
    "fsdp": ("blocks", "8", "at most 0.5 in forward"),
    "links": ("batch (sequences)", "1", "So few outputs make it less"),
    "loader": ("workers", "3", "3 workers are just enough"),
    "loss_scale": ("loss scale 2^", "16", "Times 2^16, 0.025% become zero"),
    "memory": ("GPUs", "24", "In a step it sends 28.8 GB"),
    "recompute": ("segments", "24", "48 layers in 24 segments: 7% of the memory"),
    "ring": ("ranks", "8", "In all 14 steps"),
    "samples": ("images", "9", "Each epoch has 3 extra copies"),
    "scaling": ("GPUs", "128", "On 128 GPUs the same job"),
    "schedules": ("micro-batches", "16", "57 times"),
    "staleness": ("trainers", "8", "8 trainers, learning rate 0.02"),
    "time_to_accuracy": ("GPUs", "64", "On 64 GPUs batch 512"),
}


def put(output: Any, label: str, words: str) -> None:
    """Type into the box of this label, or choose from its menu."""
    menu = output.get_by_role("combobox", name=label, exact=True)
    if menu.count():
        menu.select_option(words)
        return
    box = output.get_by_role("spinbutton", name=label).or_(output.get_by_role("textbox", name=label))
    box.fill(words)
    box.press("Enter")


def pictures(page: Any, picture: Any, output: Any, name: str) -> None:
    """An explorer in JupyterLab's light and dark themes, at 1280 and 700 pixels: kept in artifacts/ to be seen, and
    nothing of it may be cut off. At 700 pixels the sidebar is closed for the picture, as people do."""
    run = "command => window.jupyterapp.commands.execute(...command)"
    for theme in ("Light", "Dark"):
        page.evaluate(run, ["apputils:change-theme", {"theme": f"JupyterLab {theme}"}])
        for width, sidebar in ((1280, True), (700, True), (700, False)):
            page.set_viewport_size({"width": width, "height": 800})
            if not sidebar:
                page.evaluate(run, ["application:toggle-left-area"])
            page.wait_for_timeout(800)
            if sidebar == (width == 1280):
                page.screenshot(path=str(ROOT / "artifacts" / f"explorer_{name}_{theme.lower()}_{width}.png"))
            card, inside = picture.locator("..").bounding_box(), output.bounding_box()  # a narrow card scrolls
            assert card["x"] + card["width"] <= inside["x"] + inside["width"] + 1, f"cut off at {width} pixels"
        page.evaluate(run, ["application:toggle-left-area"])
    page.set_viewport_size({"width": 1280, "height": 800})


@pytest.mark.parametrize(  # one with a button that runs stands for all in `make test`
    "name", [name if name == "fsdp" else pytest.param(name, marks=pytest.mark.slow) for name in EXPLORERS]
)
def test_an_explorer_answers_to_its_controls(
    name: str, page: Any, start_lab: Callable[..., Lab], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing shows before the guess, then every control moves the picture, buttons run and can be stopped, and nothing
    is red. Screenshots at two settings are kept in artifacts/."""
    from playwright.sync_api import expect

    from course_utils import explore

    label, typed, words = EXPLORERS[name]
    notebook = own_notebook(tmp_path, f"from course_utils import explore\nexplore.{name}()")
    lab = start_lab(f"--ServerApp.root_dir={tmp_path / 'course'}", "--expose-app-in-browser")
    page.set_viewport_size({"width": 1280, "height": 800})
    check(run_all(page, lab, notebook))
    output = page.locator(".jp-OutputArea-output").first
    picture, said = output.locator("svg[role=img]"), output.locator("p[role=status]").first
    picture.wait_for(timeout=READY_S * 1000)
    guess = output.get_by_role("combobox", name="Guess")
    if guess.count():
        assert "guess" in said.inner_text()
        guess.select_option(index=1)
        said.filter(has_not_text="guess first").wait_for()
        assert guess.is_disabled()
    asked = getattr(explore, name)().view()
    assert picture.get_attribute("aria-label") == asked.summary, "drawing the sliders changed a setting"
    (ROOT / "artifacts").mkdir(exist_ok=True)
    pictures(page, picture, output.first, f"{name}_first")
    if name == "fsdp":  # a whole number, for which 2.5 is neither 25 nor nothing
        put(output, label, "2.5")
        output.get_by_text("you typed 2.5").wait_for()
        expect(output.get_by_role("spinbutton", name=label)).to_have_value("2")
    before = picture.get_attribute("aria-label")
    put(output, label, typed)
    said.filter(has_text=words).wait_for()
    assert picture.get_attribute("aria-label") != before
    handle = output.locator(".noUi-handle").first
    ends = ("Home", "End", "Home") if handle.count() else ()
    for key in ends[bool(ends) and handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemin") :]:
        before = picture.get_attribute("aria-label")
        handle.press(key)
        expect(picture).not_to_have_attribute("aria-label", before, timeout=30_000)
    if handle.count():  # the picture follows while the mouse still holds the handle
        handle.scroll_into_view_if_needed()
        before, where = picture.get_attribute("aria-label"), handle.bounding_box()
        page.mouse.move(where["x"] + where["width"] / 2, where["y"] + where["height"] / 2)
        page.mouse.down()
        page.mouse.move(where["x"] + 90, where["y"] + where["height"] / 2, steps=5)
        expect(picture).not_to_have_attribute("aria-label", before, timeout=30_000)
        page.mouse.up()
    put(output, label, typed)  # what the buttons run
    for i in range(output.get_by_role("button", name="about").count()):
        button = output.get_by_role("button", name="about").nth(i)
        start = time.perf_counter()
        button.click()
        output.get_by_role("button", name="Stop").wait_for()
        output.get_by_role("button", name="Stop").click()
        output.get_by_text("stopped.").wait_for(timeout=30_000)
        button.click()
        output.get_by_text("drawn in the picture above").wait_for(timeout=90_000)
        with capsys.disabled():
            print(f"\n  explore.{name}: button {i} twice, stopped once: {time.perf_counter() - start:.1f} s")
    pictures(page, picture, output.first, name)
    assert page.locator(".jp-Dialog, .jp-toast-message, .Toastify__toast").count() == 0, "something popped up"
    check(page.evaluate(STATE))
    page.close()
    assert not lab.stop()
