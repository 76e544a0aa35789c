"""The site that `make site` writes: pages that can be read without a server's help, search, and explorers that the
course's own code moves in the browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT, load_tool

from course_utils import explore
from course_utils.explore import in_page
from course_utils.lab.lessons import lessons

build = load_tool("site/build")
LESSON, CALLS = "03", ("links(gpus=8)",)  # the quickest to run, and its explorers
ONE_BY_ONE = pytest.mark.xdist_group("site")  # so that one site does for all
BY_NUMBER = {lesson.number: lesson for lesson in lessons(ROOT)}


def make(out: Path, kept: Path, *chosen: str, **env: str) -> str:
    """Build a site; returns what was said."""
    command = [sys.executable, ROOT / "tools" / "site" / "build.py", *chosen, "--out", out]
    done = subprocess.run(
        command, env={**os.environ, "COURSE_SITE_KEPT": str(kept), **env}, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING: " not in done.stderr, done.stderr  # of Sphinx
    return done.stdout


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(os.environ.get("COURSE_SITE_KEPT") or tmp_path_factory.mktemp("kept"))  # lessons that have run already


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, kept: Path) -> Path:
    """The site of one lesson."""
    out = tmp_path_factory.mktemp("built") / "site"
    said = make(out, kept, LESSON)
    if "explorers stay pictures" in said:
        pytest.skip(said)
    return out


class Visit:
    """A page of a site in chromium, and what it asked for or complained about."""

    def __init__(self, browser: Any, folder: Path, width: int = 1280, scheme: str = "light", scripts: bool = True):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.home = f"http://127.0.0.1:{self.server.server_port}"
        size = {"width": width, "height": 844 if width < 600 else 900}
        self.page = browser.new_context(viewport=size, color_scheme=scheme, java_script_enabled=scripts).new_page()
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", self._asked)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("response", lambda got: got.status >= 400 and self.complaints.append(f"{got.status} {got.url}"))

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.elsewhere.append(request.url)

    def open(self, path: str) -> Any:
        self.page.goto(f"{self.home}/{path}")
        return self.page

    def close(self) -> None:
        assert not self.elsewhere, "the page asked other servers"
        assert not self.complaints
        self.page.context.close()
        self.server.shutdown()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"] * (os.geteuid() == 0))
        yield started
        started.close()


def barriers(page: Any, kept: Path) -> list[Any]:
    """What of a page somebody who can't see, or has no mouse, would run into, by axe: serious findings alone."""
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    page.evaluate((kept / "npm" / "node_modules" / "axe-core" / "axe.min.js").read_text())
    found = page.evaluate("axe.run().then((told) => told.violations.map((v) => [v.id, v.impact, v.nodes[0].html]))")
    return [violation for violation in found if violation[1] in ("serious", "critical")]


def moved(page: Any, box: Any, about: dict[str, Any]) -> int:
    """Move each control of an explorer; each time the page must draw what Python draws. Returns how many moved."""
    if "question" in about:
        settings = box.locator("fieldset.explorer-settings")
        assert settings.evaluate("it => it.disabled"), "the question comes first"
        guess, told = list(about["question"]["told"].items())[0]
        assert box.locator(".explorer-ask button").is_disabled(), "nothing is chosen yet"
        box.locator(".explorer-ask select").select_option(index=1)
        box.locator(".explorer-ask button").click()
        assert box.locator(".explorer-ask b").first.inner_html() == page.evaluate(
            "words => { const it = document.createElement('b'); it.innerHTML = words; return it.innerHTML; }", told
        ), guess
    for summary in box.locator(".explorer-settings details summary").all():
        summary.click()
    values = {control["name"]: control["value"] for control in about["controls"]}
    count = 0
    for control, row in zip(about["controls"], rows(box, about), strict=True):
        if control["only_with"] and not values[control["only_with"]]:
            assert row.locator("input").first.is_disabled()
            continue
        if control["kind"] == "menu":
            value: Any = (values[control["name"]] + 1) % len(control["choices"])
            row.locator("select").select_option(index=value)
        elif control["kind"] == "switch":
            value = not values[control["name"]]
            row.locator("input").set_checked(value)
        else:
            value = "70000" if control["kind"] == "number in bits" else next_number(control, values[control["name"]])
            row.locator("input").first.fill(str(value))
            row.locator("input").first.press("Enter")
        drawn = in_page.drawn(about["call"], {**values, control["name"]: value})
        values = drawn["values"]
        shown(page, box, drawn)
        count += 1
    return count


