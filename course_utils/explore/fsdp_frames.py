"""A step of FSDP as frames: gather, compute, drop, scatter, and what one rank holds in each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..figures.canvas import BLUE, GREEN, INK, RUST, SKY, VERMILION
from ..launching.launcher import launch
from ..show.units import number
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values, opening
from .parts import frames

# What FSDP gathers, computes, drops and scatters, moment by moment, and what one rank then holds.


@dataclass(frozen=True)
class Frame:
    """A moment of a step. `whole` are the blocks whose weights every rank has; `arriving` is the one that's gathered
    into a buffer, `gradient` the one whose whole gradient lies here, `leaving` the one whose gradients are scattered;
    of those in `scattered` a rank keeps its part of the sum. With `buffer` that of the last gather still lies there."""

    name: str
    says: str
    phase: str = ""
    computing: int | None = None
    whole: frozenset[int] = frozenset()
    arriving: int | None = None
    gradient: int | None = None
    leaving: int | None = None
    scattered: frozenset[int] = frozenset()
    buffer: bool = False

    def memory(self, ranks: int, blocks: int) -> dict[str, float]:
        """What a rank holds, in times the weights of the model; a gradient is as large as its weight."""
        return {
            "own weights": 1 / ranks,
            "gathered": (len(self.whole) + (self.buffer or self.arriving is not None)) / blocks,
            "own gradients": len(self.scattered) / blocks / ranks,
            "whole gradients": ((self.gradient is not None) + (self.leaving is not None)) / blocks,
        }


def order(blocks: int, keep: bool = False) -> list[Frame]:
    """The moments of a step; `keep` is `reshard_after_forward=False`. As torch 2.10 to 2.13 do it: gathering fills a
    buffer, from which the weights are copied; forward keeps it until the next one, which is then under way
    (`FSDPParamGroup.wait_for_unshard`). Backward gathers the block before while it computes, and what a scatter reads
    lies there until the next begins (`post_backward`)."""
    last = blocks - 1
    found = [Frame("start", "Every rank holds its part of each block, and nothing else")]
    found.append(Frame("gather 0", "All ranks send their parts of block 0, and get the others'", "forward",
                       whole=frozenset({0}), arriving=0))  # fmt: skip
    for i in range(blocks):
        then = f", while block {i + 1} is gathered" if i < last else ", the last one"
        dropped = f"Block {i - 1} is dropped. " if i and not keep else ""
        found.append(Frame(f"F{i}", f"{dropped}Block {i} computes{then}", "forward", i,
                           frozenset(range(i + 1) if keep else {i}), i + 1 if i < last else None,
                           buffer=i == last))  # fmt: skip
    if not keep:
        found.append(Frame(f"gather {last}", f"Forward has ended, block {last} was dropped; backward gathers it again",
                           "backward", whole=frozenset({last}), arriving=last))  # fmt: skip
    for i in reversed(range(blocks)):
        meanwhile = [f"the gradients of block {i + 1} are scattered"] * (i < last)
        meanwhile += [f"block {i - 1} is gathered"] * (i > 0 and not keep)
        while_ = f", while {' and '.join(meanwhile)}" if meanwhile else ""
        found.append(Frame(f"B{i}", f"Backward through block {i}{while_}", "backward", i,
                           frozenset(range(i + 1) if keep else {i}), i - 1 if i and not keep else None, i,
                           i + 1 if i < last else None, frozenset(range(i + 1, blocks))))  # fmt: skip
    every = frozenset(range(blocks))
    found.append(Frame("scatter 0", "The gradients of block 0 are scattered: each rank gets its part of the sum",
                       "backward", gradient=0, leaving=0, scattered=every - {0}))  # fmt: skip
    found.append(Frame("update", "Each rank updates its part, with its part of the gradients", scattered=every))
    return found


def peak(frames: list[Frame], phase: str, ranks: int, blocks: int) -> float:
    """The most that a rank holds in a phase, in times the weights of the model."""
    return max(sum(frame.memory(ranks, blocks).values()) for frame in frames if frame.phase == phase)


# How `explore.fsdp()` draws: the blocks on every rank, and one rank's memory through the step.

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


MOST = 8  # blocks
CONTROLS = (
    Control("moment", "moment", 0, "of the step, from its start to the update", 0, 2 * MOST + 3),
    Control("blocks", "blocks", 4, "of the model; `fully_shard` is called on each", 1, MOST),
    Control("ranks", "ranks", 4, "that share the weights", 2, 8),
    Control("keep", "keep gathered weights", False, "reshard_after_forward=False: from forward to backward", more=True),
)  # fmt: skip
LEAVES_OUT = (
    "activations, and the optimizer's state, of which each rank keeps its part throughout; how long each moment takes;"
    " weights outside the blocks, such as embeddings, which are a unit of their own. Gradients are as large as weights."
)
EMULATED = "the real `fully_shard` on that many modelled A100s: how much lies in memory at the fullest moments"
_CHOICES = ("a quarter of the weights", "half of them", "three quarters of them", "all of them")


def render(values: Values, found: Found, answered: bool = True) -> View:
    """What each rank holds at a moment, and below it one rank's memory through the whole step."""
    n, blocks, keep = values["ranks"], values["blocks"], values["keep"]
    moments = order(blocks, keep)
    now = min(values["moment"], len(moments) - 1)
    frame, shown = moments[now], min(n, 4)
    low = 66 + blocks * row(blocks)
    drawing = Drawing(low + (224 if answered else 40))
    drawing.text(12, 24, f"Moment {now} of {len(moments) - 1}, {frame.name}", 15, bold=True)
    wide = (WIDTH - 84 - 16) / shown - 12
    for rank in range(shown):
        of = f" (of {n})" if rank == shown - 1 and shown < n else ""
        drawing.text(76 + rank * (wide + 12), 52, f"rank {rank}{of}", 12, bold=True)
    for block in range(blocks):
        drawing.text(70, 76 + block * (low - 66) / blocks, f"block {block}", 12, "end")
    draw_ranks(drawing, 76, 62, frame, n, blocks, wide, shown)
    legend = {"own": (BLUE, ""), "gathered": (GREEN, "xx"), "on its way": (VERMILION, "///"),
              "gradient": (SKY, "..."), "its own part": (SKY, "")}  # fmt: skip
    x = 76.0
    for words, (fill, hatch) in legend.items():
        drawing.bar(x, low + 6, 14, 12, fill, hatch)
        drawing.text(x + 19, low + 17, words, 12)
        x += 40 + 6.8 * len(words)
    drawing.bar(x, low + 6, 14, 12, "none", edge=INK, edge_width=3)
    drawing.text(x + 19, low + 17, "computes", 12)
    if not answered:
        return View.of(drawing, f"{frame.says}.")
    emulated = found.get("emulated")
    draw_memory(drawing, low + 34, moments, n, blocks, now, emulated)
    peaks = {phase: peak(moments, phase, n, blocks) for phase in ("forward", "backward")}
    held = sum(frame.memory(n, blocks).values())
    said = (
        f"{frame.says}. A rank holds {number(held)} times the weights; at most {number(peaks['forward'])} in forward,"
    )
    said += f" {number(peaks['backward'])} in backward. DDP would hold 1 and 2 times."
    if emulated:
        off = {phase: emulated[phase] / peaks[phase] - 1 for phase in peaks}
        pairs = (f"{number(emulated[phase])} in {phase} ({off[phase]:+z.0%})" for phase in peaks)
        said += (
            f" Emulated: {', '.join(pairs)}. Both are models: the real `fully_shard` ran, and its tensors were counted."
        )
    return View.of(drawing, said)


