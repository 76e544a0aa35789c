"""Lesson 08: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

# 08.1: gradients of several layers, a list of numbers each; and scales. 6e-8 is the smallest number of fp16, 6.1e-5 the smallest with full precision.
NAN = float("nan")
GRADIENT_CASES: list[tuple[list[list[float]], float]] = [
    ([[1e-3, -2e-2, 1e-9, 0.0]], 1.0),
    ([[1e-3, -2e-2, 1e-9, 0.0]], 1024.0),
    ([[1e-6, 3e-7, -1e-6], [1e-9, -1e-9, 0.0, 0.0, 5e-9, 2e-3, 1e-4]], 1.0),
    ([[4e-9, -3.0], [2e-9, 8.0, 1e-9, -0.25, 1e-2]], 16384.0),
    ([[-9.0], [2e-5, 1e-5, -3e-10]], 65536.0),
]
SCALE_CASES: list[list[list[float]]] = [
    [[1e-3, -2e-2, 1e-9]],
    [[0.5, 1e-7], [-7.0, 2.0]],
    [[1.0, -1.0, 0.25]],
    [[300.0, 1e-8], [-900.0]],
    [[0.0, 3e-7], [-1.1e-6]],
]
LARGEST = 65504.0

# 08.2: for each step the factor of the gradients; the scaler's settings
INF = float("inf")
SCALER_CASES: list[tuple[list[float], dict[str, float]]] = [
    ([1.0, -2.0, 0.5], {"scale": 1024.0, "interval": 100}),
    ([1.0, INF, 1.0, NAN, 2.0, 1.0], {"scale": 1024.0, "interval": 100}),
    ([1.0, 1.0, 1.0, INF, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0], {"scale": 256.0, "interval": 3}),
    ([1.0, 1.0, INF, INF, 1.0, 1.0, 1.0, 1.0], {"scale": 2.0, "interval": 3, "growth": 4.0, "backoff": 0.25}),  # and below 1
]

# 08.3: products_s, rest_s, weights, compute_ratio, memory_Bps
SPEED_CASES: dict[str, tuple[float, float, float, float, float]] = {
    "an MLP with a large batch": (0.080, 0.004, 6.4e6, 7.0, 12e9),
    "the same with a small batch": (0.005, 0.001, 6.4e6, 7.0, 12e9),
    "a CNN": (0.050, 0.021, 0.24e6, 7.0, 12e9),
    "a CNN, no instructions for bf16": (0.050, 0.021, 0.24e6, 0.9, 12e9),
    "a transformer on a GPU": (0.300, 0.060, 350e6, 15.0, 2e12),
}

# 08.4
DTYPES_TRIED = ("float16", "bfloat16")
