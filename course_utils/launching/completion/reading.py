"""A program that is being written, read as far as it's Python already."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

STRING = re.compile(
    r"""\#[^\n]*(?P<comment>)
    | (?P<q>'''|\"\"\") (?:\\.|(?!(?P=q)).)* (?P<end>(?P=q)|\Z)
    | (?P<s>['"]) (?:\\.|(?!(?P=s)|\n).)* (?P<close>(?P=s)|\n|\Z)""",
    re.S | re.X,
)


def parsed(source: str, line: int) -> ast.Module:
    """The program, without the lines that aren't Python yet: first the one with the cursor."""
    lines = source.split("\n")
    for _ in range(20):
        try:
            return ast.parse("\n".join(lines))
        except SyntaxError as error:
            wrong = line if lines[line - 1].strip() not in ("pass", "if 1:") else error.lineno or 0
            if not 0 < wrong <= len(lines) or lines[wrong - 1].strip() == "pass":
                break
            text = lines[wrong - 1]
            lines[wrong - 1] = text[: len(text) - len(text.lstrip())] + ("if 1:" if text.endswith(":") else "pass")
    return ast.parse("")


def in_text(before: str) -> bool:
    """Whether what follows stands in a string or in a comment."""
    found = None
    for found in STRING.finditer(before):  # noqa: B007
        pass
    return found is not None and found.end() == len(before) and not (found["end"] or found["close"])


def left(text: str) -> str:
    """The names, dots and brackets at the end of a text: `DDP(model).module` of `x = DDP(model).module`."""
    at = len(text)
    while at:
        if text[at - 1] in ")]":
            deep = 0
            while at:
                at -= 1
                deep += (text[at] in ")]}") - (text[at] in "([{")
                if not deep:
                    break
            continue
        name = re.search(r"\w+$", text[:at])
        at = name.start() if name else at
        if not name or not text[:at].endswith("."):
            break
        at -= 1
    return text[at:]


def bindings(body: Sequence[ast.AST]) -> Iterator[tuple[str, ast.AST | None]]:
    """Each name that these statements bind, and to what, where they say it; not what functions and classes bind
    inside."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
            continue
        if isinstance(node, ast.arg):
            yield node.arg, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield (
                    alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]),
                    node,
                )
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _targets(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr, ast.AugAssign)):
            yield from _targets(node.target, node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            yield from _targets(node.target, None)
        elif isinstance(node, ast.withitem) and node.optional_vars:
            yield from _targets(node.optional_vars, node.context_expr)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, None
        yield from bindings(list(ast.iter_child_nodes(node)))


def _targets(target: ast.expr, value: ast.AST | None) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        for i, element in enumerate(target.elts):
            yield from _targets(element, values[i] if len(values) == len(target.elts) else None)


def members(node: ast.ClassDef) -> Iterator[tuple[str, ast.AST | None]]:
    """What a class of the program defines, and what its methods set on `self`."""
    yield from bindings(node.body)
    for inner in ast.walk(node):
        targets = inner.targets if isinstance(inner, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                yield target.attr, inner.value  # type: ignore[attr-defined]