def rows(box: Any, about: dict[str, Any]) -> list[Any]:
    """The controls' places on the page, in their order: those behind *more settings* come last there."""
    order = [i for more in (False, True) for i, c in enumerate(about["controls"]) if c["more"] == more]
    return [box.locator(".explorer-control").nth(order.index(i)) for i in range(len(order))]


def next_number(control: dict[str, Any], value: float) -> float:
    """A number that can be, and isn't this one."""
    near = (value + 1, value - 1, control["high"], control["low"])
    return next(n for n in near if control["low"] <= n <= control["high"] and n != value)


@ONE_BY_ONE
@pytest.mark.browser
def test_a_lesson_can_be_read_searched_and_moved(site: Path, kept: Path, browser: Any) -> None:
    visit = Visit(browser, site, 390)
    name = Path(BY_NUMBER[LESSON].path).stem
    page = visit.open(f"{name}.html")
    assert page.locator("h1").inner_text().startswith(f"{LESSON} · ")
    assert page.evaluate("document.documentElement.scrollWidth") == 390, "the page is wider than a phone"
    calls = [in_page.explorer(call) for call in CALLS]
    boxes = page.locator(".explorer")
    assert boxes.count() == len(calls)
    for i, explorer in enumerate(calls):
        assert moved(page, boxes.nth(i), in_page.described(explorer)) == len(explorer.controls)
    fold = page.locator("details:not(.explorer details)").first
    fold.locator("summary").first.click()
    assert fold.evaluate("it => it.open")
    assert not barriers(page, kept)
    page = visit.open("search.html?q=scatter")
    page.wait_for_selector(f"#search-results a[href*='{name}']", timeout=20_000)
    visit.close()


@ONE_BY_ONE
@pytest.mark.browser
def test_what_goes_wrong_is_said_and_goes_away(site: Path, browser: Any) -> None:
    """A download that fails is tried again; a value that can't be is said until there's a better one; of several moves
    at once the last counts, and of bits all."""
    visit = Visit(browser, site)
    visit.page.route("**/course.zip", lambda route: route.fulfill(status=404))
    page = visit.open("explorers.html")
    memory, bits = (page.locator(".explorer").nth(list(explore.__all__).index(name)) for name in ("memory", "bits"))
    for box in (memory, bits):
        box.locator(".explorer-ask select").select_option(index=1)
        box.locator(".explorer-ask button").click()
    gpus = memory.locator("input[type=number]").nth(1)
    gpus.fill("4000")
    gpus.press("Enter")
    assert gpus.input_value() == "1024"
    page.wait_for_function("box => /didn't load here/.test(box.innerText)", arg=memory.element_handle(), timeout=60_000)
    page.unroute("**/course.zip")
    for count in (16, 32, 64):
        gpus.fill(str(count))
        gpus.press("Enter")
    shown(page, memory, in_page.drawn("memory()", values_of("memory", gpus=64)))
    assert memory.locator(".explorer-note").inner_text() == ""
    assert bits.locator(".explorer-bits button").count() == 16, "before anything moves"
    for place in (0, 15):
        bits.locator(".explorer-bits button").nth(place).click()
    flipped = in_page.drawn("bits()", values_of("bits"), flipped=0)
    shown(page, bits, in_page.drawn("bits()", flipped["values"], flipped=15))
    text = bits.locator("input[type=text]")
    text.fill("seven")
    text.press("Enter")
    page.wait_for_function("box => /something like/.test(box.innerText)", arg=bits.element_handle(), timeout=20_000)
    text.fill("7")
    text.press("Enter")
    shown(page, bits, in_page.drawn("bits()", {**flipped["values"], "number": "7"}))
    assert bits.locator(".explorer-note").inner_text() == ""
    visit.complaints = [words for words in visit.complaints if "course.zip" not in words]
    visit.close()


def values_of(name: str, **changed: Any) -> dict[str, Any]:
    """An explorer's settings as a page has them."""
    about = in_page.described(getattr(explore, name)())
    return {control["name"]: control["value"] for control in about["controls"]} | changed


