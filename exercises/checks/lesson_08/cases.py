"""Lesson 08: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

from random import Random

# 08.1: gradients of several layers, a list of numbers each; and scales. 6e-8 is the smallest number of fp16, 6.1e-5 the
# smallest with full precision.
NAN = float("nan")
GRADIENT_CASES: list[tuple[list[list[float]], float]] = [
    ([[1e-3, -2e-2, 1e-9, 0.0]], 1.0),
    ([[1e-3, -2e-2, 1e-9, 0.0]], 1024.0),
    ([[1e-6, 3e-7, -1e-6], [1e-9, -1e-9, 0.0, 0.0, 5e-9, 2e-3, 1e-4]], 1.0),
    ([[4e-9, -3.0], [2e-9, 8.0, 1e-9, -0.25, 1e-2]], 16384.0),
    ([[-9.0], [2e-5, 1e-5, -3e-10]], 65536.0),
    ([[65510.0, -65520.0, 65504.0], [1e-9]], 1.0),
]
SCALE_CASES: list[list[list[float]]] = [
    [[1e-3, -2e-2, 1e-9]],
    [[0.5, 1e-7], [-7.0, 2.0]],
    [[1.0, -1.0, 0.25]],
    [[300.0, 1e-8], [-900.0]],
    [[0.0, 3e-7], [-1.1e-6]],
    [[65510.0, 1.0]],
    [[-65520.0, 1.0]],
    [[3e-30, -1e-31]],
]
LARGEST = 65504.0
INFINITE_FROM = 65520.0  # half a step above the largest number of fp16: anything between the two is rounded down

# 08.2: for each step the factor of the gradients; the scaler's settings
INF = float("inf")
SCALER_DEFAULTS = {"scale": 2.0**16, "growth": 2.0, "backoff": 0.5, "interval": 2000}
SCALER_CASES: list[tuple[list[float], dict[str, float]]] = [
    ([1.0, -2.0, 0.5], {"scale": 1024.0, "interval": 100}),
    ([1.0, INF, 1.0, NAN, 2.0, 1.0], {"scale": 1024.0, "interval": 100}),
    ([1.0, 1.0, 1.0, INF, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0], {"scale": 256.0, "interval": 3}),
    (
        [1.0, 1.0, INF, INF, 1.0, 1.0, 1.0, 1.0],
        {"scale": 2.0, "interval": 3, "growth": 4.0, "backoff": 0.125},
    ),  # and below 1
    ([1.0, INF, NAN, INF, INF, INF, INF, 1.0], {"scale": 1.0, "interval": 100}),  # far below 1
    ([1.0, 1.5e38], {"scale": 1.0, "interval": 100}),  # all finite, and their sum is not
    ([1.0] * 5 + [NAN, 1.0], {"scale": 2.0**23, "interval": 1}),  # as large as it gets
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


def random_gradients(rng: Random, n: int = 12) -> tuple[list[tuple[list[list[float]], float]], list[list[list[float]]]]:
    """More cases for 08.1: rows of small and large numbers with a scale, and rows without one."""

    def rows(low: float, high: float) -> list[list[float]]:
        sizes = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
        found = [  # some zeros, but never only zeros
            [rng.choice([-1, 1]) * 10 ** rng.uniform(low, high) * (rng.random() > 0.1 or i == 0) for i in range(k)]
            for k in sizes
        ]
        return [[10**high, *found[0]], *found[1:]]

    shares = []
    for _ in range(n):
        power = rng.randint(-14, 30)  # so that some become zero, and some infinite
        middle = -3 - power * 0.3
        shares.append((rows(middle - rng.uniform(1, 7), middle + rng.uniform(1, 7)), 2.0**power))
    return shares, [rows(low, low + 6) for low in (rng.uniform(-16, 3) for _ in range(n))]


def random_trainings(rng: Random, n: int = 4) -> list[tuple[list[float], dict[str, float]]]:
    """More cases for 08.2."""
    return [
        (
            [rng.choice([1.0, 1.0, 1.0, -2.0, 0.5, INF, -INF, NAN]) for _ in range(12)],
            {
                "scale": 2.0 ** rng.randint(-4, 20),
                "interval": rng.randint(1, 4),
                "growth": rng.choice([2.0, 4.0]),
                "backoff": rng.choice([0.5, 0.25]),
            },
        )
        for _ in range(n)
    ]


def random_steps(rng: Random, n: int = 12) -> dict[str, tuple[float, float, float, float, float]]:
    """More cases for 08.3, named by their numbers: 1e2 to 1e10 weights, whose casts take a good part of the step."""
    cases = {}
    for i in range(n):
        weights = float(f"{10 ** (2 + 8 * (i + rng.random()) / n):.3g}")
        ratio, rate = rng.choice([0.5, 1.0, 1.5, 2.0, 4.0, 15.0]), rng.randint(5, 3000) * 1e9
        casts = 12 * weights / rate
        products = float(f"{casts * rng.uniform(0.5, 20):.3g}")
        rest = float(f"{casts * rng.choice([0, rng.uniform(0.2, 5)]):.3g}")
        name = f"products {products:g} s, rest {rest:g} s, {weights:g} weights, ratio {ratio:g}, {rate:g} B/s"
        cases[name] = (products, rest, weights, ratio, rate)
    return cases
