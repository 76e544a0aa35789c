"""The generator that writes exercises from solutions, on made-up notebooks."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from conftest import ROOT, load_tool

exercises = load_tool("exercises")
navigation = load_tool("navigation")

SOURCE = """%%exercise 04.1
def shard(n: int, rank: int, world: int) -> list[int]:
    \"\"\"Indices of this rank.\"\"\"
    ### BEGIN SOLUTION
    size = n // world

    return list(range(rank, n, world))
    ### END SOLUTION


answer = shard(10, 0, 2)
### BEGIN SOLUTION
answer = answer[:2]
### END SOLUTION"""

BLANKED = """%%exercise 04.1
def shard(n: int, rank: int, world: int) -> list[int]:
    \"\"\"Indices of this rank.\"\"\"
    ...  # your code here


answer = shard(10, 0, 2)
...  # your code here"""


def solution(*sources: str) -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_markdown_cell("# Shards", id="title")]
    for i, source in enumerate(sources):
        cell = nbformat.v4.new_code_cell(
            source, id=f"code-{i}", execution_count=3, outputs=[nbformat.v4.new_output("stream", text="hello")]
        )
        cells.append(cell)
    return nbformat.v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "widgets": {"x": 1},
        },
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "solutions").mkdir()
    nbformat.write(solution(SOURCE, "print(answer)"), tmp_path / "solutions" / "04_shards_solutions.ipynb")
    return tmp_path


def test_blocks_become_blanks_and_outputs_go(root: Path) -> None:
    assert exercises.generate(root)
    result = nbformat.read(root / "exercises" / "04_shards_exercises.ipynb", as_version=4)
    assert [cell.source for cell in result.cells] == ["# Shards", BLANKED, "print(answer)"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in result.cells if cell.cell_type == "code")
    assert [cell.id for cell in result.cells] == ["title", "code-0", "code-1"]
    assert "widgets" not in result.metadata


def test_a_blank_is_python(root: Path) -> None:
    compile(BLANKED.split("\n", 1)[1], "exercise", "exec")


def test_check_finds_an_edited_a_missing_and_a_stale_exercise(root: Path) -> None:
    assert exercises.generate(root, check=True), "missing"
    assert not (root / "exercises").exists(), "check writes nothing"
    exercises.generate(root)
    assert exercises.generate(root, check=True) == []
    target = root / "exercises" / "04_shards_exercises.ipynb"
    written = target.read_text()
    target.write_text(written.replace("your code", "my code"))
    assert exercises.generate(root, check=True) and "my code" in target.read_text()
    exercises.generate(root)
    assert target.read_text() == written, "the same solution gives the same bytes"
    stale = root / "exercises" / "03_gone_exercises.ipynb"
    stale.write_text(written)
    assert (
        exercises.generate(root, check=True) == ["exercises/03_gone_exercises.ipynb has no solution"] and stale.exists()
    )
    exercises.generate(root)
    assert not stale.exists()


def test_a_tagged_cell_stands_in_the_solution_only() -> None:
    notebook = solution(SOURCE, "print('why this works')")
    notebook.cells[2].metadata["tags"] = ["solution"]
    assert [cell.source for cell in exercises.exercise_from(notebook, "04_shards_solutions.ipynb").cells] == [
        "# Shards",
        BLANKED,
    ]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("### BEGIN SOLUTION\nx = 1", "without ### END"),
        ("x = 1\n### END SOLUTION", "line 2: ### END SOLUTION without its partner"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "line 2: ### BEGIN SOLUTION without its partner"),
        ("x = 1  ### BEGIN SOLUTION\n### END SOLUTION", "must be alone"),
        ("print(1)", "no solution block"),
    ],
)
def test_a_solution_that_cannot_be_turned_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(exercises.GeneratorError, match=complaint):
        exercises.exercise_from(solution(source), "04_shards_solutions.ipynb")


def test_every_notebook_links_to_its_neighbours() -> None:
    """The first and the last lesson have one neighbour; a link leads to a file that's there."""
    known = navigation.lessons(ROOT)
    for before, lesson, after in zip([None, *known], known, [*known[1:], None], strict=False):
        for path in filter(None, (lesson.path, lesson.exercises_path, lesson.solutions_path)):
            cells = nbformat.read(ROOT / path, as_version=4).cells
            assert sum("navigation" in cell.metadata.get("tags", ()) for cell in cells) == 2, path
            for cell in (cells[0], cells[-1]):
                assert cell.metadata.tags == ["navigation"], path
                links = re.findall(r"\]\(([^)]+)\)", cell.source)
                near = [link for link in links if "://" not in link]
                targets = [(ROOT / path).parent.joinpath(link).resolve() for link in near]
                assert len(targets) >= 1 and all(target.exists() for target in targets), f"{path}: {links}"
            neighbours = {(ROOT / near.path).resolve() for near in (before, after) if near}
            if path == lesson.path:
                assert {t for t in targets if t.parent.name == "notebooks"} == neighbours, path


