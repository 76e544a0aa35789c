"""Run the lessons and write them, with their outputs, as web pages into book/. Arguments choose lessons: `book.py 04
05`."""

from __future__ import annotations

import html
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

sys.path.insert(0, str(Path(__file__).resolve().parent))
from navigation import repository  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT_S = 300

INDEX = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Train PyTorch models on many devices</title>
<style>
body {{ font: 1.05rem/1.6 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem }}
li {{ margin: .6rem 0 }}
small {{ color: #555 }}
</style>
<h1>Train PyTorch models on many devices</h1>
<p>The lessons as they ran on {date}, on this machine: {machine}. Your own numbers come from running them yourself.</p>
<ul>
{items}
</ul>
</html>
"""


def execute(path: Path) -> tuple[Any, float]:
    """Run a notebook; returns it with its outputs, and the seconds it took. Raises CellExecutionError if a cell
    fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        store_widget_state=False,  # a page runs nothing: explorers show their picture there
        resources={"metadata": {"path": str(path.parent)}},
    )
    os.environ["COURSE_NOTEBOOK"] = path.name
    start = time.perf_counter()
    client.execute()
    return notebook, time.perf_counter() - start


def title(notebook: Any, path: Path) -> str:
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    match = re.search(r"^# +(.+)$", text, re.M)
    return match.group(1).strip() if match else path.stem


def page(notebook: Any) -> str:
    body: str = HTMLExporter().from_notebook_node(notebook)[0]
    body = body.replace("</head>", "<style>pre, pre *, code { font-family: monospace !important }</style></head>", 1)
    return re.sub(r'href="(?!\w+:|#)([^"#]+)((?:#[^"]*)?)"', lambda link: f'href="{there(link[1])}{link[2]}"', body)


def there(path: str) -> str:
    """Where a lesson's link leads in the book: to another page of it, or to what isn't in it, in the repository. As
    long as that has no address, it's the clone that the book lies in."""
    if re.fullmatch(r"\d\d_[^/]+\.ipynb|glossary\.md", path):
        return Path(path).stem + ".html"
    address = repository(ROOT)
    return (f"{address}/blob/main/" if address else "../") + os.path.normpath(f"notebooks/{path}")


def glossary() -> str:
    """The course's words as a page of the book."""
    cell = nbformat.v4.new_markdown_cell((ROOT / "notebooks" / "glossary.md").read_text(encoding="utf-8"))
    return page(nbformat.v4.new_notebook(cells=[cell], metadata={"title": "The course's words"}))


def machine() -> str:
    from course_utils.machine.here import Machine

    return str(Machine.here())


def main() -> int:
    chosen = sys.argv[1:]
    book = ROOT / "book"
    book.mkdir(exist_ok=True)
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    (book / "glossary.html").write_text(glossary(), encoding="utf-8")
    items, failed = [], []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if chosen and not any(path.name.startswith(prefix) for prefix in chosen):
            continue
        try:
            notebook, seconds = execute(path)
        except CellExecutionError as error:
            failed.append(path.name)
            print(f"{path.name}: a cell failed\n{error}", flush=True)
            continue
        (book / f"{path.stem}.html").write_text(page(notebook), encoding="utf-8")
        print(f"{path.name}: {seconds:.0f} s", flush=True)
        items.append(
            f'<li><a href="{path.stem}.html">{html.escape(title(notebook, path))}</a> <small>ran in {seconds:.0f}'
            " s</small></li>"
        )
    (book / "index.html").write_text(
        INDEX.format(date=time.strftime("%d %B %Y"), machine=html.escape(machine()), items="\n".join(items)),
        encoding="utf-8",
    )
    print(f"book/index.html: {len(items)} lessons" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return int(bool(failed) or not items)


if __name__ == "__main__":
    sys.exit(main())
