"""What a program may not do if its score is to mean anything: reach for what measures it, or find out where it runs.

These rules read the program; they don't run it. What a program really does is looked at from outside, by `toy.py` and
`scoring.py`. A rule stands here only where a program could otherwise change what they see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


class Refused(Exception):
    """This program gets no score; the message says why, in a sentence or two."""


MODULES = {
    "argparse", "collections", "contextlib", "copy", "dataclasses", "functools", "itertools", "math", "numpy", "random",
    "time", "torch", "typing", "__future__",
}  # fmt: skip
FROM_RANK = {"device", "report", "backend", "amp_dtype", "timer"}  # of course_utils.rank
# Ways round the names of this list, and into other processes, files and the interpreter.
BUILTINS = {
    "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "globals", "input", "locals", "open", "setattr",
    "vars", "getattr", "memoryview",
}  # fmt: skip
PARTS = {
    "_C", "_dynamo", "_inductor", "_subclasses", "builtins", "cpp_extension", "ctypes", "f_back", "f_globals",
    "f_locals", "fake_pg", "gc", "hub", "importlib", "inspect", "library", "load_library",
    "multiprocessing", "os",
    "package", "pathlib", "subprocess", "sys", "testing", "tempfile", "threading", "FakeTensorMode", "fromfile",
    "from_file", "memmap", "load_url",
}  # fmt: skip
DUNDERS = {
    "__init__",
    "__len__",
    "__getitem__",
    "__iter__",
    "__next__",
    "__call__",
    "__enter__",
    "__exit__",
    "__name__",
}
PRIVATE = {"_orig_mod", "_foreach_norm", "_foreach_mul_", "_foreach_div_", "_foreach_add_"}  # in everyday use
# What tells how large a model or a batch is. (A program may well look at options.steps, or at a step's number.)
SIZES = {
    "width", "layers", "heads", "length", "shape", "numel", "nbytes", "element_size", "ndim", "size",
    "get_world_size", "num_embeddings", "embedding_dim", "in_features", "out_features", "memory_allocated",
}  # fmt: skip
MADE_OF = {"int", "float", "bool", "len", "min", "max", "abs", "round", "sum", "log", "log2", "sqrt"}
BOTH = "`fused=True` and DDP without device_ids work on CPUs too."
WHERE = {"type", "is_cuda", "is_cpu", "device", "index"}
PLACES = {"is_available", "device_count", "get_device_name", "get_device_properties", "mem_get_info", "get_backend"}
SWITCHES = ("torch.backends.",)  # what a program may set in torch
FEWER_BITS = ("float8", "float4", "int8", "int4", "quantize", "qint", "uint4")
REACH = "The score is measured from outside your program, which may not reach there."


def check(source: str) -> None:
    """Raise `Refused` for the first thing that a program may not do."""
    tree = ast.parse(source)
    ours: dict[str, str] = {}  # a name that an import has made -> what it stands for
    for node in ast.walk(tree):
        ours |= _imported(node)
    sized = _sized(tree)
    for node in ast.walk(tree):
        _names(node)
        _assigned(node, ours)
        _asked(node, sized)
        _files(node)


def _refuse(node: ast.AST, what: str, why: str) -> None:
    raise Refused(f"Line {getattr(node, 'lineno', 0)}: {what}. {why}")


def _imported(node: ast.AST) -> dict[str, str]:
    if isinstance(node, ast.Import):
        names = [(alias.name, alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [(node.module or "", alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
        if node.module == "course_utils.rank" and not {alias.name for alias in node.names} - FROM_RANK:
            return {name: whole for _, name, whole in names}
    else:
        return {}
    for module, name, whole in names:
        root, *parts = whole.split(".")
        if root not in MODULES:
            _refuse(
                node,
                f"it imports {module}",
                f"A program here needs torch and {len(MODULES) - 2} modules of Python. {REACH}",
            )
        if bad := next((part for part in parts if part in PARTS or _private(part)), ""):
            _refuse(node, f"it imports {bad}", REACH)
        if name == "*":
            _refuse(node, "it imports *", "Name what you need, so that a reader sees it.")
    return {name: whole for _, name, whole in names}


def _private(name: str) -> bool:
    return name.startswith("_") and name not in DUNDERS | PRIVATE


def _names(node: ast.AST) -> None:
    if isinstance(node, ast.Name) and (node.id in BUILTINS or node.id.startswith("__") and node.id not in DUNDERS):
        _refuse(node, f"it uses `{node.id}`", f"That hides from a reader what a program does. {REACH}")
    if isinstance(node, ast.Attribute):
        own = isinstance(node.value, ast.Name) and node.value.id == "self" and not node.attr.startswith("__")
        if node.attr in PARTS or _private(node.attr) and not own:
            _refuse(node, f"it uses `.{node.attr}`", REACH)
        if any(node.attr.startswith(bits) or bits in node.attr for bits in FEWER_BITS):
            _refuse(node, f"it uses `.{node.attr}`", "Products in 16 bits are the least here, weights in 32.")
        if node.attr in PLACES:
            _refuse(node, f"it asks for `{node.attr}`", "A program has to do the same wherever it runs.")
    if isinstance(node, ast.FunctionDef) and node.name.startswith("__") and node.name not in DUNDERS:
        _refuse(node, f"it defines `{node.name}`", REACH)
    if isinstance(node, ast.Global | ast.Nonlocal):
        _refuse(node, "it has global names", "Hand over what a function needs.")


def _assigned(node: ast.AST, ours: dict[str, str]) -> None:
    """Nothing that was imported may be changed, but for torch's own switches."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
        targets = [node.target]
    elif isinstance(node, ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.With):
        targets = [item.optional_vars for item in node.items if item.optional_vars]
    for target in _flat(targets):
        root, path = _path(target)
        if root in ours and "." in path and not f"{ours[root]}{path[len(root) :]}".startswith(SWITCHES):
            _refuse(node, f"it changes `{path}`", "Torch and the course stay as they are.")
        if path.endswith((".forward", ".step", ".backward", ".__class__", ".__dict__")) and root != "self":
            _refuse(node, f"it replaces `{path}`", "Write a class of your own instead.")


