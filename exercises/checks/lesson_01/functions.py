"""Lesson 01, exercise 1: the five functions as the notebook shows them, and what they are called with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def a(x: Tensor) -> Tensor:
    best = x
    for _ in range(10):
        spread = (torch.exp(x) - x).std()  # noqa: F841
        best = best + x.mean()
    return best


def b(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(6):
        x = torch.tanh(x @ w)
    return x


def c(words: list[str]) -> int:
    seen: dict[str, int] = {}
    for word in words:
        seen[word] = len(word)
    return len(seen)


def d(x: Tensor, w: Tensor) -> Tensor:
    total = x
    for _ in range(8):
        total = total + x @ (w @ w)
    return total


def e(m: int, n: int) -> int:
    while n != 0:
        m, n = n, m % n
    return m


def inputs() -> dict[str, tuple[Any, ...]]:
    """20,000 numbers; two matrices of 400 x 400; 300 words; 3 x 300 and 300 x 300; two numbers of six digits."""
    random = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random) / shape[-1]

    return {
        "a": (rand(20_000),),
        "b": (rand(400, 400), rand(400, 400)),
        "c": (["to", "be", "or"] * 100,),
        "d": (rand(3, 300), rand(300, 300)),
        "e": (832_040, 514_229),
    }
