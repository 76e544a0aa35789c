"""Lesson 03: what is asked of an answer, known to both sides of a check."""

from typing import Any

# 03.1: (value, devices). A number stands for a tensor with so many rows, "object" for something that is not a tensor.
SCATTER_CASES: list[tuple[Any, int]] = [
    (12, 4),
    (10, 4),
    (5, 4),
    (3, 4),
    (1, 4),
    (7, 1),
    ("object", 3),
    ((10, 10), 4),
    ((10, "object"), 4),
    ([6, "name", 6], 2),
    ({"ids": 5, "mask": 5, "options": "object"}, 4),
    (({"ids": 9, "more": [9, "object"]}, 9), 4),
]
UNEQUAL: list[tuple[Any, int]] = [((12, 1), 4), ({"x": 8, "y": 6}, 2), ((8, [4]), 2)]  # (value, devices): rows differ
# What replicas return; ("scalar", v) stands for a tensor without dimensions.
GATHER_CASES: list[list[Any]] = [
    [3, 3, 3, 1],
    [2],
    [("scalar", 1), ("scalar", 2), ("scalar", 3)],
    [(2, 2), (2, 2), (1, 1)],
    [[4, 4], [3, 3]],
    [{"logits": 2, "hidden": [2]}, {"logits": 1, "hidden": [1]}],
]

# 03.2: (model, samples, devices); each adds one thing to those before it
BYTES_CASES = [
    ("plain", 12, 4),
    ("plain", 8, 2),
    ("plain", 6, 1),
    ("double", 12, 4),
    ("plain", 10, 4),
    ("plain", 5, 4),
    ("tied", 12, 4),
    ("frozen", 12, 4),
    ("buffers", 12, 4),
]

# 03.4: (samples, devices, labels that are ignored); in the last, one replica has nothing else
LOSS_CASES: list[tuple[int, int, list[int]]] = [(12, 4, []), (10, 4, []), (7, 3, []), (12, 4, [0, 1, 7]), (10, 4, [0, 1, 2, 9])]


def shown(shape: Any) -> str:
    """A case for people: `(10 rows, an object)`."""
    if isinstance(shape, tuple) and shape[:1] == ("scalar",):
        return f"the number {shape[1]}"
    if isinstance(shape, int):
        return f"{shape} row{'s' * (shape != 1)}"
    if isinstance(shape, str):
        return "an object" if shape == "object" else repr(shape)
    if isinstance(shape, dict):
        return "{" + ", ".join(f"{name!r}: {shown(part)}" for name, part in shape.items()) + "}"
    inner = ", ".join(shown(part) for part in shape)
    return f"[{inner}]" if isinstance(shape, list) else f"({inner})"
