"""Lesson 03: what its exercises ask for, and what shows that an answer doesn't do it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Exercise, differ, require, some
from . import cases
from .cases import shown
from .convert_judge import judge_convert
from .loss_judge import judge_loss

HOW = "beside a DataParallel of four places on the CPU"


# --- 03.1 -------------------------------------------------------------------------------------------------------------


def judge_pieces(answer: Answer) -> list[str]:
    (told,) = answer.on_ranks("pieces", ranks=1)
    scattered, unequal, gathered = cases.pieces(told["seed"])
    for (shape, n), got in zip(scattered, told["scattered"], strict=True):
        _scattered(shape, n, got)
    for (shape, n), got in zip(unequal, told["unequal"], strict=True):
        if got != "ValueError":
            differ("rows differ", [f"{counted(got, 'value')} and no error"], case=shown(shape), n=n, found=got)
    for parts, got in zip(gathered, told["gathered"], strict=True):
        wanted = _joined(parts)
        symptom = "scalars" if isinstance(parts[0], tuple) and parts[0][:1] == ("scalar",) else "joined"
        require(got == wanted, symptom, [_told(got)], case=shown(parts), wanted=_told(wanted))
    require(told["gradient"], "no gradient")
    return [
        (
            f"{len(scattered)} values of 1 to 40 rows, in tuples, lists and dicts: the chunks that DataParallel"
            " makes, no empty ones"
        ),
        "what is not a tensor is handed on as it is; tensors with different numbers of rows are refused",
        f"{len(gathered)} results joined again, numbers as a vector; the gradient passes through both",
    ]


def _scattered(shape: Any, n: int, got: list[Any]) -> None:
    sizes = _sizes(shape, n)
    wanted = [_part(shape, k, n) for k in range(len(sizes) if sizes else n)]
    if got == wanted:
        return
    case = f"{shown(shape)} over {counted(n, 'device')}"
    if isinstance(shape, int):
        rows = [p[1][0] if isinstance(p, list) and p[0] == "tensor" and p[1] else None for p in got]
        symptom = "idle devices" if len(got) > len(wanted) and rows[: len(wanted)] == sizes else "chunks"
        differ(symptom, [f"chunks of {some(rows)} rows"], how="rows", case=case, sizes=some(sizes))
    if len(got) != len(wanted):
        symptom = "too many" if len(got) > len(wanted) else "chunks"
        differ(symptom, how="values", case=case, found=len(got), wanted=len(wanted))
    k = next(k for k in range(len(wanted)) if got[k] != wanted[k])
    symptom = "other objects" if "'another'" in str(got[k]) or shape == "object" else "container"
    differ(symptom, [_told(got[k])], case=case, k=k, wanted=_told(wanted[k]))


def _rows(shape: Any) -> int:
    """The rows of the tensors in a case; 0 if there are none."""
    if isinstance(shape, int):
        return shape
    parts = list(shape.values()) if isinstance(shape, dict) else list(shape) if isinstance(shape, (list, tuple)) else []
    return max((_rows(part) for part in parts), default=0)


def _sizes(shape: Any, n: int) -> list[int]:
    rows = _rows(shape)
    size = -(-rows // n)
    return [min(size, rows - start) for start in range(0, rows, size)] if rows else []


def _tensor(first: int, rows: int, dtype: str) -> list[Any]:
    numbers = [float(v) for v in range(3 * first, 3 * (first + rows))]
    return ["tensor", [rows, 3], [float(v != 0) for v in numbers] if dtype == "bool" else numbers, dtype]


def _part(shape: Any, k: int, n: int, dtypes: Iterator[str] | None = None) -> Any:
    """What device k should get, written as the task tells it."""
    dtypes = dtypes or itertools.cycle(cases.DTYPES)
    if isinstance(shape, int):
        sizes = _sizes(shape, n)
        return _tensor(sum(sizes[:k]), sizes[k], next(dtypes))
    if isinstance(shape, str):
        return ["object", "the same"] if shape == "object" else ["str", shape]
    if isinstance(shape, dict):
        return ["dict", {name: _part(part, k, n, dtypes) for name, part in shape.items()}]
    return [type(shape).__name__, [_part(part, k, n, dtypes) for part in shape]]


def _joined(parts: list[Any], dtypes: Iterator[str] | None = None) -> Any:
    dtypes, first = dtypes or itertools.cycle(cases.DTYPES), parts[0]
    if isinstance(first, tuple) and first[:1] == ("scalar",):
        return ["tensor", [len(parts)], [float(p[1]) for p in parts], "float32"]
    if isinstance(first, int):
        dtype = next(dtypes)
        pieces = [_tensor(0, rows, dtype)[2] for rows in parts]
        return ["tensor", [sum(parts), 3], sum(pieces, []), dtype]
    if isinstance(first, dict):
        return ["dict", {name: _joined([p[name] for p in parts], dtypes) for name in first}]
    return [type(first).__name__, [_joined([p[i] for p in parts], dtypes) for i in range(len(first))]]


def _told(value: Any) -> str:
    """A value, as the task told it, in words: `(tensor of shape [3, 3], the same object)`."""
    kind, what = value[0], value[1]
    if kind == "tensor":
        return f"{value[3]} tensor of shape {what}, first numbers {some([f'{v:g}' for v in value[2]], 3)}"
    if kind == "object":
        return f"{what} object"
    if kind == "dict":
        return "{" + ", ".join(f"{name!r}: {_told(part)}" for name, part in what.items()) + "}"
    if kind in ("list", "tuple"):
        inner = ", ".join(_told(part) for part in what)
        return f"[{inner}]" if kind == "list" else f"({inner})"
    return f"{what!r}, a {kind}"


# --- 03.2 -------------------------------------------------------------------------------------------------------------

# The difficulty that each case adds: it is what's wrong when that case is the first that differs.
ADDS = (
    *("wrong", "wrong", "one device", "elements", "uneven", "idle devices", "elements", "tied"),
    *("frozen", "frozen", "buffers", "buffers"),
)


def judge_bytes(answer: Answer) -> list[str]:
    steps = cases.bytes_cases(random.Random())
    counts = answer.on_ranks("first_bytes", ranks=1, given=steps)[0]["counted"]
    twin = answer.on_ranks("twins.step_bytes", ranks=1, given=steps)[0]["cases"]
    drawn = ("wrong",) * (len(steps) - len(ADDS))
    for (kind, rows, n), adds, got, case in zip(steps, ADDS + drawn, counts, twin, strict=True):
        sent, received = case["truth"]
        if got == [sent, received]:
            continue
        symptom = _kind_of_miscount(got, case, n) if adds == "wrong" else adds
        said = [f"sent {got[0]:,} bytes, received {got[1]:,}"]
        differ(symptom, said, n=n, rows=rows, model=_model(kind), sent=sent, received=received)
    return [
        f"{len(steps)} steps on 1 to 12 devices: exactly the bytes that a counted step moved",
        "tied weights once, frozen ones without a gradient, buffers, uneven chunks and idle devices",
    ]


def _kind_of_miscount(got: list[float], case: dict[str, Any], n: int) -> str:
    """Which of the usual mistakes gives these numbers, in an even batch."""
    sent, received = case["truth"]
    away_in, away_out = case["inputs"] * (n - 1) // n, case["outputs"] * (n - 1) // n
    weights = received - away_out
    if got == [received, sent]:
        return "directions"
    if got == [sent - away_out, received]:
        return "output gradients"
    if got[0] * case["elements"] == sent:
        return "elements"
    for copies in (weights, weights * n // (n - 1)):
        for inputs, outputs in ((away_in, away_out), (case["inputs"], case["outputs"])):
            if got == [copies + inputs + outputs, copies + outputs]:
                return "own share"
    return "wrong"


def _model(kind: str) -> str:
    return {
        "plain": "two linear layers",
        "double": "two linear layers in float64",
        "tokens": "an embedding of tokens, int64, and a linear layer",
        "tied": "an embedding and a head that share a matrix",
        "frozen": "the first layer is frozen",
        "frozen bias": "the last layer's bias is frozen, its weight is not",
        "buffers": "with BatchNorm",
        "own buffer": "with a buffer that is in no state_dict",
    }[kind]


# --- 03.3 -------------------------------------------------------------------------------------------------------------


def judge_checkpoint(answer: Answer) -> list[str]:
    said = {r"sub(weight|bias)": "name inside", r"Error\(s\) in loading state_dict": "keys"}
    (told,) = answer.on_ranks("checkpoint", ranks=1, said=said)
    if wrong := [name for name, ok in told["saved"].items() if not ok]:
        own = all(name.startswith("Owner") for name in wrong)
        differ("own module" if own else "prefix saved", how="saved", case=_named(wrong[0]))
    if told["values"]:
        differ("saved values", case=_named(told["values"][0]))
    for case, wrong in told["loaded"].items():
        before = "norm.running_mean" in wrong and "norm.bias" not in wrong and "submodule.weight" not in wrong
        symptom = "own module" if case.startswith("Owner") else "state" if before else "nothing loaded"
        require(not wrong, symptom, [some(wrong, 4)], how="loaded", case=_named(case), entries=len(wrong))
    if told["replaced"]:
        differ("not in place", name=told["replaced"][0])
    if told["lenient"]:
        differ("lenient", what=told["lenient"][0])
    require(not told.get("changed"), "state changed")
    return [
        "saved from a plain and from a wrapped model: the same names",
        (
            "loaded in all four directions, weights and buffers; also where a model has a part called `module`, or"
            " `submodule`"
        ),
        "a state of another model is refused, and the caller's dict is left alone",
    ]


def _named(case: str) -> str:
    return case.replace("Owner", "a model with a part called `module`").replace(
        "Net", "a model with a part called `submodule`"
    )


SCRIPT = "78b039f7fd6a"  # the script of 03.5 as the notebook hands it out

EXERCISES = {
    e.name: e
    for e in [
        Exercise("03.1", "cut a batch, and join what comes back", judge_pieces, how=""),
        Exercise("03.2", "predict the bytes of the first device", judge_bytes, how=HOW),
        Exercise("03.3", "a checkpoint with and without the wrapper", judge_checkpoint, how=""),
        Exercise(
            "03.4", "the loss of uneven replicas", judge_loss, how="with the replicas in other processes than the total"
        ),
        Exercise("03.5", "convert a script", judge_convert, SCRIPT, how=HOW),
    ]
}
