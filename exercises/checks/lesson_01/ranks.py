"""Lesson 01 on a rank: runs the student's functions, eager and compiled, and reports what it saw."""

from __future__ import annotations

import io
import re
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor

from .. import rank_side
from . import functions
from .cases import CHOICES, CLIP_SCALES, WINNERS, Means, clip_inputs, means_cases, paid_cases

# --- 01.1: predict the winners ----------------------------------------------------------------------------------------

for category in (FutureWarning, DeprecationWarning):
    warnings.filterwarnings("ignore", message="`torch.jit", category=category)


def winners(answer: ModuleType) -> None:
    """Takes the predictions, then counts what each graph left out, and times both versions, one after the other,
    several times."""
    said = rank_side.function(answer, "winners")()
    if not isinstance(said, dict) or set(said) != set(WINNERS):
        rank_side.problem(
            f"`winners` returned {said!r:.80}; it must return a dict with the keys {', '.join(map(repr, WINNERS))}.",
            "type",
        )
    for name, choice in said.items():
        if choice not in CHOICES:
            rank_side.problem(f"For {name!r} it says {choice!r}; a prediction is 'script', 'eager' or 'equal'.", "type")
    evidence = {}
    for name, args in functions.inputs().items():
        function = getattr(functions, name)
        scripted = torch.jit.script(function)
        with torch.no_grad():
            ratio = _ratio(function, scripted, args)
            evidence[name] = {
                "ratio": ratio,
                "eager": _operations(partial(function, *args)),
                "graph": _tensor_ops(scripted.graph_for(*args)),
            }
    rank_side.tell(said=said, evidence=evidence)


def _ratio(eager: Callable[..., Any], scripted: Callable[..., Any], args: tuple[Any, ...]) -> float:
    def seconds(f: Callable[..., Any]) -> float:
        start = time.perf_counter()
        for _ in range(3):
            f(*args)
        return time.perf_counter() - start

    for _ in range(4):
        scripted(*args)
    return statistics.median(seconds(eager) / seconds(scripted) for _ in range(7))


