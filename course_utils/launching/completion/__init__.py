"""What can follow at a place in a program, and help for what stands there, found by reading: nothing of the program
runs.

A cell of ranks is another program than the notebook, so the notebook's variables say nothing about it. And reading
torch's own source, as editors do, takes ten seconds the first time. Here the imports of the program are real modules,
which the process that answers has imported already, and the rest is worked out from the program's text.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import inspect
import keyword
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .reading import STRING, bindings, in_text, left, members, parsed

_IMPORT = re.compile(
    r"^\s*(?:from\s+(?P<of>[\w.]+)\s+import\s+\(?(?:.*,\s*)?|(?:import\s+(?:.*,\s*)?|from\s+))(?P<word>[\w.]*)$"
)
# Methods that return what they were called on, or something of its kind, and don't say so.
_SAME = {"to", "cuda", "cpu", "train", "eval", "float", "half", "double", "requires_grad_", "clone", "detach"}
_NEVER = {"antigravity", "this"}  # importing these has effects
MOST = 2000
_imports = False


@dataclass(frozen=True)
class _Real:
    """An object of this process: a module, a class, a function."""

    value: Any


@dataclass(frozen=True)
class _Written:
    """A class or a function of the program."""

    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Instance:
    of: _Real | _Written


_Found = _Real | _Written | _Instance | None


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """`{"source", "at", "what"}` to what can stand `at` this character: `{"start", "names": [[name, kind], ...]}`; or
    with `what` = "help" to `{"help": text}`, which is empty where we know nothing. Only with `imports` are modules
    imported for it, which may take time."""
    global _imports
    _imports = question.get("imports", False)
    with suppress(Exception), warnings.catch_warnings():  # of getattr and signatures, which run other people's code
        warnings.simplefilter("ignore")
        program = _Program(question["source"], question["at"])
        if question["what"] == "help":
            return {"help": program.help()}
        start, names = program.names()
        return {"start": start, "names": sorted(names.items(), key=_order)[:MOST]}
    return {"help": "", "start": question["at"], "names": []}


def _order(item: tuple[str, str]) -> tuple[bool, str]:
    return item[1] != "param", item[0].lower()


class _Program:
    def __init__(self, source: str, at: int):
        self.before, self.after = source[:at], source[at:]
        self.line = self.before.count("\n") + 1
        self.tree = parsed(source, self.line)
        self.asked: set[int] = set()  # names that are being worked out: `x = x.to(device)` is defined by itself

    # --- what the text says -----------------------------------------------------------------------------------------

    def names(self) -> tuple[int, dict[str, str]]:
        """Where the word at the cursor begins, and the names that it can become, each with its kind."""
        word = re.search(r"\w*$", self.before)[0]  # type: ignore[index]
        start = len(self.before) - len(word)
        if in_text(self.before):
            return start, {}
        if found := _IMPORT.match(self.before.rpartition("\n")[2]):
            names = _modules(found["of"], found["word"])
        elif self.before[:start].endswith("."):
            names = self._attributes(self._infer(left(self.before[: start - 1])))
        else:
            names = dict.fromkeys((*dir(builtins), *keyword.kwlist), "keyword")
            names |= {name: self._kind(self._lookup(name)) for name in self._bound()}
            names |= {f"{name}=": "param" for name in self._parameters()}
        hidden = not word.startswith("_")
        return start, {n: k for n, k in names.items() if n.startswith(word) and not (hidden and n.startswith("_"))}

    def help(self) -> str:
        """The signature and the docstring of what stands at the cursor, or of the function that is being called."""
        if in_text(self.before):
            return ""
        end = re.match(r"\w*", self.after)[0]  # type: ignore[index]
        found = self._infer(left(self.before + end)) or self._infer(self._called())
        return _page(found.of if isinstance(found, _Instance) else found)

    def _called(self) -> str:
        """The function in whose parentheses the cursor stands; empty where it stands in none."""
        deep = 0
        text = STRING.sub(lambda m: "_" * len(m[0]), self.before)
        for at in range(len(text) - 1, -1, -1):
            deep += {")": 1, "]": 1, "}": 1, "(": -1, "[": -1, "{": -1}.get(text[at], 0)
            if deep < 0:
                return left(self.before[:at]) if text[at] == "(" else ""
        return ""

    def _parameters(self) -> list[str]:
        """Names of the parameters that the call at the cursor can be given."""
        called = self._called()
        found = self._infer(called)
        if isinstance(found, _Written):
            own = found.node
            if isinstance(own, ast.ClassDef):
                own = next((n for n in own.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)  # type: ignore[assignment]
            known = own.args if isinstance(own, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
            names = [a.arg for a in (*known.args, *known.kwonlyargs)] if known else []
        elif isinstance(found, _Real):
            signature = inspect.signature(found.value)
            names = [p.name for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        else:
            names = []
        return [name for name in names if name != "self"]

    def _scopes(self) -> Iterator[Sequence[ast.AST]]:
        """The bodies that the cursor stands in, the innermost function first and the module last."""
        inside = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.lineno < self.line <= (node.end_lineno or node.lineno)
        ]
        for node in sorted(inside, key=lambda node: -node.lineno):
            yield [*(arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)), *node.body]
        yield self.tree.body

    def _bound(self) -> set[str]:
        return {name for body in self._scopes() for name, _ in bindings(body)}

    def _lookup(self, name: str) -> _Found:
        for body in self._scopes():
            found = [value for bound, value in bindings(body) if bound == name]
            for value in reversed(found):
                if id(value) in self.asked:
                    continue
                self.asked.add(id(value))
                result = self._value(name, value)
                self.asked.discard(id(value))
                if result:
                    return result
            if found:
                return self._own_class() if name == "self" else None
        return _Real(getattr(builtins, name)) if hasattr(builtins, name) else None

    def _own_class(self) -> _Found:
        """The class in whose method the cursor stands."""
        around = [
            n
            for n in ast.walk(self.tree)
            if isinstance(n, ast.ClassDef) and n.lineno < self.line <= (n.end_lineno or n.lineno)
        ]
        return _Instance(_Written(max(around, key=lambda n: n.lineno))) if around else None

    def _value(self, name: str, value: ast.AST | None) -> _Found:
        if isinstance(value, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            return _Written(value)
        if isinstance(value, ast.Import):
            alias = next(a for a in value.names if name == (a.asname or a.name.partition(".")[0]))
            module = _module(alias.name)  # `import torch.distributed` binds torch, and makes torch.distributed there
            return _real(module if alias.asname else _module(alias.name.partition(".")[0]))
        if isinstance(value, ast.ImportFrom):
            taken = next(a.name for a in value.names if name == (a.asname or a.name))
            return _real(getattr(_module(value.module or ""), taken, None) or _module(f"{value.module}.{taken}"))
        if isinstance(value, ast.arg):
            kind = self._infer(ast.unparse(value.annotation)) if value.annotation else None
            return _Instance(kind) if isinstance(kind, (_Real, _Written)) else None
        return self._of(value) if isinstance(value, ast.expr) else None

    # --- what an expression is --------------------------------------------------------------------------------------

    def _infer(self, expression: str) -> _Found:
        try:
            return self._of(ast.parse(expression.strip(), mode="eval").body)
        except (SyntaxError, ValueError):
            return None

    def _of(self, node: ast.expr) -> _Found:
        if isinstance(node, ast.Name):
            return self._lookup(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(self._of(node.value), node.attr)
        if isinstance(node, ast.Call):
            return self._result(node)
        if isinstance(node, ast.BinOp):
            return self._of(node.left)
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            return _Instance(_Real(type(node.value) if isinstance(node, ast.Constant) else str))
        literal = {
            ast.List: list,
            ast.ListComp: list,
            ast.Dict: dict,
            ast.DictComp: dict,
            ast.Tuple: tuple,
            ast.Set: set,
        }
        return _Instance(_Real(literal[type(node)])) if type(node) in literal else None

    def _attribute(self, base: _Found, name: str) -> _Found:
        if isinstance(base, _Real):
            return _real(getattr(base.value, name, None))
        if isinstance(base, _Instance) and isinstance(base.of, _Real):
            found = inspect.getattr_static(base.of.value, name, None)
            return _real(None if isinstance(found, property) else getattr(base.of.value, name, None))
        if isinstance(base, (_Instance, _Written)):
            written = base.of if isinstance(base, _Instance) else base
            if isinstance(written, _Written) and isinstance(written.node, ast.ClassDef):
                for bound, value in members(written.node):
                    if bound == name:
                        return self._value(name, value)
                for parent in written.node.bases:
                    kind = self._of(parent)
                    if found := self._attribute(_Instance(kind) if isinstance(kind, (_Real, _Written)) else None, name):
                        return found
        return None

    def _result(self, call: ast.Call) -> _Found:
        called = self._of(call.func)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _SAME:
            return self._of(call.func.value)
        if isinstance(called, _Written):
            return _Instance(called) if isinstance(called.node, ast.ClassDef) else None
        torch: Any = sys.modules.get("torch")
        tensor = _Instance(_Real(torch.Tensor)) if torch is not None else None
        if isinstance(called, _Instance):
            return tensor if self._attribute(called, "register_parameter") else None  # a torch.nn.Module
        if not isinstance(called, _Real):
            return None
        if inspect.isclass(called.value):
            return _Instance(called)
        returned = getattr(called.value, "__annotations__", {}).get("return")
        if isinstance(returned, str):
            returned = getattr(sys.modules.get(called.value.__module__), returned, None)
        if inspect.isclass(returned):
            return _Instance(_Real(returned))
        if torch is not None and inspect.isbuiltin(called.value):
            if hasattr(torch._C._VariableFunctions, getattr(called.value, "__name__", "")):
                return tensor  # of torch.ones(3), which is written in C++ and says nothing
        base = self._of(call.func.value) if isinstance(call.func, ast.Attribute) else None
        return base if base == tensor and inspect.ismethoddescriptor(called.value) else None

    def _attributes(self, base: _Found) -> dict[str, str]:
        if isinstance(base, _Real):
            return {name: _kind_of(_peek(base.value, name)) for name in dir(base.value)}
        if isinstance(base, _Instance) and isinstance(base.of, _Real):
            return dict.fromkeys(_set_by(base.of.value), "instance") | self._attributes(base.of)
        written = base.of if isinstance(base, _Instance) else base
        if isinstance(written, _Written) and isinstance(written.node, ast.ClassDef):
            names: dict[str, str] = {}
            for parent in written.node.bases:
                names |= self._attributes(self._of(parent))
            return names | {name: self._kind(self._value(name, value)) for name, value in members(written.node)}
        return {}

    def _kind(self, found: _Found) -> str:
        if isinstance(found, _Written):
            return "class" if isinstance(found.node, ast.ClassDef) else "function"
        return _kind_of(found.value) if isinstance(found, _Real) else "instance"


# --- this process -----------------------------------------------------------------------------------------------------


def _module(name: str) -> Any:
    """A module that this process has, or one that it may import: of packages that it has, ours, or Python's."""
    top = name.partition(".")[0]
    if _imports and name not in sys.modules and name not in _NEVER:
        if top in sys.modules or top == "course_utils" or top in sys.stdlib_module_names:
            with suppress(Exception):
                importlib.import_module(name)
    return sys.modules.get(name)


