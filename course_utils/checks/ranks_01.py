"""Lesson 01 on a rank: runs the student's functions in one process, beside a twin, and tells what it saw."""

from __future__ import annotations

import io
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor

from course_utils.checks import functions_01, inside
from course_utils.checks.cases_01 import CHOICES, CLIP_SCALES, MEANS_CASES, PAID_CASES, WINNERS

# --- 01.1: predict the winners ----------------------------------------------------------------------------------------------


def winners(answer: ModuleType) -> None:
    """Takes the predictions, then counts what each graph left out, and times both versions in turns."""
    said = inside.function(answer, "winners")()
    if not isinstance(said, dict) or set(said) != set(WINNERS):
        inside.problem(f"`winners` returned {said!r:.80}; it must return a dict with the keys {', '.join(map(repr, WINNERS))}.", "type")
    for name, choice in said.items():
        if choice not in CHOICES:
            inside.problem(f"For {name!r} it says {choice!r}; a prediction is 'script', 'eager' or 'equal'.", "type")
    evidence = {}
    for name, args in functions_01.inputs().items():
        function = getattr(functions_01, name)
        scripted = torch.jit.script(function)
        with torch.no_grad():
            ratio = _ratio(function, scripted, args)
            evidence[name] = {"ratio": ratio, "eager": _operations(partial(function, *args)), "graph": _tensor_ops(scripted.graph_for(*args))}
    inside.tell(said=said, evidence=evidence)


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
    return sum(node.kind().startswith("aten::") and any(str(out.type()) == "Tensor" for out in node.outputs()) for node in _nodes(graph))


def _nodes(block: Any) -> list[Any]:
    """All nodes of a graph, those in its loops and branches included."""
    found = []
    for node in block.nodes():
        found.append(node)
        for inner in node.blocks():
            found += _nodes(inner)
    return found


# --- 01.2: make a function scriptable ----------------------------------------------------------------------------------------


def trailing_means(x: Tensor, sizes: list[int], scale: float | None = None) -> tuple[Tensor, int]:
    """The twin of exercise 01.2."""
    means = torch.stack([x[max(0, len(x) - size) :].mean() for size in sizes])
    return means if scale is None else means * scale, sum(size > len(x) for size in sizes)


def means(answer: ModuleType) -> None:
    found = getattr(answer, "trailing_means", None)
    if not isinstance(found, torch.jit.ScriptFunction):  # `@torch.jit.script` above it is fine, too
        inside.function(answer, "trailing_means", "x", "sizes", "scale")
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
        inside.problem(
            "The scripted function calls back into Python: such a graph cannot be saved, and holds the lock. All of its work must be in the graph.", "python"
        )
    versions = {"scripted": scripted} if isinstance(found, torch.jit.ScriptFunction) else {"called by Python": found, "scripted": scripted}
    results = []
    for n, sizes, scale in MEANS_CASES:
        x = torch.rand(n, generator=torch.Generator().manual_seed(n))
        wanted, short = trailing_means(x, sizes, scale)
        for how, version in versions.items():
            case = f"{n} numbers, sizes {sizes if len(sizes) < 6 else '1 to 39'}, scale {scale}, {how}"
            try:
                got = version(x, sizes, scale)
            except RuntimeError as error:
                if "Expected a value of type" in str(error):
                    inside.problem(
                        f"The scripted function does not take its arguments ({case}): {_first_line(error)}",
                        "scale" if "argument 'scale'" in str(error) else "types",
                    )
                raise
            results.append({"case": case, "wanted": [wanted.tolist(), short], "got": _means(got), "right": _same(got, wanted, short)})
    inside.tell(results=results, operations=sum(node.kind().startswith("aten::") for node in _nodes(scripted.graph)))