def shown(page: Any, box: Any, drawn: dict[str, Any]) -> None:
    """Wait until an explorer shows this picture."""
    page.wait_for_function(
        "([box, svg]) => { const it = document.createElement('div'); it.innerHTML = svg;"
        " return box.querySelector('.explorer-picture').innerHTML === it.innerHTML; }",
        arg=[box.element_handle(), drawn["svg"]],
        timeout=60_000,
    )


@ONE_BY_ONE
@pytest.mark.browser
def test_without_scripts_the_pictures_stay(site: Path, browser: Any) -> None:
    visit = Visit(browser, site, scripts=False)
    page = visit.open(f"{Path(BY_NUMBER[LESSON].path).stem}.html")
    assert page.locator(".explorer-picture svg").count() == len(CALLS) and page.locator(".explorer select").count() == 0
    assert page.locator(".explorer-said").first.text_content()  # far below, it isn't laid out yet
    visit.close()


@ONE_BY_ONE
def test_the_words_of_a_lesson_may_change_without_a_run(kept: Path, site: Path, tmp_path: Path) -> None:
    said = make(tmp_path / "again", kept, LESSON)
    assert f"{LESSON}: as it ran before" in said
    lesson = BY_NUMBER[LESSON]
    notebook = nbformat.read(ROOT / lesson.path, as_version=4)
    before = build.digest(lesson, notebook)
    text = next(cell for cell in notebook.cells if cell.cell_type == "markdown")
    text.source += " More words."
    assert build.digest(lesson, notebook) == before
    code = next(cell for cell in notebook.cells if cell.cell_type == "code")
    code.source += "\n1 + 1"
    assert build.digest(lesson, notebook) != before
    assert any(path.parent.name == f"lesson_{LESSON}" for path in build.dependencies(lesson))


@ONE_BY_ONE
def test_pages_are_light_and_complete(site: Path) -> None:
    """Pictures are files, links lead somewhere, words have their sentence, and no page says where it was built."""
    name = Path(BY_NUMBER[LESSON].path).stem
    page = (site / f"{name}.html").read_text()
    assert len(page) < 400_000 and "data:image/png" not in page
    pictures = set(build.re.findall(r"src='(images/[^']+)'", page))
    assert pictures and all((site / picture).exists() for picture in pictures)
    assert page.count("<h1") == 1 and "<h2>Deeper" in page and "<h3>" in page
    assert "The numbers on this page were made on" in page and (site / "notebooks" / f"{name}.ipynb").exists()
    assert "course-term" in page and "data-sentence=" in page
    for path in site.glob("*.html"):
        text = path.read_text()
        assert str(ROOT) not in text and str(Path.home()) not in text, path
        for link in build.re.findall(r'href="([^"#:]+)(?:#[^"]*)?"', text):
            target = site / link.partition("?")[0]
            known = build.re.fullmatch(r"\d\d_\w+\.html", target.name)
            assert target.exists() or known, (path.name, link)  # of a part, other lessons aren't there
    solution = nbformat.read(ROOT / BY_NUMBER[LESSON].solutions_path, as_version=4)
    answers = [cell.source for cell in solution.cells if cell.source.startswith("%%exercise")]
    exercises = (site / f"{name}_exercises.html").read_text()
    assert "your code here" in exercises and len(answers) > 3, "the exercises, not the answers"


@ONE_BY_ONE
def test_without_npm_the_site_says_what_it_lacks(site: Path, kept: Path, tmp_path: Path) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("git", "nvidia-smi"):
        if found := shutil.which(name):
            (place / name).symlink_to(found)
    said = make(tmp_path / "site", kept, LESSON, PATH=str(place))
    assert "explorers stay pictures on this site: that needs npm" in said
    page = (tmp_path / "site" / f"{Path(BY_NUMBER[LESSON].path).stem}.html").read_text()
    assert "explorers.js" not in page and "class='explorer-picture'><svg" in page


ALONE = """
import sys
from importlib.abc import MetaPathFinder
class Elsewhere(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "course_utils"}:
            raise ModuleNotFoundError(f"a browser has no {name}", name=name)
sys.meta_path.insert(0, Elsewhere())
"""


