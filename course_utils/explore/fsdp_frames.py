"""A step of FSDP as frames: gather, compute, drop, scatter, and what one rank holds in each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..figures.canvas import BLUE, GREEN, INK, SKY, VERMILION
from ..launcher import launch
from ..units import number
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import Action, Explorer, Found, Question, Values
from .fsdp_order import order, peak
from .fsdp_picture import draw_memory, draw_ranks, row
from .parts import frames

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
    program = Path(__file__).with_name("fsdp_steps.py")
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
        first = "" if guess is None else "Yes. " if guess == _CHOICES[2] else "Not this time. "
        why = "Three quarters: its own quarter, the block that computes, and a buffer for the one that's gathered."
        return f"{first}{why} Now take smaller blocks, or only one."

    text = (
        "Four ranks, and a model of four blocks, each sharded. How much of the model's weights lies on one rank at the"
        " fullest moment of forward?"
    )
    question = None if settings else Question(text, _CHOICES, judge)
    actions = [Action("Emulate", "emulated", _run, lambda values: 4, EMULATED)]
    return Explorer(
        CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=actions, still=_still
    )
