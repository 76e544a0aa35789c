"""How `explore.fsdp()` draws: the blocks on every rank, and one rank's memory through the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..figures.canvas import BLUE, GREEN, INK, RUST, SKY, VERMILION
from ..units import number
from .drawing import WIDTH, Drawing
from .fsdp_order import Frame

_LOOKS = {
    "own weights": (BLUE, ""), "gathered": (GREEN, "xx"), "own gradients": (SKY, ""), "whole gradients": (SKY, "..."),
}  # fmt: skip


def row(blocks: int) -> float:
    """How high the row of a block is."""
    return 34.0 if blocks < 6 else 25.0


def draw_ranks(
    drawing: Drawing, x: float, y: float, frame: Frame, ranks: int, blocks: int, wide: float, shown: int
) -> None:
    """A column for each rank, a row for each block: upper bar weights, lower bar gradients; full ones are whole."""
    high = row(blocks)
    for rank in range(shown):
        left = x + rank * (wide + 12)
        for block in range(blocks):
            up, tall = y + block * high, high * 0.58
            own = left + wide * rank / ranks
            drawing.bar(left, up, wide, tall, "#F4F4F4", edge="#BBBBBB")
            if block == frame.arriving:
                drawing.bar(left, up, wide, tall, VERMILION, "///", f"block {block} arrives")
            if block in frame.whole and block != frame.arriving:
                drawing.bar(left, up, wide, tall, *_LOOKS["gathered"], f"block {block}, gathered")
            drawing.bar(own, up, wide / ranks, tall, BLUE, tip=f"the part of block {block} that rank {rank} owns")
            if block == frame.computing:
                drawing.bar(left, up, wide, tall, "none", edge=INK, edge_width=3)
            below = up + tall + 2
            if block == frame.leaving:
                drawing.bar(
                    left, below, wide, high * 0.24, VERMILION, "///", f"gradients of block {block} are scattered"
                )
            elif block == frame.gradient:
                drawing.bar(left, below, wide, high * 0.24, *_LOOKS["whole gradients"], f"gradient of block {block}")
            if block in frame.scattered:
                drawing.bar(own, below, wide / ranks, high * 0.24, SKY, tip=f"gradients of block {block} that it owns")


def draw_memory(
    drawing: Drawing,
    y: float,
    moments: Sequence[Frame],
    n: int,
    blocks: int,
    now: int,
    emulated: Mapping[str, float] | None,
) -> None:
    """A stack for each moment, 184 pixels high, in times the weights of the model."""
    low, tall, left = y + 160, 120.0, 76.0
    stacks = [frame.memory(n, blocks) for frame in moments]
    most = max(2.1, 1.08 * max(sum(stack.values()) for stack in stacks), 1.08 * max((emulated or {"": 0.0}).values()))
    wide = (WIDTH - left - 16) / len(stacks)
    drawing.text(
        12, y + 14, "what a rank holds, in times the weights of the model  (↓ gather, ↑ scatter, U update)", 12
    )
    for tick in range(int(most) + 1):
        height = low - tall * tick / most
        drawing.line([(left, height), (WIDTH - 16, height)], "#E6E6E6", 1)
        drawing.text(left - 6, height + 4, f"{tick}", 11, "end")
    for i, stack in enumerate(stacks):
        up = low
        for kind, share in stack.items():
            up -= tall * share / most
            drawing.bar(
                left + i * wide + 2, up, wide - 4, tall * share / most, *_LOOKS[kind], f"{kind}: {number(share)}"
            )
        if i == now:
            drawing.bar(left + i * wide, up - 4, wide, low - up + 6, "none", edge=INK, edge_width=2.5)
        name = {"start": "·", "gather": "↓", "scatter": "↑", "update": "U"}.get(
            moments[i].name.split()[0], moments[i].name
        )
        drawing.text(left + (i + 0.5) * wide, low + 15, name, 11, "middle", i == now)
    for level, words in ((1.0, "DDP in forward"), (2.0, "DDP in backward")):
        height = low - tall * level / most
        drawing.line([(left, height), (WIDTH - 16, height)], RUST, 1.4, "6 4")
        drawing.bar(WIDTH - 20 - 6 * len(words), height - 15, 6 * len(words) + 4, 13, "#FFFFFF", edge_width=0)
        drawing.text(WIDTH - 16, height - 4, words, 11, "end", color=RUST)
    for phase, held in (emulated or {}).items():
        at = [i for i, frame in enumerate(moments) if frame.phase == phase]
        height = low - tall * held / most
        drawing.line([(left + at[0] * wide, height), (left + (at[-1] + 1) * wide, height)], BLUE, 2, "2 3")
        drawing.dot(left + (at[0] + 0.5) * wide, height, BLUE, 6, True)
