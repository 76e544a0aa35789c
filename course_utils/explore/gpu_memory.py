"""What each GPU holds while a transformer trains, what it sends, and whether that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..figures.canvas import BLUE, GREEN, INK, PURPLE, RUST, SKY, VERMILION, YELLOW
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import Action, Explorer, Found, Question, Values
from .gpu_bytes import HEADROOM, PRECISIONS, gb, held, verdict
from .memory_runs import compared, refusal, run_memory, said, seconds
from .parts import round_numbers

STAGES = {"0: DDP, nothing sharded": 0, "1: shard the optimizer": 1, "2: + gradients": 2, "3: + weights (FSDP)": 3}
CONTROLS = (
    Control("params_B", "parameters", 7.5, "of the whole model", 0.1, 1000, "billion", base=10, whole=False),
    Control("gpus", "GPUs", 8, "in all", 1, 1024, base=2),
    Control("stage", "ZeRO stage", 0, "what is sharded over the GPUs, instead of copied", choices=STAGES),
    Control("memory_GB", "a GPU has", 80, "memory of one GPU, in 10^9 bytes", more=True,
            choices={f"{gb} GB": gb for gb in (16, 24, 40, 80, 141, 192)}),
    Control("batch", "batch", 1, "sequences that a GPU computes at a time", 1, 64, more=True),
    Control("seq", "sequence", 2048, "tokens in a sequence", 128, 131072, "tokens", base=2, more=True),
    Control("precision", "weights + grads + opt", "mixed: 2 + 2 + 12 bytes", "bytes a parameter",
            choices={name: name for name in PRECISIONS}, more=True),
    Control("tensor", "tensor parallel", 1, "GPUs that split every layer", choices={f"{t}": t for t in (1, 2, 4, 8)},
            more=True),
    Control("pipeline", "pipeline stages", 1, "groups of layers, one after the other (1F1B)",
            choices={f"{p}": p for p in (1, 2, 4, 8, 16)}, more=True),
    Control("recompute", "recompute", "none", "which activations are computed again instead of kept",
            choices={"nothing": "none", "attention (selective)": "selective", "whole layers": "full"}, more=True),
)  # fmt: skip
LEAVES_OUT = (
    "logits and the loss (large with a large vocabulary); embeddings, whose parameters count as if spread over the"
    " layers; DDP's buckets, a second copy of the gradients unless gradient_as_bucket_view is set; offloading;"
    f" flash attention, which keeps about what `selective` does. Layers and width follow from the parameters, as in"
    f" GPT-3 (width = 128 times layers, heads of 128). Headroom is {HEADROOM:.0%}, a rule of thumb."
)
EMULATED = "a real training at full size, on modelled GPUs: nothing large is computed, and every tensor is counted"
_LOOKS = {
    "weights": (BLUE, ""), "gradients": (SKY, "///"), "optimizer": (PURPLE, "..."), "activations": (YELLOW, "\\\\\\"),
    "gathered": (GREEN, "xx"),
}  # fmt: skip


SHOWN = 8  # GPUs side by side
LEFT, LOW, TALL = 64.0, 256.0, 192.0


def render(values: Values, found: Found, answered: bool = True) -> View:
    """A stack for each GPU (of each pipeline stage, if there are some), the memory that it has, and what it sends."""
    memory, emulated = 1e9 * values["memory_GB"], found.get("emulated") or {}
    try:
        now = held(values)
    except ValueError as error:
        return View.refusal(str(error)[:1].upper() + str(error)[1:])
    drawing = Drawing(324 + 146 * bool(emulated))
    fits = verdict(now.most, memory)
    who = "The fullest GPU" if len(now.stages) > 1 else "Each GPU"
    title = f"{who} needs {gb(now.most)}, and has {gb(memory)}: it {fits.split(':')[0].split(',')[0]}"
    drawing.text(12, 24, title if answered else f"What does each GPU hold? It has {gb(memory)}.", 15, bold=True)
    stages = now.stages if len(now.stages) > 1 else now.stages * min(values["gpus"], SHOWN)
    shown = stages[: SHOWN - 2 * bool(emulated)]
    most = 1.12 * max(memory, now.most if answered else 0.0, sum(emulated.values()))
    pitch = min(84.0, (WIDTH - LEFT - 24.0) / (len(shown) + 1.5 * bool(emulated)))
    for nbytes in round_numbers(most):
        y = LOW - TALL * nbytes / most
        drawing.line([(LEFT, y), (WIDTH - 20.0, y)], "#E6E6E6", 1)
        drawing.text(LEFT - 8, y + 4, gb(nbytes), 11, "end")
    for i, parts in enumerate(shown):
        x, wide = LEFT + 8 + i * pitch, min(56.0, pitch - 8)
        if answered:
            _stack(drawing, x, wide, parts, most, memory)
        drawing.text(x + wide / 2, LOW + 16, f"pipeline {i}" if len(now.stages) > 1 else f"GPU {i}", 11, "middle")
    if emulated:
        x = LEFT + 8 + (len(shown) + 0.5) * pitch
        _stack(drawing, x, wide, emulated, most, memory, "5 3")
        drawing.text(x + wide / 2, LOW + 16, "○ emulated", 11, "middle", True, BLUE)
        compared(drawing, 330, now, emulated)
    for share, dashes in ((1.0, ""), (1 - HEADROOM, "4 4")):
        y = LOW - TALL * share * memory / most
        drawing.line([(LEFT, y), (WIDTH - 20.0, y)], RUST, 2 if share == 1 else 1.2, dashes)
    if len(stages) > len(shown) or values["gpus"] > len(stages):
        each = values["gpus"] // len(now.stages)
        first = f", the first {len(shown)} of {len(stages)} are shown" * (len(stages) > len(shown))
        to_stage = f"{each} GPU{'s' * (each > 1)} to a stage{first}"
        alike = to_stage if len(now.stages) > 1 else f"all {values['gpus']} GPUs hold the same"
        drawing.text(WIDTH - 20.0, LOW + 34, alike, 12, "end")
    x = 12.0
    for kind, (fill, hatch) in ((kind, look) for kind, look in _LOOKS.items() if now.stages[0][kind]):
        drawing.bar(x, 302, 16, 14, fill, hatch)
        drawing.text(x + 21, 314, kind, 12)
        x += 34 + 6.6 * len(kind)
    drawing.text(12, 44, f"red line: its memory; dashed: with {HEADROOM:.0%} left free", 12, color=RUST)
    if not answered:
        return View.of(drawing, f"Empty stacks for {len(shown)} GPUs of {gb(memory)}. They're filled after your guess.")
    parts = ", ".join(f"{kind} {gb(nbytes)}" for kind, nbytes in now.stages[0].items() if nbytes)
    sent = ", ".join(f"{gb(nbytes)} of {what}" for what, nbytes in now.sent.items() if nbytes) or "nothing"
    on = "The first stage's GPU" if len(now.stages) > 1 else "Each GPU"
    summary = f"{on} holds {gb(now.most)} ({parts}), which {fits}. In a step it sends {sent}."
    if values["stage"] and values["tensor"] * values["pipeline"] == values["gpus"]:
        summary += " There's only one copy of the model, so ZeRO has nothing to shard."
    if len(now.stages) > 1:
        summary += " Stage 0 holds a micro-batch for each stage, so its activations don't shrink."
    if now.stages[0]["gathered"]:
        summary += " Gathered are whole weights of the layer that computes, and of the next."
    return View.of(drawing, summary + (said(values, now, emulated) if emulated else ""))


def _stack(
    drawing: Drawing, x: float, wide: float, parts: Mapping[str, float], most: float, memory: float, dashes: str = ""
) -> None:
    """The bytes of a GPU by kind, and above them all together; dashed around if they're emulated."""
    y, total = LOW, sum(parts.values())
    for kind in (kind for kind in _LOOKS if kind in parts):
        y -= TALL * parts[kind] / most
        drawing.bar(x, y, wide, TALL * parts[kind] / most, *_LOOKS[kind], f"{kind}: {gb(parts[kind])}")
    over = total > memory
    edge = BLUE if dashes else VERMILION if over else INK
    drawing.bar(x, y, wide, LOW - y, "none", edge=edge, edge_width=3 if over or dashes else 1, dashes=dashes)
    words = gb(total).removesuffix(" GB")
    drawing.text(x + wide / 2, y - 5, words, 12, "middle", True, RUST if over else INK)


