"""The program of a launch, before it runs: is it there, is it Python, can its arguments be passed? Which files next to
it does it import, which variables does it change? A mistake is a clear error before anything starts."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from ..failure.advice import why_not
from ..failure.errors import LaunchError
from ..failure.frames import is_cell

LONGEST_VARIABLE = 128 * 1024 - 1  # bytes, name and value: Linux can't start a program with a longer one
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


def checked_program(script: str | os.PathLike[str] | None, module: str, folder: str) -> Path:
    """The file that a launch runs: a script, or a module, which we look for in `folder` first and don't import. Raises
    LaunchError."""
    if (script is None) == (not module):
        raise LaunchError("name what to run: either the path of a script, or module='pkg.train'")
    if script is not None:
        return checked_script(script)
    if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
        raise LaunchError(f"{module!r} is not the name of a module; write it as in `import`, for example pkg.train")
    found = module_file(module, [folder, *(path for path in sys.path if path)])
    if found is None:
        raise LaunchError(
            f"there is no module {module} to run, neither in {folder} nor installed; go to the folder that holds it"
            " with %cd"
        )
    return checked_script(found)


def checked_script(script: str | os.PathLike[str]) -> Path:
    """The absolute path of a script. Raises LaunchError unless it's there and is valid Python. Links aren't followed,
    as in `python script.py`."""
    try:
        path = Path(os.path.abspath(Path(script).expanduser()))
        there = path.is_file()
        if "\0" in str(path):
            raise ValueError("it contains a zero byte")
    except (TypeError, ValueError, OSError) as error:
        raise LaunchError(f"{script!r} is not the path of a script ({error})") from None
    if not there:
        raise LaunchError(f"there is no script {path}")
    try:
        _facts(path)
    except (SyntaxError, ValueError) as error:
        name = "the cell" if is_cell(str(path)) else path.name
        raise LaunchError(f"{name} is not valid Python{why_not(error)}") from None
    return path


def check_passable(env: Mapping[str, str], args: Sequence[object]) -> None:
    """Refuse arguments and variables that no program can be started with. A warm start would hide them until the
    script itself starts a process."""
    if any("\0" in text for text in (*env, *env.values(), *map(str, args))):
        raise LaunchError(
            "an argument or an environment variable contains a zero byte, which can't be passed to a program"
        )
    if long := too_long(env):
        raise LaunchError(
            f"the variable {long[0]} has {len(env[long[0]]) >> 10} KB, and Linux can't start a program with one of"
            f" more than 128 KB; put its text into a file, or leave it out with env={{{long[0]!r}: None}}"
        )


def too_long(env: Mapping[str, str]) -> list[str]:
    """The variables that are too long to start a program with."""
    return [
        name for name, value in env.items() if len(os.fsencode(name)) + 1 + len(os.fsencode(value)) > LONGEST_VARIABLE
    ]


def module_file(name: str, folders: list[str]) -> Path | None:
    """The file that `python -m name` would run, found in `folders` without importing anything; None if there is
    none."""
    for full in (name, f"{name}.__main__"):  # of a package, its __main__ runs
        places: list[str] | None = folders
        spec, done = None, ""
        for part in full.split("."):
            done = f"{done}.{part}" if done else part
            spec = PathFinder.find_spec(done, places) if places is not None else None
            inside = spec.submodule_search_locations if spec is not None else None
            places = None if inside is None else list(inside)
        if spec is not None and places is None and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin)
    return None


def imports(path: Path) -> set[str]:
    """Modules that a file imports, `from package import module` given as package.module. Raises SyntaxError."""
    return _imports(ast.parse(path.read_bytes()))


def _imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.ImportFrom) and node.level:
            found |= {"." * node.level + ".".join(filter(None, (node.module, alias.name))) for alias in node.names}
    return found


@dataclass
class Environment:
    """What a program does to `os.environ`: the names it sets or removes before and after it imports torch."""

    before_torch: set[str] = field(default_factory=set)
    after_torch: set[str] = field(default_factory=set)

    @property
    def names(self) -> set[str]:
        return self.before_torch | self.after_torch


def environment(path: Path, root: Path) -> Environment:
    """Which environment variables the program in `path` changes, itself or in the files below `root` that it imports,
    directly or through each other.

    We only read the text, so we miss a name that is put together at run time. In doubt we report too much: a change
    in a function counts as if it happened where it's written, and a name that comes from a variable counts as every
    name in capitals that the file quotes.
    """
    found = Environment()
    todo, seen = [path], {path}
    while todo:
        file = todo.pop()
        try:
            names, own = _facts(file)
        except (OSError, SyntaxError, ValueError):
            continue  # Python will say so, if the file is ever imported
        found.before_torch |= own.before_torch
        found.after_torch |= own.after_torch
        new = [beside for name in names for beside in _beside(name, file, root) if beside not in seen]
        seen.update(new)
        todo += new
    return found


def _beside(name: str, importer: Path, root: Path) -> Iterator[Path]:
    """The files below `root` that `importer` reads when it imports `name`; a relative name begins with dots."""
    dots = len(name) - len(name.lstrip("."))
    folder = importer.parents[dots - 1] if 0 < dots <= len(importer.parents) else root
    parts = name.lstrip(".").split(".")
    for count in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:count])
        yield from (found for found in (place.with_suffix(".py"), place / "__init__.py") if found.is_file())


def _facts(file: Path) -> tuple[frozenset[str], Environment]:
    """What one file imports, and what it does to its environment. Raises OSError, and SyntaxError or ValueError for
    one that isn't Python."""
    info = file.stat()
    return _read(file, info.st_mtime_ns, info.st_size)


