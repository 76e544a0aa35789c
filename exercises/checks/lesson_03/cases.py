"""Lesson 03: what a check asks of an answer. Judge and ranks both import it; each check draws some cases anew."""

import random
from typing import Any

# 03.1: (value, devices). A number means a tensor with that many rows, "object" something that isn't a tensor.
SCATTER_CASES: list[tuple[Any, int]] = [
    (12, 4),
    (10, 4),
    (5, 4),
    (3, 4),
    (1, 4),
    (7, 1),
    (11, 6),
    ("object", 3),
    ((10, 10), 4),
    ((10, "object"), 4),
    ([6, "name", 6], 2),
    ({"ids": 5, "mask": 5, "options": "object"}, 4),
    (({"ids": 9, "more": [9, "object"]}, 9), 4),
    ((10, ()), 4),
    ({"x": 6, "extra": [], "more": {}}, 3),
    ([], 3),
]
UNEQUAL: list[tuple[Any, int]] = [((12, 1), 4), ({"x": 8, "y": 6}, 2), ((8, [4]), 2)]  # (value, devices): rows differ
# What replicas return; ("scalar", v) means a tensor without dimensions.
GATHER_CASES: list[list[Any]] = [
    [3, 3, 3, 1],
    [2],
    [("scalar", 1), ("scalar", 2), ("scalar", 3)],
    [(2, 2), (2, 2), (1, 1)],
    [[4, 4], [3, 3]],
    [{"logits": 2, "hidden": [2]}, {"logits": 1, "hidden": [1]}],
    [(("scalar", 1), 2), (("scalar", 2), 1)],
    [("scalar", 5)],
]
DTYPES = ("float64", "int64", "float32", "bool")  # the tensors in a value take them in turn


def pieces(seed: int) -> tuple[list[tuple[Any, int]], list[tuple[Any, int]], list[list[Any]]]:
    """What is scattered, what must be refused, and what is gathered: the cases above, and some drawn ones."""
    draw = random.Random(seed)
    scattered, unequal, gathered = list(SCATTER_CASES), list(UNEQUAL), list(GATHER_CASES)
    for devices in (draw.randint(2, 4), draw.randint(5, 12), draw.randint(5, 12)):
        rows = draw.randint(1, 40)
        shape = nested(draw, rows)
        scattered += [(rows, devices), (shape, devices)]
        unequal.append(((shape, {"last": [rows + draw.randint(1, 3)]}), devices))
        parts = [draw.randint(1, 4) for _ in range(devices)]
        gathered.append([{"y": (p, [p]), "loss": ("scalar", p)} for p in parts])
    return scattered, unequal, gathered


def nested(draw: random.Random, rows: int, depth: int = 3) -> Any:
    """A container with objects and tensors, all with `rows` rows, nested `depth` deep."""
    inner = nested(draw, rows, depth - 1) if depth > 1 else rows
    parts = [inner, rows, "object", "name"]
    draw.shuffle(parts)
    kind = draw.choice(["tuple", "list", "dict"])
    if kind == "dict":
        return dict(zip(draw.sample("abcdefgh", 4), parts, strict=True))
    return tuple(parts) if kind == "tuple" else parts


# 03.2: (model, samples, devices); each case adds one difficulty
BYTES_CASES = [
    ("plain", 12, 4),
    ("plain", 8, 2),
    ("plain", 6, 1),
    ("double", 12, 4),
    ("plain", 10, 4),
    ("plain", 5, 4),
    ("tokens", 12, 4),
    ("tied", 12, 4),
    ("frozen", 12, 4),
    ("frozen bias", 12, 4),
    ("buffers", 12, 4),
    ("own buffer", 12, 4),
]


def bytes_cases(draw: random.Random) -> list[tuple[str, int, int]]:
    """The cases above, and some whose samples and devices are drawn."""
    kinds = ["plain", "double", "tied", "frozen bias", "own buffer"]
    return BYTES_CASES + [(kind, draw.randint(2, 40), draw.randint(2, 12)) for kind in kinds]


# 03.4: (samples, devices, indices of ignored labels); in the last, one replica has nothing else
LOSS_CASES: list[tuple[int, int, list[int]]] = [
    (12, 4, []),
    (10, 4, []),
    (7, 3, []),
    (12, 4, [0, 1, 7]),
    (10, 4, [0, 1, 2, 9]),
]


def loss_cases(draw: random.Random) -> list[tuple[int, int, list[int]]]:
    """The cases above, and some drawn ones."""
    drawn = []
    for _ in range(3):
        rows, devices = draw.randint(5, 40), draw.randint(2, 7)
        drawn.append((rows, devices, sorted(draw.sample(range(rows), draw.randint(0, rows // 2)))))
    return LOSS_CASES + drawn


def loss_batch(draw: random.Random, rows: int, ignored: list[int]) -> dict[str, Any]:
    """x [rows, 6], labels of 4 classes, the classes' weights, and parameters [4, 6 + 1] whose last column is the bias.
    Numbers are multiples of 1/256."""

    def numbers(n: int) -> list[float]:
        return [round(draw.gauss(0, 256)) / 256 for _ in range(n)]

    y = [-100 if i in ignored else draw.randrange(4) for i in range(rows)]
    weight = draw.sample([0.25, 0.5, 1.5, 2.0, 3.0, 5.0], 4)
    return {
        "x": [numbers(6) for _ in range(rows)],
        "y": y,
        "weight": weight,
        "parameters": [numbers(7) for _ in range(4)],
    }


# 03.5: the script's batches have 8 samples, and the last has 5: on four devices chunks of 2, 2 and 1
SAMPLES, BATCH, EPOCHS, FILE = 37, 8, 2, "model.pt"


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
