"""Lesson 05: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

from ..predict import Layer, SizeSweep

# 05.1: (ranks, shape, dtype): divisible and not, fewer numbers than ranks, several dimensions, one rank
RING_CASES = [
    (2, (8,), "float64"),
    (4, (12,), "float64"),
    (4, (10,), "float64"),
    (3, (1000,), "float64"),
    (4, (5, 7), "float64"),
    (4, (3,), "float64"),
    (3, (7,), "int64"),
    (1, (5,), "float64"),
]

# 05.2
BUCKET_BYTES = 1500
DDP_STEPS = 4

# 05.4: (micro-batches, window)
WINDOWS = [(8, 4), (10, 4), (3, 4), (4, 1)]
LR = 0.1

# 05.3: tables of layers, in forward order, and what an all-reduce of so many bytes takes
MB = 2**20


def _link(latency_s: float, bandwidth_Bps: float) -> SizeSweep:
    """The sweep of a link, as it would be measured: a flat and a straight end, and a bend between them."""
    sizes = [2**k for k in range(10, 31, 2)]
    return SizeSweep((size, latency_s + size / bandwidth_Bps + (latency_s * size / bandwidth_Bps) ** 0.5) for size in sizes)


def _layers(*groups: tuple[int, float, float]) -> list[Layer]:
    """Groups of (how many, milliseconds of one layer's backward, bytes of its gradients)."""
    return [Layer(ms / 2e3, ms / 1e3, nbytes) for many, ms, nbytes in groups for _ in range(many)]


BUCKET_CASES: dict[str, tuple[list[Layer], SizeSweep]] = {
    "a convolutional network over NVLink": (_layers((10, 2.0, 0.1 * MB), (30, 0.8, 1.2 * MB), (10, 0.5, 6 * MB)), _link(40e-6, 120e9)),
    "the same over 10 Gb/s Ethernet": (_layers((10, 2.0, 0.1 * MB), (30, 0.8, 1.2 * MB), (10, 0.5, 6 * MB)), _link(400e-6, 1.1e9)),
    "a transformer of equal blocks over PCIe": (_layers((48, 1.5, 12 * MB)), _link(60e-6, 12e9)),
    "a transformer with a large embedding": (_layers((1, 0.2, 160 * MB), (24, 2.0, 28 * MB), (1, 1.0, 0.1 * MB)), _link(100e-6, 20e9)),
    "a hundred small layers and a slow start": (_layers((100, 0.08, 0.25 * MB)), _link(2.5e-3, 4e9)),
    "one large last layer": (_layers((20, 1.0, 1 * MB), (1, 4.0, 400 * MB)), _link(100e-6, 50e9)),
}
SLACK = 1.02  # a step may take 2% longer than the shortest
