"""The first page of `make lab`, and the folder that the notebooks are copied to. tests/test_browser.py sees both in a
browser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

from course_utils.lab import FOLDER, page, server, start
from course_utils.lessons import Lesson
from course_utils.progress import Done

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


def test_notebooks_are_brought_and_what_the_learner_changed_stays(tmp_path: Path) -> None:
    start.bring_notebooks(tmp_path / "mine")
    changed, gone = (
        tmp_path / "mine" / path for path in (LESSON_4, LESSON_4.replace("04_distributed_data", "03_data"))
    )
    changed.write_text("my notes")
    gone.unlink()
    start.bring_notebooks(tmp_path / "mine")
    assert changed.read_text() == "my notes" and gone.exists()
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"notebooks", "exercises", "solutions"}
    files = {str(path.relative_to(tmp_path / "mine")) for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert {"notebooks/glossary.md", "notebooks/take_home/04_ddp.py"} <= files
    with pytest.raises(SystemExit, match="couldn't put the notebooks into .*; name another folder"):
        start.bring_notebooks(changed / "x")


def test_the_folder_that_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", "")
    monkeypatch.chdir(tmp_path)
    assert start.course_folder(None) == ROOT, "a checkout opens itself"
    assert start.course_folder("mine") == tmp_path / "mine" and (tmp_path / "mine" / LESSON_4).exists()
    monkeypatch.setattr(start, "CARRIED", ROOT)  # as where it was installed from a wheel
    monkeypatch.setenv("COURSE_HOME", "")
    assert start.course_folder(None) == tmp_path / FOLDER
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    assert start.course_folder(None) == tmp_path / "home"
    monkeypatch.chdir(tmp_path / "mine")
    assert start.course_folder(None) == tmp_path / "mine", "once more, from within"
