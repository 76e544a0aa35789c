"""Keep activations or recompute them in segments: the timeline of a step, and what it holds meanwhile."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from .. import predict
from ..figures.canvas import BLUE, GREEN, GREY, INK, ORANGE, RUST, SKY
from ..launching.launcher import launch
from ..show.units import counted, number, readable
from .controls import Control
from .drawing import Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values, opening
from .parts import LEFT, WIDE

# A step that recomputes its activations in segments, part by part; and the real one on a modelled GPU: what
# `explore.recompute()` draws.


def parts(layers: int, segments: int) -> list[int]:
    """How many layers each segment has; the longer ones come last."""
    base, more = divmod(layers, segments)
    return [base + (i >= segments - more) for i in range(segments)]


def step(layers: int, segments: int, share: float) -> list[tuple[str, float, float, float]]:
    """What happens one after the other: its name, when it ends (in forwards of a layer), and what is held before and
    after it (in activations of a layer). `share` is an input's part of those. No segment: everything is kept."""
    sizes = parts(layers, segments) if segments else []
    if not segments:
        return [("forward", layers, 0, layers), ("backward", 3 * layers, layers, 0)]
    found, now, held = [], 0.0, 0.0
    for size in sizes:
        now += size
        found.append(("forward", now, held + share, held := held + share))
    for size in reversed(sizes):
        now += size
        found.append(("again", now, held, held + size))
        now += 2 * size
        found.append(("backward", now, held + size, held := held - share))
    return found


def best(layers: int, share: float) -> int:
    """The number of segments that holds least; of several the smallest."""
    return min(range(1, layers + 1), key=lambda k: (predict.checkpoint_chain(layers, k, input_share=share).held, k))


def emulate(values: Mapping[str, Any]) -> dict[str, Any]:
    program = PROGRAMS / "recompute_steps.py"
    args = ["--layers", values["layers"], "--segments", values["segments"]]
    one = {"count": 1, "device": "A100", "inside": "nvlink3"}
    run = launch(program, 1, args=args, cluster=one, quiet=True, engine="local", timeout=300)
    held, took = ({w: run.value(key, what=w) for w in ("kept", "recomputed")} for key in ("held_bytes", "step_s"))
    return {"kept": held["kept"], "held": held["recomputed"], "time": took["recomputed"] / took["kept"]}


CONTROLS = (
    Control("layers", "layers", 48, "equal layers, one after the other", 1, 96),
    Control("segments", "segments", 7, "parts of which only the input is kept; the rest is computed again", 1, 96),
    Control("keeps", "layer keeps", 17, "what backward needs of a layer, over its input. For a transformer about 17:"
            " 34 s b h bytes against 2 (Korthikanti et al., arXiv 2205.05198, attention recomputed or fused)",
            1, 40, "inputs"),
)  # fmt: skip
EMULATED = "a real transformer with so many layers and segments, on one modelled A100: nothing large is computed"
LEAVES_OUT = (
    "weights, gradients and the optimizer, which are held on top; gradients on their way through a layer. A forward"
    " takes a third of a step, in every layer. PyTorch stops a second forward early: it skips the last product of each"
    " segment. checkpoint_sequential of torch doesn't recompute the last segment."
    " Selective recomputation, which repeats only what is cheap: lesson 09 measures it."
)


def render(values: Values, found: Found, answered: bool = True) -> View:
    """The step and what it holds, against keeping everything; below, the most that is held for every number of
    segments."""
    layers, segments, share = values["layers"], values["segments"], 1 / values["keeps"]
    if segments > layers:
        return View.refusal(f"{layers} layers divide into at most {layers} segments: fewer segments, or more layers")
    chain, emulated = predict.checkpoint_chain(layers, segments, input_share=share), found.get("emulated")
    drawing = Drawing(400 + 24 * bool(emulated) if answered else 240)
    title = f"{counted(layers, 'layer')} in {counted(segments, 'segment')}: "
    title += f"{chain.held / layers:.0%} of the memory, at most {chain.time:.2f} times the time"
    drawing.text(
        12, 24, title if answered else f"{layers} layers keep everything. How far down can it go?", 15, bold=True
    )
    rows, plain, most = step(layers, segments, share) if answered else [], step(layers, 0, share), 4.0 * layers
    x = LEFT
    for words, fill, hatch in (("forward", SKY, ""), ("forward again", SKY, "///"), ("backward", BLUE, "")):
        drawing.bar(x, 38, 16, 12, fill, hatch)
        drawing.text(x + 21, 49, words, 12)
        x += 44 + 7 * len(words)
    for y, name, spans in ((58, "all kept", plain), (86, "recomputed", rows)):
        drawing.text(LEFT - 8, y + 15, name, 12, "end")
        before = 0.0
        for what, end, *_ in spans:
            fill, hatch = (BLUE, "") if what == "backward" else (SKY, "///" if what == "again" else "")
            wide = WIDE * (end - before) / most
            drawing.bar(LEFT + WIDE * before / most, y, wide, 22, fill, hatch, what, edge_width=0.8 if wide > 3 else 0)
            before = end
    _held(drawing, 118, [(plain, GREY, "5 3", 1.8), (rows, RUST, "", 2.2)], most, max(layers, chain.held))
    if not answered:
        return View.of(
            drawing, f"The timeline of {layers} layers that keep all activations. Recomputing shows after your guess."
        )
    least = best(layers, share)
    _by_segments(drawing, 250, layers, share, segments, least)
    root = max(1, round(math.sqrt(layers)))
    at = {k: predict.checkpoint_chain(layers, k, input_share=share).held / layers for k in (least, root)}
    said = f"{title}. Least is held with {least}: {at[least]:.0%}; with {root}, the square root of {layers},"
    said += f" {at[root]:.0%}."
    if emulated:
        words = (
            f"Emulated on one A100: {emulated['held'] / emulated['kept']:.0%} of {readable('bytes', emulated['kept'])},"
            f" {emulated['time']:.2f} times the time"
        )
        drawing.text(12, 414, words, 13, bold=True)
        said += (
            f" {words}. There a layer keeps 16 times its input, and norms, head and loss come on top; both are models."
        )
    return View.of(drawing, said)


