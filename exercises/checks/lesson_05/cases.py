"""Lesson 05: what an answer is asked, known to both sides of a check. Some cases are drawn anew each time."""

from __future__ import annotations

import random
from dataclasses import replace

from course_utils.predict import Layer, SizeSweep

# 05.1: (ranks, shape, dtype): divisible and not, fewer numbers than ranks, several dimensions, one rank
RingCase = tuple[int, tuple[int, ...], str]
RING_CASES: list[RingCase] = [
    (2, (8,), "float64"),
    (4, (12,), "float64"),
    (4, (10,), "float64"),
    (3, (1000,), "float64"),
    (4, (5, 7), "float64"),
    (4, (3,), "float64"),
    (3, (7,), "int64"),
    (1, (5,), "float64"),
    (2, (), "float64"),
]


def ring_cases(draw: random.Random) -> list[RingCase]:
    types = ["int32", "int64", "float32", "float64"]
    draw.shuffle(types)
    return RING_CASES + [
        (ranks, (draw.randint(1, 60), draw.randint(1, 9)), dtype)
        for ranks, dtype in zip((2, 3, 4, 3), types, strict=True)
    ]


SAMPLES = 6  # of a micro-batch, in 05.2 and 05.4

# 05.2
BUCKET_BYTES = 2176  # what the shared weight and its bias hold together: that bucket is full, and no more
DDP_STEPS = 4
DDP_RANKS = (2, 3)

# 05.4: (micro-batches, window)
WINDOWS = [(8, 4), (10, 4), (3, 4), (4, 1)]
LR = 0.1
KNOWN_MISTAKES = ("sum", "last window", "old gradients", "left over")


def windows(draw: random.Random) -> list[tuple[int, int]]:
    return [*WINDOWS, (draw.randint(5, 9), draw.randint(2, 3)), (7, 5)]


# 05.3: tables of layers, in forward order, and the seconds that an all-reduce takes, by its bytes
MB = 2**20


def _link(latency_s: float, bandwidth_Bps: float) -> SizeSweep:
    """A link's sweep as you'd measure it: flat for small messages, straight for large ones, with a bend between."""
    sizes = [2**k for k in range(10, 31, 2)]
    return SizeSweep(
        (size, latency_s + size / bandwidth_Bps + (latency_s * size / bandwidth_Bps) ** 0.5) for size in sizes
    )


def _layers(*groups: tuple[int, float, float]) -> list[Layer]:
    """Groups of (how many, milliseconds of one layer's backward, bytes of its gradients)."""
    return [Layer(ms / 2e3, ms / 1e3, nbytes) for many, ms, nbytes in groups for _ in range(many)]


BUCKET_CASES: dict[str, tuple[list[Layer], SizeSweep]] = {
    "a convolutional network over NVLink": (
        _layers((10, 2.0, 0.1 * MB), (30, 0.8, 1.2 * MB), (10, 0.5, 6 * MB)),
        _link(40e-6, 120e9),
    ),
    "the same over 10 Gb/s Ethernet": (
        _layers((10, 2.0, 0.1 * MB), (30, 0.8, 1.2 * MB), (10, 0.5, 6 * MB)),
        _link(400e-6, 1.1e9),
    ),
    "a transformer of equal blocks over PCIe": (_layers((48, 1.5, 12 * MB)), _link(60e-6, 12e9)),
    "a transformer with a large embedding": (
        _layers((1, 0.2, 160 * MB), (24, 2.0, 28 * MB), (1, 1.0, 0.1 * MB)),
        _link(100e-6, 20e9),
    ),
    "a hundred small layers and a slow start": (_layers((100, 0.08, 0.25 * MB)), _link(2.5e-3, 4e9)),
    "equal blocks after a tiny layer, and a slow start": (
        _layers((1, 0.1, 0.01 * MB), (30, 1.0, 20 * MB)),
        _link(5e-3, 10e9),
    ),
    "one large last layer": (_layers((20, 1.0, 1 * MB), (1, 4.0, 400 * MB)), _link(100e-6, 50e9)),
}
SLACK = 1.02  # a step may take 2% longer than the shortest


def bucket_cases(seed: int) -> dict[str, tuple[list[Layer], SizeSweep]]:
    """The fixed tables, and some of them again with all bytes, the link's too, multiplied by a factor: it multiplies
    the best size as well."""
    draw = random.Random(seed)
    factor = draw.choice([0.45, 0.6, 1.7, 2.4]) * draw.uniform(0.95, 1.05)
    more = {}
    for name in ("the same over 10 Gb/s Ethernet", "a hundred small layers and a slow start"):
        layers, _ = BUCKET_CASES[name]
        link = _link(*{"the same": (400e-6, 1.1e9 * factor), "a hundre": (2.5e-3, 4e9 * factor)}[name[:8]])
        more[f"{name}, all bytes times {factor:.2f}"] = (
            [replace(layer, nbytes=layer.nbytes * factor) for layer in layers],
            link,
        )
    return BUCKET_CASES | more
