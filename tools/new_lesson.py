"""Write the skeleton of a lesson: `new_lesson.py 13 "Sequence parallelism" "What if one sequence doesn't fit?"`.

It has the form of the others (CONTRIBUTING.md), runs as it is, and every place that wants words of yours says TODO.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
OPENING = """# {number} · {title}

**{question}**

TODO: two sentences about whom this happens to, and what it costs them.

By the end of this lesson you can

- TODO
- TODO
- TODO

*45 minutes · TODO: what the reader has done before · words you don't know are in the [glossary](glossary.md)*"""
HELLO = """%%ranks auto -o first
import torch
import torch.distributed as dist
from course_utils.rank import device, report

if __name__ == "__main__":
    dist.init_process_group()
    mine = torch.ones(1, device=device())
    dist.all_reduce(mine)
    report(total=mine.item())
    dist.destroy_process_group()"""
MODULE = '''"""What only lesson {number} shows."""

from __future__ import annotations

from course_utils.for_lessons import bet, claim, say, value_of
'''
BEATS = ("The smallest program", "TODO: what it does", "TODO: what it costs", "Break it: TODO", "Take it home")
EXERCISE = """%%exercise {number}.1
def answer(n: int) -> int:
    \"\"\"TODO: what it returns.\"\"\"
    ### BEGIN SOLUTION
    return n
    ### END SOLUTION"""


def lesson(number: str, title: str, question: str) -> nbformat.NotebookNode:
    """The lesson's notebook."""
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [text(OPENING.format(number=number, title=title, question=question))]
    cells.append(code(f"%load_ext course_utils\nfrom course_utils import claim\nimport lesson_{number}"))
    for place, beat in enumerate(BEATS, 1):
        cells.append(text(f"## {place} · {beat}\n\n*8 minutes.* TODO: ask, and let the reader bet."))
        if place == 1:
            cells += [code("guess = ...      # a number"), code(HELLO)]
            cells.append(code('claim("every rank gets the sum", len(set(first.values("total"))) == 1);'))
    cells.append(text(f"## {len(BEATS) + 1} · Check yourself\n\n*5 minutes.*\n\nTODO"))
    for cell in cells:
        cell.metadata["tags"] = ["core"]
    cells.append(text("---\n# Deeper\n\nThese sections stand on their own."))
    return nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )


def solutions(number: str, title: str) -> nbformat.NotebookNode:
    """The solutions' notebook, of which `make exercises` makes the exercises."""
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    first = f"# {number} · {title}: exercises\n\n**Time:** 10 minutes. TODO"
    cells = [
        text(first),
        code("%load_ext course_utils"),
        text(f"## {number}.1 TODO\n\n**Minutes:** 10 · **Difficulty:** 1 of 5\n\nTODO"),
    ]
    cells.append(code(EXERCISE.format(number=number)))
    return nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )


def main(root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", help="two digits")
    parser.add_argument("title")
    parser.add_argument("question", help="which the lesson answers; ends with a question mark")
    asked = parser.parse_args()
    if not re.fullmatch(r"\d\d", asked.number):
        parser.error(f"a number has two digits, as in 13; got {asked.number!r}")
    if not asked.question.endswith("?"):
        parser.error("end the question with a question mark")
    if there := sorted((root / "notebooks").glob(f"{asked.number}_*.ipynb")):
        parser.error(f"there is a lesson {asked.number} already: {there[0].name}")
    stem = f"{asked.number}_{re.sub(r'[^a-z0-9]+', '_', asked.title.lower()).strip('_')}"
    module = root / "notebooks" / f"lesson_{asked.number}" / "__init__.py"
    module.parent.mkdir()
    module.write_text(MODULE.format(number=asked.number), encoding="utf-8")
    for folder, notebook in (
        ("notebooks", lesson(asked.number, asked.title, asked.question)),
        ("solutions", solutions(asked.number, asked.title)),
    ):
        path = root / folder / f"{stem}{'_solutions' * (folder == 'solutions')}.ipynb"
        nbformat.write(notebook, path)
        print(path.relative_to(root))
    print(f"{module.relative_to(root)}\nNow write, and run `make exercises`. The judge goes into exercises/checks/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