def _operations(call: Callable[[], Any]) -> int:
    """How many operations on tensors one call executes; views cost nothing and are not counted."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return sum(event.name.startswith("aten::") and event.cpu_parent is None for event in profile.events())


def _tensor_ops(graph: Any) -> int:
    return sum(
        node.kind().startswith("aten::") and any(str(out.type()) == "Tensor" for out in node.outputs())
        for node in _nodes(graph)
    )


def _nodes(block: Any) -> list[Any]:
    """All nodes of a graph, those in its loops and branches included."""
    found = []
    for node in block.nodes():
        found.append(node)
        for inner in node.blocks():
            found += _nodes(inner)
    return found


# --- 01.2: make a function scriptable ---------------------------------------------------------------------------------


def means(answer: ModuleType) -> None:
    found = getattr(answer, "trailing_means", None)
    if not isinstance(found, torch.jit.ScriptFunction):  # with `@torch.jit.script` above it, which is fine too
        rank_side.function(answer, "trailing_means", "x", "sizes", "scale")
    try:
        scripted = torch.jit.script(found)
    except Exception as error:
        _does_not_compile(error)
    inside_python = [node for node in _nodes(scripted.graph) if node.kind() == "prim::PythonOp"]
    try:
        torch.jit.save(scripted, io.BytesIO())
    except RuntimeError:
        inside_python.append(None)
    if inside_python:
        rank_side.problem(
            "The scripted function calls back into Python: such a graph cannot be saved, and needs Python's lock. All"
            " of its work must be in the graph.",
            "python",
        )
    kinds = [node.kind() for node in _nodes(scripted.graph)]
    if foreign := [kind for kind in kinds if not kind.startswith(("aten::", "prim::"))]:
        rank_side.problem(
            f"The scripted function calls `{foreign[0]}`, an operator that isn't torch's own: what that does isn't in"
            " the graph.",
            "python",
        )
    versions = (
        {"scripted": scripted}
        if isinstance(found, torch.jit.ScriptFunction)
        else {"called by Python": found, "scripted": scripted}
    )
    results = [
        [how, _called(how, version, case)]
        for case in means_cases(rank_side.draw_seed())
        for how, version in versions.items()
    ]
    rank_side.tell(results=results, operations=sum(kind.startswith("aten::") for kind in kinds))


def _called(how: str, version: Callable[..., Any], case: Means) -> dict[str, Any]:
    """What one version returns for a case. Its arguments must not have changed afterwards."""
    given = {"x": torch.tensor(case.x, dtype=getattr(torch, case.dtype)), "sizes": list(case.sizes)}
    kept = rank_side.snapshot(given)
    try:
        # None is what the original takes if there's no third argument
        options = [] if case.scale is None else [case.scale]
        got = version(given["x"], given["sizes"], *options)
    except (RuntimeError, TypeError) as error:
        if "missing" in str(error) and "scale" in str(error):
            rank_side.problem(
                f"Called without `scale`, as the original may be, `trailing_means` fails ({case}, {how}).", "scale"
            )
        if "Expected a value of type" in str(error):
            rank_side.problem(
                f"The scripted function does not take its arguments ({case}, {how}): {_first_line(error)}",
                "scale" if "argument 'scale'" in str(error) else "types",
            )
        raise
    if changed := [name for name in given if not rank_side.same(kept[name], given[name])]:
        rank_side.problem(
            f"`trailing_means` changed its argument `{changed[0]}` ({case}, {how}). It belongs to the caller.",
            "argument changed",
        )
    if not isinstance(got, tuple) or len(got) != 2 or not isinstance(got[0], Tensor) or not isinstance(got[1], int):
        rank_side.problem(f"`trailing_means` returned {got!r:.80}; it must return a tensor and an int.", "type")
    followed = version(given["x"].requires_grad_(), given["sizes"], *options)[0]
    return _tensor(got[0]) | {"short": got[1], "gradient": followed.requires_grad}


def _tensor(value: Tensor) -> dict[str, Any]:
    """A tensor as JSON, None for what is not a number."""
    numbers = [None if v != v else v for v in value.detach().double().flatten().tolist()]
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "values": numbers}


def _does_not_compile(error: Exception) -> NoReturn:
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    told = lines[0].strip().rstrip(":.") if lines else type(error).__name__
    reasons = [
        line.strip().rstrip(".")
        for line in lines[1:]
        if line.strip().startswith(("Expected a value of type", "Could not match type"))
    ]
    told = reasons[0] if reasons else told
    if "Optional[float] to bool" in told:  # `if scale:`
        rank_side.problem(f"torch.jit.script does not take it: {told}. It's about your test of `scale`.", "zero")
    if 'parameter "scale"' in told:
        rank_side.problem(f"torch.jit.script does not take it: {told}", "scale")
    at = next((f" At: `{lines[i - 1].strip()}`" for i, line in enumerate(lines) if "<--- HERE" in line and i), "")
    rank_side.problem(
        f"torch.jit.script does not take it: {told}.{at}",
        "untyped" if "inferred" in told or "type Tensor" in told else "does not compile",
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.startswith("Expected a value")), lines[0])


# --- 01.3: find the graph breaks --------------------------------------------------------------------------------------

OPERATORS = ("aten", "prim", "prims", "higher_order")  # torch's own; the last are `torch.cond` and its like
HIDING = ("flat_apply", "flat_apply_capture", "invoke_leaf_function")  # what `nonstrict_trace`, `leaf_function` become


def breaks(answer: ModuleType) -> None:
    import logging

    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    function = rank_side.function(answer, "clipped", "x")
    inputs = [(name, torch.tensor(x)) for name, x in clip_inputs(rank_side.draw_seed())]
    called = [_pair(function(x.clone(), doing=f"clipping an {name}".replace("an 1", "1"))) for name, x in inputs]
    double = [_pair(function(x.double(), doing="clipping an input of float64")) for _, x in inputs[: len(CLIP_SCALES)]]

    def caller(x: Tensor) -> Any:  # a function that's compiled itself is captured, even if it asks not to be
        return answer.clipped(x)

    found = torch._dynamo.explain(caller)(inputs[1][1])  # one that is clipped
    reasons = []
    for reason in found.break_reasons:
        where = [frame for frame in reason.user_stack if frame.filename == answer.__file__]
        reasons.append([where[-1].lineno if where else 0, reason.reason.splitlines()[0][:90]])
    torch._dynamo.reset()
    compilations, hidden = 0, ""

    def backend(graph: Any, _: Any) -> Any:
        nonlocal compilations, hidden
        compilations += 1
        hidden = hidden or _hidden(graph)
        return graph.forward

    compiled = torch.compile(caller, backend=backend)
    compiled_values = [_pair(compiled(x.clone())) for _, x in inputs[: len(CLIP_SCALES)]]
    rank_side.tell(
        called=called, double=double, compiled=compiled_values, graphs=found.graph_count, reasons=reasons,
        compilations=compilations, hidden=hidden,
    )  # fmt: skip


def _hidden(graph: torch.fx.GraphModule) -> str:
    """The name of what a graph calls that the compiler doesn't see into: somebody's own function or operator."""
    parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]  # `torch.cond` has two more
    for node in (node for part in parts for node in part.graph.nodes if node.op == "call_function"):
        module, name = getattr(node.target, "__module__", None) or "torch", getattr(node.target, "__name__", node.name)
        operators = re.match(r"torch\._?ops\.(\w+)", module)
        known = (
            operators[1] in OPERATORS if operators else module.startswith(("torch", "_operator", "builtins", "math"))
        )
        if not known or name in HIDING:
            return str(name)
    return ""


def _pair(got: Any) -> list[dict[str, Any]]:
    if not isinstance(got, tuple) or len(got) != 2 or not all(isinstance(t, Tensor) for t in got):
        rank_side.problem(f"`clipped` returned {got!r:.80}; it must return two tensors.", "type")
    return [_tensor(t) for t in got]


# --- 01.4: when is it paid back? --------------------------------------------------------------------------------------


def paid(answer: ModuleType) -> None:
    function = rank_side.function(answer, "calls_until_paid", "first_us", "eager_us", "compiled_us")
    got = []
    for case in paid_cases(rank_side.draw_seed()):
        value = function(*case, doing="counting calls for first {} µs, eager {} µs, compiled {} µs".format(*case))
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            rank_side.problem(f"`calls_until_paid{case}` returned {value!r}; it must return an int, or None.", "type")
        got.append(value)
    rank_side.tell(got=got)
