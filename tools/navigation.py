"""Write the links at the top and at the end of every lesson and solution: to the lesson before and after, the
exercises, the solutions. `--check` writes nothing, and fails where they differ.

Each is one cell, tagged `navigation`. Exercises get theirs from the solutions (`tools/exercises.py`), so links there
work from both folders.

The address of the repository, which stands in pyproject.toml, gives links that open a notebook on Colab and Kaggle, at
the top of the notebook. It also gives the first code cell, folded in JupyterLab, which brings the course to such a
place. While a placeholder stands there, notebooks have neither: nothing would be behind them.

`--publish ADDRESS COMMIT` writes them for a fork that changes no file of its own, so that its pulls don't conflict:
links open the branch `published`, where these notebooks then are (.github/workflows/publish.yml), and the cell brings
the course as it was at that commit or tag.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this checkout's own package

from course_utils.lab.lessons import Lesson, lessons

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDER = "https://github.com/OWNER/REPOSITORY"
IDS = ("navigation-top", "bring-the-course", "navigation-end")
# One line, which does nothing where the course is. Without dependencies: what these places have of torch, IPython and
# ipywidgets fits them, and must stay. nvidia-ml-py, which counts GPUs, is small, and needs nothing.
BRING = """\
# Brings the course to Kaggle (switch Internet on in its settings), Colab and the like. Elsewhere it does nothing.
from importlib.util import find_spec; find_spec("course_utils") or get_ipython().run_line_magic("pip", "install -q --no-deps {address}/archive/{commit}.zip nvidia-ml-py");"""  # noqa: E501


def repository(root: Path) -> str:
    """The repository's address, from pyproject.toml; empty if it has none yet."""
    file = root / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"] if file.exists() else {}
    address = str(project.get("urls", {}).get("Repository", ""))
    return "" if address == PLACEHOLDER else address


def elsewhere(address: str, path: str, branch: str = "main") -> str:
    """Links that open a notebook in places which have GPUs to lend; empty without an address."""
    blob = f"{address}/blob/{branch}/{path}"
    colab = blob.replace("https://github.com/", "https://colab.research.google.com/github/")
    return f"[Colab]({colab}) · [Kaggle](https://kaggle.com/kernels/welcome?src={blob})" if address and path else ""


def lines(
    before: Lesson | None, lesson: Lesson, after: Lesson | None, address: str, branch: str = "main"
) -> dict[str, tuple[str, str]]:
    """The links for the top and the end of each notebook of a lesson, by the notebook's path."""
    back = link(f"← {before.number} · {before.title}", before.path) if before else ""
    on = link(f"{after.number} · {after.title} →", after.path) if after else ""
    home = link(f"← {lesson.number} · {lesson.title}", lesson.path)
    exercises, solutions = link("Exercises", lesson.exercises_path), link("Solutions", lesson.solutions_path)
    more = link(f"Exercises {after.number} →", after.exercises_path) if after else ""
    # From lesson to lesson without the folder: in the book they're pages side by side.
    in_lesson = row(back, exercises, on).replace("(../notebooks/", "(")
    found = {lesson.path: (below(in_lesson, "Open in ", elsewhere(address, lesson.path, branch)), in_lesson)}
    if lesson.solutions_path:
        top = below(row(home, more), "Open the exercises in ", elsewhere(address, lesson.exercises_path, branch))
        found[lesson.solutions_path] = top, row(home, solutions, on)
    return found


def below(links: str, words: str, more: str) -> str:
    return f"{links}\n\n{words}{more}" if more else links


def link(text: str, path: str) -> str:
    """A link that works from any folder of notebooks; empty for a notebook that doesn't exist."""
    return f"[{text}](../{path})" if path else ""


def row(*links: str) -> str:
    return " &nbsp;·&nbsp; ".join(filter(None, links))


def with_links(text: str, top: str, end: str, address: str, commit: str = "main") -> str:
    """A notebook's text, with these links as its first and last cell, and above its code the cell that brings the
    course."""
    notebook = json.loads(text)
    first, last = (
        {"cell_type": "markdown", "id": name, "metadata": {"tags": ["navigation"]}, "source": source.splitlines(True)}
        for name, source in ((IDS[0], top), (IDS[2], end))
    )
    cells = [
        c for c in notebook["cells"] if c.get("id") not in IDS and "navigation" not in c["metadata"].get("tags", ())
    ]
    code = next((place for place, cell in enumerate(cells) if cell["cell_type"] == "code"), None)
    if address and code is not None:
        folded = {"jupyter": {"source_hidden": True}}
        bring = {"cell_type": "code", "execution_count": None, "id": IDS[1], "metadata": folded}
        cells.insert(
            code, {**bring, "outputs": [], "source": BRING.format(address=address, commit=commit).splitlines(True)}
        )
    notebook["cells"] = [first, *cells, last]
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def generate(root: Path, check: bool = False, publish: tuple[str, str] | None = None) -> list[str]:
    """Write (or with `check` only compare) the links of all notebooks below `root`. `publish` is an address and a
    commit, as for `--publish`. Returns one line for every file that differs or differed."""
    changed = []
    known = lessons(root)
    address, commit = publish or (repository(root), "main")
    branch = "published" if publish else "main"
    texts = {}
    for before, lesson, after in zip([None, *known], known, [*known[1:], None], strict=False):
        for path, (top, end) in lines(before, lesson, after, address, branch).items():
            texts[root / path] = partial(with_links, top=top, end=end, address=address, commit=commit)
    for file, written in texts.items():
        old = file.read_text(encoding="utf-8")
        new = written(old)
        if new != old:
            changed.append(
                f"{file.relative_to(root)} lacks links to its neighbours or to other places, or has old ones"
            )
            if not check:
                file.write_text(new, encoding="utf-8")
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where links are missing or old")
    parser.add_argument("--publish", nargs=2, metavar=("ADDRESS", "COMMIT"), help="write them for a published copy")
    asked = parser.parse_args()
    check = asked.check
    changed = generate(ROOT, check, asked.publish)
    for line in changed:
        print(line if check else line + ": fixed")
    if not changed:
        print("all notebooks have their links")
    elif check:
        print("`make exercises` writes them again")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