def _does_not_compile(error: Exception) -> NoReturn:
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    told = lines[0].strip().rstrip(":.") if lines else type(error).__name__
    reasons = [line.strip().rstrip(".") for line in lines[1:] if line.strip().startswith(("Expected a value of type", "Could not match type"))]
    told = reasons[0] if reasons else told
    if "Optional[float] to bool" in told:  # `if scale:`
        inside.problem(f"torch.jit.script does not take it: {told}. That is the test of `scale`.", "zero")
    if 'parameter "scale"' in told:
        inside.problem(f"torch.jit.script does not take it: {told}", "scale")
    at = next((f" At: `{lines[i - 1].strip()}`" for i, line in enumerate(lines) if "<--- HERE" in line and i), "")
    inside.problem(f"torch.jit.script does not take it: {told}.{at}", "untyped" if "inferred" in told or "type Tensor" in told else "does not compile")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.startswith("Expected a value")), lines[0])


def _means(got: Any) -> Any:
    if not isinstance(got, tuple) or len(got) != 2 or not isinstance(got[0], Tensor) or not isinstance(got[1], int):
        inside.problem(f"`trailing_means` returned {got!r:.80}; it must return a tensor and an int.", "type")
    return [got[0].tolist(), got[1]]


def _same(got: Any, wanted: Tensor, short: int) -> bool:
    return got[0].shape == wanted.shape and torch.allclose(got[0], wanted, atol=1e-6) and got[1] == short


# --- 01.3: find the graph breaks ---------------------------------------------------------------------------------------------

LIMIT = 2.0


def clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    """The twin of exercise 01.3."""
    y = torch.sin(x) * 3
    norm = y.norm()
    return (y * (LIMIT / norm) if norm > LIMIT else y), norm


def breaks(answer: ModuleType) -> None:
    import logging

    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    function = inside.function(answer, "clipped", "x")
    base = torch.rand(16, generator=torch.Generator().manual_seed(1)) - 0.3
    values = []
    for scale in CLIP_SCALES:
        got = function(base * scale, doing=f"clipping an input {'of zeros' if not scale else f'scaled by {scale}'}")
        if not isinstance(got, tuple) or len(got) != 2 or not all(isinstance(t, Tensor) for t in got):
            inside.problem(f"`clipped` returned {got!r:.80}; it must return two tensors.", "type")
        wanted = clipped(base * scale)
        values.append([float(t.norm()) for t in (*got, *wanted)] + [all(_close(g, w) for g, w in zip(got, wanted, strict=True))])

    def caller(x: Tensor) -> Any:  # what is compiled itself is captured even where it asks not to be
        return answer.clipped(x)

    found = torch._dynamo.explain(caller)(base)
    reasons = []
    for reason in found.break_reasons:
        where = [frame for frame in reason.user_stack if frame.filename == answer.__file__]
        reasons.append([where[-1].lineno if where else 0, reason.reason.splitlines()[0][:90]])
    torch._dynamo.reset()
    compilations = 0

    def backend(graph: Any, _: Any) -> Any:
        nonlocal compilations
        compilations += 1
        return graph.forward

    compiled = torch.compile(caller, backend=backend)
    fits = [all(_close(g, w) for g, w in zip(compiled(base * s), clipped(base * s), strict=True)) for s in CLIP_SCALES]
    inside.tell(values=values, graphs=found.graph_count, reasons=reasons, compilations=compilations, fits=fits)


def _close(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and torch.allclose(got, wanted, atol=1e-6)


# --- 01.4: when is it paid back? ---------------------------------------------------------------------------------------------


def paid(answer: ModuleType) -> None:
    function = inside.function(answer, "calls_until_paid", "first_us", "eager_us", "compiled_us")
    got = []
    for case in PAID_CASES:
        value = function(*case, doing="counting calls for first {} µs, eager {} µs, compiled {} µs".format(*case))
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            inside.problem(f"`calls_until_paid{case}` returned {value!r}; it must return an int, or None.", "type")
        got.append(value)
    inside.tell(got=got)


if __name__ == "__main__":
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", message="`torch.jit", category=category)
    tasks = {"winners": winners, "means": means, "breaks": breaks, "paid": paid}
    tasks[sys.argv[1]](inside.load(sys.argv[2]))