def _flat(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _flat(target.elts)
        else:
            yield target


def _path(node: ast.expr) -> tuple[str, str]:
    """`torch.cuda.x[0].y` as ("torch", "torch.cuda.x.y"); empty where it begins with something else."""
    parts = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute | ast.Subscript):
        if isinstance(at, ast.Attribute):
            parts.append(at.attr)
        at = at.value
    if not isinstance(at, ast.Name):
        return "", ""
    return at.id, ".".join([at.id, *reversed(parts)])


def _asked(node: ast.AST, sized: set[str]) -> None:
    """No condition may depend on how large things are, or on what they run on: then it would be two programs. A size
    may be compared with 0 or 1, as in `if ranks > 1`, and with what isn't known before, as in `i % ranks == rank`."""
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        tests = [node.test]
    elif isinstance(node, ast.Compare):
        tests = [node]
    elif isinstance(node, ast.BoolOp):
        tests = node.values
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
    elif isinstance(node, ast.Match):
        tests = [node.subject]
    for test in tests:
        for part in ast.walk(test):
            if isinstance(part, ast.Attribute) and part.attr in WHERE:
                _refuse(
                    node, f"a condition looks at `.{part.attr}`", f"A program does the same wherever it runs. {BOTH}"
                )
        sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) else [test]
        if all(_known(side, sized) for side in sides) and (what := _in(test, sized)):
            if not any(isinstance(side, ast.Constant) and side.value in (0, 1, None) for side in sides):
                _refuse(node, f"a condition looks at `{what}`", "A program does the same at every size.")


def _known(node: ast.AST, sized: set[str]) -> bool:
    """Whether an expression is made of sizes and numbers alone, so that it tells one run from another."""
    if isinstance(node, ast.Compare | ast.BoolOp):
        return False  # is looked at by itself
    if _size(node, sized) or isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        return (
            _size(node.func, sized) != ""
            or _last_name(node.func) in MADE_OF
            and all(_known(a, sized) for a in node.args)
        )
    if isinstance(node, ast.BinOp):
        return _known(node.left, sized) and _known(node.right, sized)
    if isinstance(node, ast.UnaryOp):
        return _known(node.operand, sized)
    if isinstance(node, ast.Subscript):
        return _size(node.value, sized) != ""
    return False


def _in(node: ast.AST, sized: set[str]) -> str:
    return next((found for part in ast.walk(node) if (found := _size(part, sized))), "")


def _sized(tree: ast.AST) -> set[str]:
    """The names that say how large something is, as far as a reader of assignments can tell."""
    found = set(SIZES)
    pairs = [pair for node in ast.walk(tree) for pair in _pairs(node)]
    while True:
        new = {
            name
            for target, value in pairs
            if _known(value, found) and _in(value, found)
            for name in map(_last_name, _flat([target]))
            if name and name not in found
        }
        if not new:
            return found
        found |= new


def _last_name(node: ast.expr) -> str:
    """`x` of x, and `big` of self.big."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What an assignment binds, and to what."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            value = node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                yield from zip(target.elts, value.elts, strict=True)
            else:
                yield target, value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.FunctionDef):
        for part in ast.walk(node):
            if isinstance(part, ast.Return) and part.value is not None:
                yield ast.Name(node.name), part.value


def _size(node: ast.AST, sized: set[str]) -> str:
    name = _last_name(node) if isinstance(node, ast.expr) else ""
    if isinstance(node, ast.Attribute) and _last_name(node.value) == "options" and name in ("words", "batch"):
        return f"options.{name}"
    return name if name in sized else ""


def _files(node: ast.AST) -> None:
    """Files are read and written where the options say, and nowhere else."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return
    at = {"load": 0, "save": 1}.get(node.func.attr)
    if at is None or _path(node.func)[0] != "torch":
        return
    named = [k.value for k in node.keywords if k.arg == "f"]
    where = node.args[at] if len(node.args) > at else named[0] if named else None
    root, path = _path(where) if where is not None else ("", "")
    if path not in ("options.data", "options.resume", "options.save"):
        _refuse(
            node, f"torch.{node.func.attr} has another file", "Files are options.data, options.resume and options.save."
        )
    if any(k.arg == "weights_only" for k in node.keywords):
        _refuse(node, "it sets weights_only", "Nothing but tensors is in these files.")