def _run(values: Values) -> Any:
    args: list[object] = ["--blocks", values["blocks"], *["--keep"] * values["keep"]]
    program = PROGRAMS / "fsdp_steps.py"
    run = launch(
        program, 1, args, cluster=f"{values['ranks']}xA100", one_of=values["ranks"], quiet=True, engine="local"
    )
    return {phase: run.value(phase) for phase in ("forward", "backward")}


def _still(values: Values) -> View:
    """The moments in which something new happens, side by side, with two ranks each."""
    moments = order(values["blocks"], values["keep"])
    last = values["blocks"] - 1
    names = dict.fromkeys(("start", "gather 0", "F0", f"F{last}", f"B{last}", "B0", "scatter 0", "update"))
    chosen = [frame for frame in moments if frame.name in names]
    n, blocks = values["ranks"], values["blocks"]
    drawn = [(f.name, lambda d, x, y, f=f: draw_ranks(d, x, y, f, n, blocks, 88.0, 2)) for f in chosen]
    told = "; ".join(f"{frame.name}: {frame.says}" for frame in chosen)
    return frames(drawn, 222.0, blocks * row(blocks) + 4, f"Two of {n} ranks, moment by moment. {told}.")


def fsdp(**settings: Any) -> Explorer:
    """A step of FSDP as frames. `settings` are moment, blocks, ranks and keep."""

    def judge(guess: str | None) -> str:
        first = opening(guess, _CHOICES[2])
        why = "Three quarters: its own quarter, the block that computes, and a buffer for the one that's gathered."
        return f"{first}{why} Now take smaller blocks, or only one."

    text = (
        "Four ranks, and a model of four blocks, each sharded. How much of the model's weights lies on one rank at the"
        " fullest moment of forward?"
    )
    question = Question(text, _CHOICES, judge)
    actions = [Action("Emulate", "emulated", _run, lambda values: 4, EMULATED)]
    return Explorer(
        "fsdp",
        CONTROLS,
        render,
        given=settings,
        leaves_out=LEAVES_OUT,
        question=question,
        actions=actions,
        still=_still,
    )