def _held(drawing: Drawing, y: float, curves: Any, most: float, top: float) -> None:
    """What is held over time, 100 pixels high."""
    low, tall = y + 108, 92.0
    drawing.line([(LEFT, low - tall), (LEFT, low), (LEFT + WIDE, low)], "#888888", 1)
    drawing.text(LEFT - 8, low - tall + 4, number(top), 11, "end")
    drawing.text(LEFT - 8, low - tall + 18, "layers'", 11, "end")
    drawing.text(LEFT - 8, low + 4, "0", 11, "end")
    drawing.text(LEFT - 8, low - 32, "held", 12, "end")
    for spans, color, dashes, wide in curves:
        points, before = [(LEFT, low)], 0.0
        for _, end, first, last in spans:
            points.append((LEFT + WIDE * before / most, low - tall * first / top))
            points.append((LEFT + WIDE * end / most, low - tall * last / top))
            before = end
        drawing.line(points, color, wide, dashes)


def _by_segments(drawing: Drawing, y: float, layers: int, share: float, now: int, least: int) -> None:
    """The most that is held, for every number of segments."""
    low, tall = y + 112, 84.0
    held = {k: predict.checkpoint_chain(layers, k, input_share=share).held for k in range(1, layers + 1)}
    top, root = max(held.values()), max(1, round(math.sqrt(layers)))

    def at(k: int) -> tuple[float, float]:
        return LEFT + WIDE * math.log(k) / math.log(max(layers, 2)), low - tall * held[k] / top

    drawing.text(12, y + 14, "held at most, by segments", 12)
    drawing.text(LEFT + WIDE, y + 14, "● drawn above   ○ least   ◇ square root", 12, "end")
    drawing.line([(LEFT, low - tall), (LEFT, low), (LEFT + WIDE, low)], "#888888", 1)
    drawing.text(LEFT - 8, low - tall + 4, f"{top / layers:.0%}", 11, "end")
    drawing.text(LEFT - 8, low + 4, "0%", 11, "end")
    for k in (1, 2, 4, 8, 16, 32, 64, layers):
        if k < 0.8 * layers or k == layers:
            drawing.text(at(k)[0], low + 17, f"{k}", 11, "middle")
    drawing.line([at(k) for k in held], ORANGE, 2.2, "7 4")
    x, up = at(root)
    drawing.line([(x, up - 8), (x + 8, up), (x, up + 8), (x - 8, up), (x, up - 8)], INK, 1.8)
    drawing.dot(*at(least), GREEN, 7, hollow=True)
    drawing.dot(*at(now), RUST, 4)


def recompute(**settings: Any) -> Explorer:
    """Keep activations or recompute them. `settings` are layers, segments and keeps."""
    layers, share = CONTROLS[0].default, 1 / CONTROLS[2].default
    least = best(layers, share)
    choices = ("7, about the square root of 48", f"{least}, two layers in each", "48, one layer in each")

    def judge(guess: str | None) -> str:
        held = {k: predict.checkpoint_chain(layers, k, input_share=share).held / layers for k in (7, least, 48)}
        first = opening(guess, choices[1], f"It's {least}. ")
        told = ", ".join(f"{k} hold {part:.1%}" for k, part in held.items())
        return (
            f"{first}{told} of keeping everything: inputs are cheap, so short segments win. When does the square root"
            " win? Move what a layer keeps."
        )

    text = "48 transformer layers, each keeping 17 times its input, are recomputed in segments. How many hold least?"
    question = Question(text, choices, judge)
    actions = []
    if "cluster" in inspect.signature(launch).parameters:
        actions.append(Action("Emulate", "emulated", emulate, lambda values: 5 + values["layers"] / 5, EMULATED))
    return Explorer(
        "recompute", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=actions
    )