def test_links_are_written_once_and_checked(tmp_path: Path) -> None:
    for folder, name in (("notebooks", "04_a"), ("notebooks", "05_b"), ("solutions", "04_a_solutions")):
        (tmp_path / folder).mkdir(exist_ok=True)
        nbformat.write(solution("x = 1"), tmp_path / folder / f"{name}.ipynb")
    assert len(navigation.generate(tmp_path, check=True)) == 3 == len(navigation.generate(tmp_path))
    assert navigation.generate(tmp_path, check=True) == []
    cells = nbformat.read(tmp_path / "notebooks" / "04_a.ipynb", as_version=4).cells
    assert [cell.id for cell in cells] == ["navigation-top", "title", "code-0", "navigation-end"]
    assert cells[0].source == "[05 · Shards →](05_b.ipynb)"
    (tmp_path / "notebooks" / "05_b.ipynb").unlink()
    assert navigation.generate(tmp_path), "a neighbour is gone"


def test_a_notebook_opens_elsewhere_from_the_one_place_that_has_the_address(tmp_path: Path) -> None:
    """The links and the first cell of each notebook follow pyproject.toml."""
    for folder, name in (("notebooks", "04_a"), ("solutions", "04_a_solutions"), ("exercises", "04_a_exercises")):
        (tmp_path / folder).mkdir()
        nbformat.write(solution("%load_ext course_utils"), tmp_path / folder / f"{name}.ipynb")
    for home in ("https://github.com/one/course", "https://github.com/two/other.name"):
        (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "c"\n[project.urls]\nRepository = "{home}"\n')
        assert len(navigation.generate(tmp_path)) == 2 and navigation.generate(tmp_path, check=True) == []
        lesson, answers = (
            nbformat.read(tmp_path / path, as_version=4).cells
            for path in ("notebooks/04_a.ipynb", "solutions/04_a_solutions.ipynb")
        )
        colab = home.replace("github.com", "colab.research.google.com/github") + "/blob/main"
        assert f"[Colab]({colab}/notebooks/04_a.ipynb)" in lesson[0].source
        assert f"welcome?src={home}/blob/main/exercises/04_a_exercises.ipynb)" in answers[0].source
        assert [cell.id for cell in lesson] == [
            "navigation-top",
            "title",
            "bring-the-course",
            "code-0",
            "navigation-end",
        ]
        assert lesson[2].source.count(f" {home}/archive/main.zip ") == 1


def test_a_fork_publishes_without_a_change_of_its_own(tmp_path: Path) -> None:
    """Where no address is set, links and the cell are written for a branch that carries them, pinned to a commit; and
    taken out again, so that the next pull meets files that nobody has changed."""
    for folder, name in (("notebooks", "04_a"), ("solutions", "04_a_solutions"), ("exercises", "04_a_exercises")):
        (tmp_path / folder).mkdir()
        nbformat.write(solution("%load_ext course_utils"), tmp_path / folder / f"{name}.ipynb")
    navigation.generate(tmp_path)
    before = (tmp_path / "notebooks" / "04_a.ipynb").read_text()
    navigation.generate(tmp_path, publish=("https://github.com/fork/course", "0a1b2c3"))
    lesson = nbformat.read(tmp_path / "notebooks" / "04_a.ipynb", as_version=4).cells
    assert "github/fork/course/blob/published/notebooks/04_a.ipynb" in lesson[0].source
    assert " https://github.com/fork/course/archive/0a1b2c3.zip " in lesson[2].source
    navigation.generate(tmp_path)
    assert (tmp_path / "notebooks" / "04_a.ipynb").read_text() == before


def test_every_notebook_brings_the_course_before_it_needs_it() -> None:
    """As long as the course has no address, it can't, and nothing leads to one that isn't there."""
    address = navigation.repository(ROOT)
    assert not address or re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address)
    for path in sorted(ROOT.glob("*/[0-9][0-9]_*.ipynb")):
        first, second, *_ = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        if address:
            assert first.source == navigation.BRING.format(address=address, commit="main"), path
        assert (second if address else first).source.startswith("%load_ext course_utils"), path
        assert "OWNER/REPOSITORY" not in path.read_text(), path


def test_a_placeholder_is_no_address(tmp_path: Path) -> None:
    for folder, name in (("notebooks", "04_a"), ("solutions", "04_a_solutions")):
        (tmp_path / folder).mkdir()
        nbformat.write(solution("%load_ext course_utils"), tmp_path / folder / f"{name}.ipynb")
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "c"\n[project.urls]\nRepository = "{navigation.PLACEHOLDER}"\n'
    )
    navigation.generate(tmp_path)
    for path in tmp_path.glob("*/*.ipynb"):
        assert "github" not in path.read_text() and "colab" not in path.read_text()


def test_the_line_that_brings_the_course_only_acts_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    shell = SimpleNamespace(run_line_magic=lambda *words: asked.append(words))
    line = navigation.BRING.format(address="https://github.com/one/course", commit="main")
    exec(line, {"get_ipython": lambda: shell})
    assert asked == [], "it's here"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(line, {"get_ipython": lambda: shell})
    install = "install -q --no-deps https://github.com/one/course/archive/main.zip nvidia-ml-py"
    assert asked == [("pip", install)]
