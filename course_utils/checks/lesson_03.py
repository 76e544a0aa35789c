"""Lesson 03: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import hints_03
from .base import Difference, Exercise, on_ranks, some
from .cases_03 import BYTES_CASES, GATHER_CASES, LOSS_CASES, SCATTER_CASES, UNEQUAL, shown

ADAPTER = Path(__file__).resolve().parent / "ranks_03.py"
HOW = "beside a DataParallel of four places on the CPU"


# --- 03.1 -------------------------------------------------------------------------------------------------------------------


def judge_pieces(answer: Path) -> list[str]:
    (told,) = on_ranks(ADAPTER, "pieces", answer, ranks=1)
    for (shape, n), got in zip(SCATTER_CASES, told["scattered"], strict=True):
        _scattered(shape, n, got)
    for (shape, n), got in zip(UNEQUAL, told["unequal"], strict=True):
        if got != "ValueError":
            raise Difference(
                "rows differ", f"The tensors in {shown(shape)} have different numbers of rows, and `scatter` over {n} devices returned {_values(got)}.",
                "ValueError: otherwise rows are lost, or matched with the wrong ones", [f"{_values(got)} and no error"],
            )  # fmt: skip
    for parts, got in zip(GATHER_CASES, told["gathered"], strict=True):
        wanted = _joined(parts)
        if got != wanted:
            scalars = isinstance(parts[0], tuple) and parts[0][:1] == ("scalar",)
            what = "numbers without dimensions" if scalars else shown(parts)
            raise Difference("scalars" if scalars else "joined", f"Gathering {what} gives something else.", _told(wanted), [_told(got)])
    if not told["gradient"]:
        raise Difference("no gradient", "The gradient of what was gathered does not reach what was scattered.", "autograd goes back through both functions")
    return [
        f"{len(SCATTER_CASES)} values of 1 to 12 rows, in tuples, lists and dicts: the chunks that DataParallel makes, no empty ones",
        "what is not a tensor is handed on as it is; tensors with different numbers of rows are refused",
        f"{len(GATHER_CASES)} results joined again, numbers as a vector; the gradient passes through both",
    ]


def _scattered(shape: Any, n: int, got: list[Any]) -> None:
    sizes = _sizes(shape, n)
    wanted = [_part(shape, k, n) for k in range(len(sizes) if sizes else n)]
    if got == wanted:
        return
    case = f"{shown(shape)} over {n} device{'s' * (n > 1)}"
    if isinstance(shape, int):
        rows = [p[1][0] if isinstance(p, list) and p[0] == "tensor" and p[1] else None for p in got]
        symptom = "idle devices" if len(got) > len(wanted) and rows[: len(wanted)] == sizes else "chunks"
        raise Difference(symptom, f"Scattering {case} gives other chunks.", f"chunks of {some(sizes)} rows, in their order", [f"chunks of {some(rows)} rows"])
    if len(got) != len(wanted):
        raise Difference("too many" if len(got) > len(wanted) else "chunks", f"Scattering {case} gives {_values(len(got))}.", _values(len(wanted)))
    k = next(k for k in range(len(wanted)) if got[k] != wanted[k])
    symptom = "other objects" if "'another'" in str(got[k]) or shape == "object" else "container"
    raise Difference(symptom, f"Scattering {case}, device {k} gets something else.", _told(wanted[k]), [_told(got[k])])


def _values(n: Any) -> str:
    return f"{n} value{'s' * (n != 1)}"


def _rows(shape: Any) -> int:
    """The rows of the tensors in a case; 0 without a tensor."""
    if isinstance(shape, int):
        return shape
    parts = list(shape.values()) if isinstance(shape, dict) else list(shape) if isinstance(shape, (list, tuple)) else []
    return max((_rows(part) for part in parts), default=0)


def _sizes(shape: Any, n: int) -> list[int]:
    rows = _rows(shape)
    size = -(-rows // n)
    return [min(size, rows - start) for start in range(0, rows, size)] if rows else []


def _tensor(first: int, rows: int) -> list[Any]:
    return ["tensor", [rows, 3], [float(v) for v in range(3 * first, 3 * (first + rows))]]


def _part(shape: Any, k: int, n: int) -> Any:
    """What device k gets of a case, in the words of the adapter."""
    if isinstance(shape, int):
        sizes = _sizes(shape, n)
        return _tensor(sum(sizes[:k]), sizes[k])
    if isinstance(shape, str):
        return ["object", "the same"] if shape == "object" else ["str", shape]
    if isinstance(shape, dict):
        return ["dict", {name: _part(part, k, n) for name, part in shape.items()}]
    return [type(shape).__name__, [_part(part, k, n) for part in shape]]


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, tuple) and first[:1] == ("scalar",):
        return ["tensor", [len(parts)], [float(p[1]) for p in parts]]
    if isinstance(first, int):
        return ["tensor", [sum(parts), 3], [float(v) for rows in parts for v in range(3 * rows)]]
    if isinstance(first, dict):
        return ["dict", {name: _joined([p[name] for p in parts]) for name in first}]
    return [type(first).__name__, [_joined([p[i] for p in parts]) for i in range(len(first))]]


def _told(value: Any) -> str:
    """What the adapter told of a value, for people: `(tensor of shape [3, 3], the same object)`."""
    kind, what = value[0], value[1]
    if kind == "tensor":
        return f"tensor of shape {what}, first numbers {some([f'{v:g}' for v in value[2]], 3)}"
    if kind == "object":
        return f"{what} object"
    if kind == "dict":
        return "{" + ", ".join(f"{name!r}: {_told(part)}" for name, part in what.items()) + "}"
    if kind in ("list", "tuple"):
        inner = ", ".join(_told(part) for part in what)
        return f"[{inner}]" if kind == "list" else f"({inner})"
    return f"{what!r}, a {kind}"


# --- 03.2 -------------------------------------------------------------------------------------------------------------------

# What each case adds to those before it, and so what is wrong when it is the first that differs.
ADDS = ("wrong", "wrong", "one device", "elements", "uneven", "idle devices", "tied", "frozen", "buffers")


def judge_bytes(answer: Path) -> list[str]:
    (told,) = on_ranks(ADAPTER, "bytes", answer, ranks=1)
    for (kind, rows, n), adds, case in zip(BYTES_CASES, ADDS, told["cases"], strict=True):
        got, truth = case["got"], case["truth"]
        if got == truth:
            continue
        raise Difference(
            _kind_of_miscount(case, n) if adds == "wrong" else adds,
            f"The first of {n} device{'s' * (n > 1)}, {rows} samples ({_model(kind)}): another number of bytes was counted.",
            f"sent {truth[0]:,} bytes, received {truth[1]:,}", [f"sent {got[0]:,} bytes, received {got[1]:,}"],
        )  # fmt: skip
    return [
        f"{len(BYTES_CASES)} steps on 1 to 4 devices: exactly the bytes that a counted step moved",
        "tied weights once, frozen ones without a gradient, buffers, uneven chunks and idle devices",
    ]


def _kind_of_miscount(case: dict[str, Any], n: int) -> str:
    """The usual mistakes in an even batch, each recognised by the numbers that it gives."""
    got, (sent, received) = case["got"], case["truth"]
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
        "plain": "two linear layers", "double": "two linear layers in float64", "tied": "an embedding and a head that share a matrix",
        "frozen": "the first layer is frozen", "buffers": "with BatchNorm",
    }[kind]  # fmt: skip


# --- 03.3 -------------------------------------------------------------------------------------------------------------------


def judge_checkpoint(answer: Path) -> list[str]:
    said = {r"sub(weight|bias)": "name inside", r"Error\(s\) in loading state_dict": "keys"}
    (told,) = on_ranks(ADAPTER, "checkpoint", answer, ranks=1, said=said)
    if wrong := [name for name, ok in told["saved"].items() if not ok]:
        own = all(name.startswith("Owner") for name in wrong)
        raise Difference("own module" if own else "prefix saved", f"`bare_state` returns other names than the bare model has ({_named(wrong[0])}).",
                         "the names of the model itself, without the wrapper's `module.`")  # fmt: skip
    for case, wrong in told["loaded"].items():
        if wrong:
            before = "norm.running_mean" in wrong and "norm.bias" not in wrong and "submodule.weight" not in wrong
            symptom = "own module" if case.startswith("Owner") else "state" if before else "nothing loaded"
            raise Difference(symptom, f"After `load_state`, {_named(case)}: {len(wrong)} entries are not those of the state.",
                             "every weight and buffer of the state", [some(wrong, 4)])  # fmt: skip
    if told["lenient"]:
        raise Difference(
            "lenient", f"`load_state` accepted a state with {told['lenient'][0]}, without an error.", "an exception: this is not the model's state"
        )
    if told.get("changed"):
        raise Difference("state changed", "After `load_state` the caller's dict has other names.", "a state that can be loaded again")
    return [
        "saved from a plain and from a wrapped model: the same names",
        "loaded in all four directions, weights and buffers; also where a model has a part called `module`, or `submodule`",
        "a state of another model is refused, and the caller's dict is left alone",
    ]


def _named(case: str) -> str:
    return case.replace("Owner", "a model with a part called `module`").replace("Net", "a model with a part called `submodule`")


# --- 03.4 -------------------------------------------------------------------------------------------------------------------


def judge_loss(answer: Path) -> list[str]:
    (told,) = on_ranks(ADAPTER, "loss", answer, ranks=1)
    for (rows, n, ignored), seen in zip(LOSS_CASES, told["cases"], strict=True):
        size = -(-rows // n)
        chunks = [min(size, rows - start) for start in range(0, rows, size)]
        case = f"{rows} samples in chunks of {some(chunks)}" + (f", {len(ignored)} of them ignored" if ignored else "")
        symptom = _loss_symptom(seen, rows, len(chunks), len(set(chunks)) == 1, bool(ignored))
        if symptom:
            got = [f"loss {seen['loss']:.6f}, its gradient {seen['factor']:.4f} times as long" if "factor" in seen else f"loss {seen['loss']:.6f}"]
            expected = {"too much": "at most 4 numbers from each replica", "no gradient": "a loss that autograd can go back from"}.get(
                symptom, f"loss {seen['right']:.6f} and its gradient, as of one device over the whole batch"
            )
            if symptom == "too much":
                got = [f"{seen['numbers']:g} numbers from each replica"]
            raise Difference(symptom, f"{case}: {_loss_words(symptom)}.", expected, got)
    return [
        f"{len(LOSS_CASES)} batches of 7 to 12 samples on 3 and 4 devices: loss and gradient of one device, also for uneven chunks",
        "ignored labels do not count, not even where a replica has nothing else",
        "a replica returns a few numbers, however many samples it has",
    ]


def _loss_symptom(seen: dict[str, Any], rows: int, replicas: int, even: bool, ignored: bool) -> str:
    loss, right = seen["loss"], seen["right"]
    if not seen["gradient"]:
        return "no gradient"
    if seen["numbers"] > 4 or (not even and seen["numbers"] * replicas == rows):
        return "too much"
    if loss != loss:
        return "not a number"
    if abs(loss - right) < 1e-9 * max(1.0, abs(right)):
        return "" if seen["gap"] < 1e-9 else "gradient"
    if ignored:
        return "ignored"
    if abs(loss / right / replicas - 1) < 1e-9:
        return "sum of means"
    if abs(loss / right / rows - 1) < 1e-9:
        return "not divided"
    return "mean of means" if not even else "wrong"


def _loss_words(symptom: str) -> str:
    return {
        "no gradient": "the loss has no gradient", "too much": "the replicas return too much", "not a number": "the loss is not a number",
        "gradient": "the loss is right and its gradient is not", "sum of means": "the loss is as many times too large as there are replicas",
        "not divided": "the loss is as many times too large as there are samples",
    }.get(symptom, "the loss is another one than that of one device")  # fmt: skip


EXERCISES = {
    e.name: e
    for e in [
        Exercise("03.1", "cut a batch, and join what comes back", judge_pieces, hints_03.PIECES, how=""),
        Exercise("03.2", "predict the bytes of the first device", judge_bytes, hints_03.BYTES, how=HOW),
        Exercise("03.3", "a checkpoint with and without the wrapper", judge_checkpoint, hints_03.CHECKPOINT, how=""),
        Exercise("03.4", "the loss of uneven replicas", judge_loss, hints_03.LOSS, how=HOW),
    ]
}
