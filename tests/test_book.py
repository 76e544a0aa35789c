"""The pages that `make book` writes, for a made-up lesson that really runs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from conftest import load_tool

book = load_tool("book")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(book, "machine", lambda: "a <small> machine")
    monkeypatch.setattr(book.sys, "argv", ["book.py"])
    monkeypatch.setenv("COURSE_NOTEBOOK", "")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "glossary.md").write_text("# Words\n\n## world size\nThe number of ranks.\n")
    return tmp_path


def lesson(course: Path, name: str, source: str) -> None:
    text = nbformat.v4.new_markdown_cell(
        "# One & two\n\n[next](05_next.ipynb#why), [exercise](../exercises/04_made_up.ipynb),"
        " [world size](glossary.md#world-size), [program](programs/04_x.py), [paper](https://arxiv.org/abs/1)"
    )
    notebook = nbformat.v4.new_notebook(cells=[text, nbformat.v4.new_code_cell(source)])
    nbformat.write(notebook, course / "notebooks" / name)


def test_a_lesson_becomes_a_page_with_its_outputs(course: Path) -> None:
    lesson(course, "04_made_up.ipynb", "print('six times seven is', 6 * 7)")
    assert book.main() == 0
    page = (course / "book" / "04_made_up.html").read_text()
    assert "six times seven is 42" in page
    assert 'href="05_next.html#why"' in page and 'href="../exercises/04_made_up.ipynb"' in page
    assert 'href="glossary.html#world-size"' in page and 'href="https://arxiv.org/abs/1"' in page
    assert 'href="../notebooks/programs/04_x.py"' in page, "in the clone, which the book lies in"
    assert 'id="world-size"' in (course / "book" / "glossary.html").read_text()
    index = (course / "book" / "index.html").read_text()
    assert '<a href="04_made_up.html">One &amp; two</a>' in index and "a &lt;small&gt; machine" in index
    source = nbformat.read(course / "notebooks" / "04_made_up.ipynb", as_version=4)
    assert source.cells[1].outputs == [], "the notebook itself stays without outputs"


def test_what_is_not_in_the_book_is_at_the_repository_once_that_has_an_address(course: Path) -> None:
    for address, home in (("https://github.com/one/course", "https://github.com/one/course/blob/main"), ("", "..")):
        named = address or "https://github.com/OWNER/REPOSITORY"
        (course / "pyproject.toml").write_text(f'[project]\nname = "c"\n[project.urls]\nRepository = "{named}"\n')
        assert book.there("../exercises/04_made_up.ipynb") == f"{home}/exercises/04_made_up.ipynb"
        assert book.there("programs/04_x.py") == f"{home}/notebooks/programs/04_x.py"
        assert book.there("05_next.ipynb") == "05_next.html" and book.there("glossary.md") == "glossary.html"


def test_a_failing_lesson_fails_the_book_and_names_itself(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lesson(course, "04_made_up.ipynb", "1 / 0")
    assert book.main() == 1
    assert "04_made_up.ipynb: a cell failed" in capsys.readouterr().out
    assert not (course / "book" / "04_made_up.html").exists()