def memory(**settings: Any) -> Explorer:
    """What each GPU holds, and whether it fits. `settings` are params_B, gpus, stage, and memory_GB, batch, seq,
    precision, tensor, pipeline, recompute."""
    start = {control.name: control.default for control in CONTROLS}
    choices = (*(f"stage {words}" for words in STAGES), "none of them")

    def judge(guess: str | None) -> str:
        room = (1 - HEADROOM) * 1e9 * start["memory_GB"]
        sizes = [held({**start, "stage": stage}).most for stage in STAGES.values()]
        first = next((i for i, nbytes in enumerate(sizes) if nbytes <= room), len(sizes))
        kind = "" if guess is None else "Yes. " if guess == choices[first] else "Not this time. "
        before = f" Stage {first - 1} needs {gb(sizes[first - 1])}, more than the {gb(room)} that leave a tenth free."
        return f"{kind}Stage {first} is the first: it needs {gb(sizes[first])}.{before}"

    text = (
        f"{start['params_B']:g} billion parameters on {start['gpus']} GPUs of {start['memory_GB']} GB, with Adam in"
        f" mixed precision, and {gb(held(start).stages[0]['activations'])} of activations on each. Which is the"
        " first ZeRO stage that fits, with a tenth left free?"
    )
    emulate = Action("Emulate", "emulated", run_memory, seconds, EMULATED, refusal)
    question = None if settings else Question(text, choices, judge)  # whoever sets something has one of their own
    return Explorer(CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=[emulate])