def test_a_folder_that_is_no_site_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    command = [sys.executable, ROOT / "tools" / "site" / "build.py", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "something in it that is no site" in done.stderr
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_links_lead_home(tmp_path: Path) -> None:
    """With an address files of the course are there, without one beside the pages; pages are pages in both."""
    pages = "[a](places.md#x) [b](../notebooks/04_distributed_data_parallel.ipynb)"
    text = f"{pages} [c](../data/slurm) [d](../LICENSE) [e](#y)"
    at_home = build.Pages(tmp_path / "a", tmp_path / "b", "https://github.com/one/course").linked(text, "docs")
    blob = "https://github.com/one/course"
    begin = "[a](places.md#x) [b](04_distributed_data_parallel.ipynb) "
    assert (
        at_home
        == f'{begin}<a href="{blob}/tree/main/data/slurm">c</a> <a href="{blob}/blob/main/LICENSE">d</a> [e](#y)'
    )
    beside = build.Pages(tmp_path / "c", tmp_path / "d", "")
    assert beside.linked(text, "docs") == f'{begin}c <a href="files/LICENSE">d</a> [e](#y)'
    assert (tmp_path / "d" / "files" / "LICENSE").exists()
    html_ = '<a href="../exercises/04_distributed_data_parallel_exercises.ipynb">x</a> <a href="https://a.b/c.md">y</a>'
    assert beside.linked(html_).startswith('<a href="04_distributed_data_parallel_exercises.html">x')


def test_explorers_import_nothing_that_a_browser_lacks() -> None:
    """They're pure Python: with nothing but the standard library they draw the same."""
    done = subprocess.run([sys.executable, "-c", ALONE + build.TRACE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert build.shipped() and not [
        path for path in build.shipped() if path.suffix not in (".py", ".json", ".toml", ".gz")
    ]
    size = sum(path.stat().st_size for path in build.shipped())
    assert size < 6e6, f"{size / 1e6:.1f} MB of the course go into each reader's browser"


@pytest.mark.parametrize("call", [*(f"{name}()" for name in explore.__all__), "scaling(money=True)"])
def test_a_page_draws_what_the_notebook_draws(call: str) -> None:
    explorer = in_page.explorer(call)
    about = json.loads(json.dumps(in_page.described(explorer)))
    values = {control["name"]: control["value"] for control in about["controls"]}
    assert json.loads(json.dumps(in_page.drawn(about["call"], values)))["svg"] == about["svg"] == explorer.view().svg
    assert {control["kind"] for control in about["controls"]} <= {"menu", "switch", "number", "number in bits"}
    if explorer.question is not None:
        assert about["before"] == explorer.view(answered=False).svg
        assert all(words.strip() for words in about["question"]["told"].values())


def test_what_cannot_be_is_a_sentence() -> None:
    assert "from 1 to 1024" in in_page.drawn("memory()", {"gpus": 0})["error"]
    assert "take a multiple of 2" in in_page.drawn("memory()", {"gpus": 9, "tensor": 1})["summary"]
    flipped = in_page.drawn("bits()", {"format": 1, "number": "1"}, flipped=0)
    assert flipped["values"]["number"] == "-1.0" and flipped["bits"][0] == (True, "sign")
    assert "something like" in in_page.drawn("bits()", {"number": "x"})["error"]


@ONE_BY_ONE
@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(3600)
@pytest.mark.alone
def test_the_whole_site(tmp_path: Path, kept: Path, browser: Any) -> None:
    """Each page opens on a phone and on a desk, light and dark, and asks nobody else; each explorer answers to each of
    its controls as in Python."""
    out = tmp_path / "site"
    assert "failed" not in make(out, kept)
    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        visit = Visit(browser, out, width, scheme)
        for path in sorted(out.glob("*.html")):
            page = visit.open(path.name)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
            assert not barriers(page, kept), (path.name, width, scheme)
        if (width, scheme) in ((1280, "light"), (390, "dark")):
            calls = []
            for path in [*sorted(out.glob("[0-9][0-9]_*.html")), out / "explorers.html"]:
                page = visit.open(path.name)
                for box in page.locator(".explorer").all():
                    call = json.loads(box.locator("script").text_content())["call"]
                    calls += [call] if path.name == "explorers.html" else []
                    if path.name == "explorers.html" or scheme == "light":
                        assert moved(page, box, in_page.described(in_page.explorer(call))), (path.name, call)
            assert len(calls) == len(explore.__all__)
            for words in ("no_sync", "all-reduce"):
                page = visit.open(f"search.html?q={words}")
                page.wait_for_selector("#search-results li a", timeout=20_000)
        visit.close()