@lru_cache(maxsize=1000)
def _read(file: Path, changed_ns: int, size: int) -> tuple[frozenset[str], Environment]:
    """A file is read once, and again when its time or size changes."""
    tree = ast.parse(file.read_bytes(), str(file))
    compile(tree, str(file), "exec", dont_inherit=True)  # finds more than the parser: a `return` outside of a function
    reader, found = _Reader(), Environment()
    reader.visit(tree)
    torch_line = reader.torch_line or float("inf")
    for name, line in reader.names:
        (found.before_torch if line < torch_line else found.after_torch).add(name)
    for line in reader.unknown:
        (found.before_torch if line < torch_line else found.after_torch).update(reader.quoted)
    return frozenset(_imports(tree)), found


class _Reader(ast.NodeVisitor):
    """Collects from one file where `os.environ` is changed, where torch is imported first, and the quoted words that
    may be names."""

    def __init__(self) -> None:
        self.names: list[tuple[str, int]] = []
        self.unknown: list[int] = []  # lines that change a variable without writing out its name
        self.quoted: set[str] = set()
        self.torch_line = 0  # of the first import outside functions
        self.aliases = {"environ"}
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_Import(self, node: ast.Import) -> None:
        self._imported([alias.name for alias in node.names], node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._imported([node.module or ""] if node.level == 0 else [], node.lineno)
        self.aliases |= {
            alias.asname or alias.name for alias in node.names if node.module == "os" and alias.name == "environ"
        }

    def _imported(self, names: list[str], line: int) -> None:
        of_torch = any(name.partition(".")[0] in ("torch", "torchvision") for name in names)
        if of_torch and not self.depth and not self.torch_line:
            self.torch_line = line

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name) and self._is_environ(node.value):
                self.aliases.add(target.id)
            self._changed(target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._changed(node.target)
        if self._is_environ(node.target):  # os.environ |= {...}
            self._mapping(node.value)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._changed(target)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name in ("putenv", "unsetenv") and node.args:
            self._key(node.args[0])
        elif isinstance(node.func, ast.Attribute) and self._is_environ(node.func.value):
            if name in ("setdefault", "pop", "__setitem__") and node.args:
                self._key(node.args[0])
            elif name == "update":
                self.names += [(word.arg, node.lineno) for word in node.keywords if word.arg]
                for given in [*node.args, *(word.value for word in node.keywords if word.arg is None)]:
                    self._mapping(given)
            elif name == "clear":
                self.unknown.append(node.lineno)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and _NAME.fullmatch(node.value):
            self.quoted.add(node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg and _NAME.fullmatch(node.arg):  # dict(TORCH_LOGS="...")
            self.quoted.add(node.arg)
        self.generic_visit(node)

    def _is_environ(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr == "environ"
        return isinstance(node, ast.Name) and node.id in self.aliases

    def _changed(self, target: ast.AST) -> None:
        if isinstance(target, ast.Subscript) and self._is_environ(target.value):
            self._key(target.slice)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._changed(element)

    def _key(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.names.append((node.value, node.lineno))
        else:
            self.unknown.append(node.lineno)

    def _mapping(self, node: ast.expr) -> None:
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if key is None:
                    self.unknown.append(node.lineno)
                else:
                    self._key(key)
        else:
            self.unknown.append(node.lineno)
