"""The first page of `make lab`, and the folder that the notebooks are copied to. tests/test_browser.py sees both in a
browser."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from jupyterlab_server.config import get_federated_extensions

from course_utils.lab import FOLDER, page, server, start
from course_utils.lab.lessons import Lesson
from course_utils.lab.progress import Done

CORE = tuple((str(i), str(i)) for i in range(20))
LESSONS = [
    Lesson(n, f"Lesson {n} <&>", "Why `so`?", 45, f"notebooks/{n}.ipynb", CORE, (f"{n}.1",), f"exercises/{n}.ipynb", "")
    for n in ("00", "01", "02")
]
NEVER = {lesson.number: Done() for lesson in LESSONS}
LESSON_4 = "notebooks/04_distributed_data_parallel.ipynb"
WHOLE = Done(cells=20, claims=3, solved=("00.1",), last=5.0)


@pytest.mark.parametrize(
    ("done", "verb", "number"),
    [
        ({}, "Start", "00"),
        ({"01": Done(cells=3, last=9.0), "00": Done(cells=2, last=5.0)}, "Continue", "01"),
        ({"01": Done(last=9.0)}, "Continue", "01"),  # only its exercises so far
        ({"00": WHOLE}, "Next", "01"),
        ({"00": replace(WHOLE, cells=18)}, "Next", "01"),  # nearly all of it
        ({"00": replace(WHOLE, cells=17)}, "Continue", "00"),
        ({"02": WHOLE}, "Next", "00"),  # the last lesson first
        ({"00": WHOLE, "01": Done(), "02": Done()}, "Next", "01"),
        ({"01": replace(WHOLE, last=9.0)}, "Next", "00"),  # begun in the middle: what was left out comes before 02
        ({"00": Done(cells=3, last=2.0), "01": replace(WHOLE, last=9.0)}, "Continue", "00"),
        ({"00": WHOLE, "01": replace(WHOLE, last=9.0), "02": WHOLE}, "", ""),
    ],
)
def test_the_page_leads_on_from_where_one_was(done: dict[str, Done], verb: str, number: str) -> None:
    text = page.render(LESSONS, NEVER | done, lambda path: f"/base/lab/tree/{path}", "/base/course/machine")
    found = re.search(r'class="go" href="/base/lab/tree/notebooks/(\d\d)\.ipynb"><b>(\w+)', text)
    assert (found[2], found[1]) == (verb, number) if found else not verb
    assert ("every lesson" in text) == (not verb)


def test_the_page_says_what_is_done_in_words() -> None:
    done = NEVER | {"00": WHOLE, "01": Done(cells=3, claims=1, last=9.0)}
    text = page.render(LESSONS, done, lambda path: path, "machine")
    for words in (
        "20 of 20 cells",
        "solved",
        "3 claims seen",
        "1 claim seen",
        "3 of 20 cells",
        "1 exercise<",
        "finished",
    ):
        assert words in text, words
    assert "Lesson 00 &lt;&amp;&gt;" in text and "Why so?" in text and "{{" not in text
    assert not re.search(r"(src|href)=\"(https?:)?//", text), "nothing from elsewhere"


def test_a_server_without_the_lessons_says_how_to_get_them() -> None:
    text = page.render(LESSONS, NEVER, None, "machine")
    assert "python -m course_utils.lab" in text and "notebooks/00.ipynb" not in text


def test_where_the_server_finds_the_notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "elsewhere"))
    assert server.lessons_folder(tmp_path) is None
    start.bring_notebooks(tmp_path / FOLDER)
    assert server.lessons_folder(tmp_path) == Path(FOLDER)
    assert server.lessons_folder(tmp_path / FOLDER) == Path(".")
    monkeypatch.setenv("COURSE_HOME", str(ROOT))
    assert server.lessons_folder(tmp_path / "empty") is None, "not below what the server shows"


def test_jupyterlab_finds_our_extension_and_ctrl_c_asks_nothing(tmp_path: Path) -> None:
    """tests/test_browser.py sees both."""
    args = dict(argument[2:].split("=", 1) for argument in start.arguments(tmp_path, 8888, str(tmp_path)))
    assert args["ServerApp.answer_yes"] == "True"
    found = get_federated_extensions([args["LabApp.extra_labextensions_path"]])["course-lab"]
    script = Path(found["ext_path"]) / found["jupyterlab"]["_build"]["load"]
    assert 'window._JUPYTERLAB["course-lab"] = ' in script.read_text(), "under the name that JupyterLab asks for"


def test_notebooks_are_brought_and_what_the_learner_changed_stays(tmp_path: Path) -> None:
    start.bring_notebooks(tmp_path / "mine")
    changed, gone = (
        tmp_path / "mine" / path for path in (LESSON_4, LESSON_4.replace("04_distributed_data", "03_data"))
    )
    changed.write_text("my notes")
    gone.unlink()
    start.bring_notebooks(tmp_path / "mine")
    assert changed.read_text() == "my notes" and gone.exists()
    there = {path.name for path in (tmp_path / "mine").iterdir()}
    assert there == {"notebooks", "exercises", "solutions", "data", "docs", start.AS_BROUGHT}
    files = {str(path.relative_to(tmp_path / "mine")) for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert {"notebooks/glossary.md", "notebooks/take_home/04_ddp.py"} <= files
    with pytest.raises(SystemExit, match="couldn't put the notebooks into .*; name another folder"):
        start.bring_notebooks(changed / "x")


def test_copies_follow_the_course_until_somebody_changes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course, mine = tmp_path / "course", tmp_path / "mine"
    (course / "notebooks").mkdir(parents=True)
    for name in ("read", "run"):
        (course / f"notebooks/{name}.ipynb").write_text("old")
    monkeypatch.setattr(start, "COURSE", course)
    start.bring_notebooks(mine)
    (mine / "notebooks/run.ipynb").write_text("old, with my outputs")
    for name in ("read", "run"):
        (course / f"notebooks/{name}.ipynb").write_text("new")
    for damaged in ("", "[1]", '"x"'):
        start.bring_notebooks(mine)
        assert (mine / "notebooks/read.ipynb").read_text() == "new"
        assert (mine / "notebooks/run.ipynb").read_text() == "old, with my outputs"
        (mine / start.AS_BROUGHT).write_text(damaged)  # then nothing is known to be as it was brought


def test_links_work_in_the_copies_too(tmp_path: Path) -> None:
    start.bring_notebooks(tmp_path)
    for notebook in tmp_path.glob("*/*.ipynb"):
        words = "".join(line for cell in json.loads(notebook.read_text())["cells"] for line in cell["source"])
        for target in re.findall(r"\]\(([\w./-]+)", words):
            if re.search(r"\.(ipynb|md|py|toml)$", target) and not target.startswith("http"):
                assert (notebook.parent / target).exists(), f"{notebook.name}: {target}"


def test_the_folder_that_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    (clone / "notebooks").mkdir(parents=True)
    (clone / "notebooks" / "04_distributed_data_parallel.ipynb").touch()
    monkeypatch.setattr(start, "CHECKOUT", clone)
    monkeypatch.delenv("COURSE_HOME", raising=False)
    for folder in (tmp_path, clone, clone / "notebooks"):
        monkeypatch.chdir(folder)
        assert start.course_folder(None) == clone / FOLDER, "copies, so that git sees no change"
    assert (clone / FOLDER / LESSON_4).stat().st_size and "COURSE_HOME" not in os.environ, "runs stay the clone's"
    monkeypatch.chdir(clone / FOLDER)
    assert start.course_folder(None) == clone / FOLDER and "COURSE_HOME" not in os.environ, "once more, from within"
    monkeypatch.chdir(clone)
    assert start.course_folder(".") == clone, "its own notebooks, for whoever changes the course"
    assert not (clone / start.AS_BROUGHT).exists() and (clone / LESSON_4).stat().st_size == 0
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "scratch"))
    assert start.course_folder(None) == tmp_path / "scratch", "as where the clone is shared"
    monkeypatch.chdir(tmp_path)
    assert start.course_folder("mine") == tmp_path / "mine" and (tmp_path / "mine" / LESSON_4).exists()
    (tmp_path / "theirs").mkdir()
    assert start.course_folder(None, "theirs") == tmp_path / "theirs" and not any((tmp_path / "theirs").iterdir())
    monkeypatch.setattr(start, "CARRIED", ROOT)  # as where it was installed from a wheel
    monkeypatch.setenv("COURSE_HOME", "")
    assert start.course_folder(None) == tmp_path / FOLDER
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    assert start.course_folder(None) == tmp_path / "home"
    monkeypatch.chdir(tmp_path / "mine")
    assert start.course_folder(None) == tmp_path / "mine", "once more, from within"
