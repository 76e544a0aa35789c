"""The generator that writes exercises from solutions, on made-up notebooks."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from conftest import load_tool

exercises = load_tool("exercises")

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
        cell = nbformat.v4.new_code_cell(source, id=f"code-{i}", execution_count=3, outputs=[nbformat.v4.new_output("stream", text="hello")])
        cells.append(cell)
    return nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}, "widgets": {"x": 1}}
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "solutions").mkdir()
    nbformat.write(solution(SOURCE, "print(answer)"), tmp_path / "solutions" / "04_shards.ipynb")
    return tmp_path


def test_blocks_become_blanks_and_outputs_go(root: Path) -> None:
    assert exercises.generate(root)
    result = nbformat.read(root / "exercises" / "04_shards.ipynb", as_version=4)
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
    target = root / "exercises" / "04_shards.ipynb"
    written = target.read_text()
    target.write_text(written.replace("your code", "my code"))
    assert exercises.generate(root, check=True) and "my code" in target.read_text()
    exercises.generate(root)
    assert target.read_text() == written, "the same solution gives the same bytes"
    stale = root / "exercises" / "03_gone.ipynb"
    stale.write_text(written)
    assert exercises.generate(root, check=True) == ["exercises/03_gone.ipynb has no solution"] and stale.exists()
    exercises.generate(root)
    assert not stale.exists()


def test_a_tagged_cell_stands_in_the_solution_only() -> None:
    notebook = solution(SOURCE, "print('why this works')")
    notebook.cells[2].metadata["tags"] = ["solution"]
    assert [cell.source for cell in exercises.exercise_from(notebook, "04_shards.ipynb").cells] == ["# Shards", BLANKED]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("### BEGIN SOLUTION\nx = 1", "without ### END"),
        ("x = 1\n### END SOLUTION", "line 2: ### END SOLUTION without its partner"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "line 2: ### BEGIN SOLUTION without its partner"),
        ("x = 1  ### BEGIN SOLUTION\n### END SOLUTION", "stands alone"),
        ("print(1)", "no solution block"),
    ],
)
def test_a_solution_that_cannot_be_turned_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(exercises.GeneratorError, match=complaint):
        exercises.exercise_from(solution(source), "04_shards.ipynb")