def _modules(of: str | None, word: str) -> dict[str, str]:
    """What can be imported `of` a module; without one, modules, of which `word` is the begin of a dotted name."""
    parent = of or word.rpartition(".")[0]
    if not parent:
        found = {*sys.stdlib_module_names, *(module.name for module in pkgutil.iter_modules())}
        return dict.fromkeys(found - _NEVER, "module")
    module = _module(parent)
    inside = {m.name: "module" for m in pkgutil.iter_modules(getattr(module, "__path__", []))}
    if of and module is not None:
        inside |= {name: _kind_of(_peek(module, name)) for name in dir(module)}
    return inside


def _real(value: Any) -> _Found:
    return None if value is None else _Real(value) if _kind_of(value) != "instance" else _Instance(_Real(type(value)))


def _peek(base: Any, name: str) -> Any:
    """An attribute, without running a property."""
    with suppress(Exception):
        return getattr(base, name, None) if inspect.ismodule(base) else inspect.getattr_static(base, name, None)
    return None


def _set_by(kind: type) -> set[str]:
    """What the `__init__` of a class sets on itself, such as the `module` of DDP."""
    codes = [getattr(vars(one).get("__init__"), "__code__", None) for one in kind.__mro__]
    return {i.argval for code in codes if code for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}


def _kind_of(value: Any) -> str:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "class"
    return "function" if callable(value) or isinstance(value, (classmethod, staticmethod)) else "instance"


def _page(found: _Found) -> str:
    """A signature and what is written about it."""
    if isinstance(found, _Written):
        node = found.node
        head = ast.unparse(type(node)(**{**vars(node), "body": [ast.Pass()], "decorator_list": []})).removesuffix(
            "\n    pass"
        )
        return f"{head}\n\n{ast.get_docstring(node) or ''}".strip()
    if not isinstance(found, _Real):
        return ""
    name = getattr(found.value, "__qualname__", getattr(found.value, "__name__", ""))
    try:
        head = f"{name}{inspect.signature(found.value)}"
    except (TypeError, ValueError):
        head = name
    return f"{head}\n\n{inspect.getdoc(found.value) or ''}".strip()
