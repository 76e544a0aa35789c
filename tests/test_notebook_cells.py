"""What keeps the notebooks whole without running them: every cell compiles, what it asks of `course_utils` is there and
takes the arguments that it's called with, and every option of a magic is known.

A lesson itself runs in `make test-lesson` and `make test-all`; only a change of its own can break more than this sees.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from conftest import ROOT
from IPython.core.inputtransformer2 import TransformerManager

from course_utils.cells.magic_line import ranks_options, words_of
from course_utils.check import lesson_exercises

FOLDERS = ("notebooks", "exercises", "solutions")
NOTEBOOKS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.ipynb"))
OURS = re.compile(r"course_utils\b|lesson_\d\d\b")


@cache
def cells(path: Path) -> list[tuple[int, str]]:
    """The code cells of a notebook: their number, and their source."""
    found = enumerate(nbformat.read(path, as_version=4).cells)
    return [(number, cell.source) for number, cell in found if cell.cell_type == "code"]


def tree_of(source: str, name: str) -> ast.Module:
    """A cell as Python, magics and all. What a cell magic gets is Python too, if it's one of ours."""
    head, _, body = source.partition("\n")
    if head.startswith(("%%ranks", "%%exercise", "%%writefile")):
        source = body if not re.search(r"%%writefile .*\.(?!py\b)\w+", head) else ""
    elif head.startswith("%%"):
        source = "" if not re.match(r"%%(time|capture)\b", head) else body
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(TransformerManager().transform_cell(source), name, "exec", flags)  # type: ignore[return-value]


def imports_of(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """The names that a program gives to what it imports of ours, with the things themselves. Raises if one isn't
    there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if OURS.match(alias.name):
                    module = importlib.import_module(alias.name)
                    top = importlib.import_module(alias.name.partition(".")[0])
                    yield (alias.asname or alias.name.partition(".")[0]), (module if alias.asname else top)
        elif isinstance(node, ast.ImportFrom) and node.module and OURS.match(node.module):
            for alias in node.names:
                yield (alias.asname or alias.name), of(importlib.import_module(node.module), alias.name)


def of(thing: Any, name: str) -> Any:
    """An attribute, or a submodule that nobody has imported yet."""
    if not hasattr(thing, name) and isinstance(thing, ModuleType) and hasattr(thing, "__path__"):
        importlib.import_module(f"{thing.__name__}.{name}")
    return getattr(thing, name)


def resolved(node: ast.expr, names: dict[str, Any]) -> Any:
    """What `a.b.c` stands for, as far as `names` knows; None if it doesn't. Raises AttributeError if it isn't there."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = resolved(node.value, names)
        return of(base, node.attr) if isinstance(base, ModuleType | type) else None
    return None


def check_uses(tree: ast.Module, names: dict[str, Any]) -> None:
    """Raise if the program asks for something of ours that isn't there, or gives it arguments that it can't take."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            resolved(node, names)
        if isinstance(node, ast.Call) and callable(function := resolved(node.func, names)):
            spread = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
            keywords = {k.arg: None for k in node.keywords if k.arg}
            signature = inspect.signature(function)
            given = [] if spread else [None] * len(node.args)
            (signature.bind_partial if spread else signature.bind)(*given, **keywords)


def rebound(tree: ast.Module) -> set[str]:
    """Names that a program gives to something else."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} | {
        node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_cell_compiles_and_asks_for_what_is_there(path: Path) -> None:
    here: dict[str, Any] = {}
    for number, source in cells(path):
        where = f"{path.parent.name}/{path.stem}, cell {number}"
        tree = tree_of(source, where)
        try:
            found = dict(imports_of(tree))
            on_ranks = source.startswith(("%%ranks", "%%exercise", "%%writefile"))
            names = found if on_ranks else here | found
            check_uses(tree, {name: thing for name, thing in names.items() if name not in rebound(tree)})
        except (AttributeError, ImportError, TypeError) as error:
            raise AssertionError(f"{where}: {error}") from error
        if not on_ranks:
            here |= found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_line_of_a_magic_is_understood(path: Path) -> None:
    for number, source in cells(path):
        where = f"{path.parent.name}/{path.stem}, cell {number}"
        for magic, line in re.findall(r"(?m)^(%%?)ranks\b(.*)$", source):
            known = re.sub(r"--device \{[^}]*\}", "--device auto", line)  # IPython puts values there when the cell runs
            words = words_of(re.sub(r"\{[^}]*\}", "1", known))
            words = words[: words.index("--")] if "--" in words else words
            ranks_options([word for word in words if magic == "%%" or not word.endswith(".py")])
        for word in re.findall(r"(?m)^%%exercise +(\S+)", source):
            assert word in lesson_exercises(word[:2]), f"{where}: there is no exercise {word}"


@pytest.mark.parametrize(
    "source",
    [
        "from course_utils import lanch",
        "from course_utils import figures\nfigures.compair([])",
        "from course_utils import claim\nclaim('a', True, y=3)",
        "from course_utils import claim\nclaim()",
        "import course_utils.nothing",
    ],
)
def test_the_net_catches(source: str) -> None:
    tree = tree_of(source, "a cell")
    with pytest.raises((AttributeError, ImportError, TypeError)):
        check_uses(tree, dict(imports_of(tree)))
