"""What each GPU holds while a transformer trains, what it sends, and whether that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import predict
from ..figures.canvas import BLUE, GREEN, INK, PURPLE, RUST, SKY, VERMILION, YELLOW
from ..launching.launcher import launch
from ..show.units import counted, number
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values, opening
from .parts import round_numbers, table

# Bytes on each GPU that trains a transformer, and bytes that it sends: what `explore.memory()` draws.

# Bytes a parameter: weights, gradients, what the optimizer holds (its fp32 copy of the weights included).
PRECISIONS: Mapping[str, tuple[float, float, float]] = {
    "mixed: 2 + 2 + 12 bytes": (2, 2, 12),  # ZeRO, arXiv 1910.02054, section 3.1
    "mixed, fp32 gradients: 2 + 4 + 12": (2, 4, 12),  # as Megatron-LM accumulates them
    "autocast: 4 + 4 + 8": (4, 4, 8),  # weights stay in fp32, activations are 16 bit
    "fp32: 4 + 4 + 8": (4, 4, 8),
}
FP32 = "fp32: 4 + 4 + 8"
HEADROOM = 0.1  # of the memory: CUDA's own, NCCL's buffers, fragments between tensors. A rule of thumb, no measurement


@dataclass(frozen=True)
class Held:
    """Bytes on a GPU of each pipeline stage, by kind, and bytes that a GPU sends in a step, by purpose."""

    stages: list[dict[str, float]]
    sent: dict[str, float]
    layers: int
    hidden: int

    @property
    def most(self) -> float:
        return max(sum(parts.values()) for parts in self.stages)


def shape(params: float) -> tuple[int, int]:
    """Layers and width of a GPT: params = 12 layers width^2, and a width of 128 times the layers (GPT-3: 96, 12288)."""
    hidden = 128 * max(1, round((128 * params / 12) ** (1 / 3) / 128))
    return max(1, round(params / (12 * hidden**2))), hidden


def held(values: Mapping[str, Any]) -> Held:
    """What each GPU holds and sends. Tensor and pipeline parallelism divide weights, gradients and optimizer; ZeRO
    shards what is left over the replicas; activations are those of Korthikanti et al., arXiv 2205.05198, with sequence
    parallelism wherever there is tensor parallelism. Raises ValueError when GPUs or layers don't go round."""
    tensor, pipeline, gpus = values["tensor"], values["pipeline"], values["gpus"]
    params = 1e9 * values["params_B"]
    layers, hidden = shape(params)
    replicas, left = divmod(gpus, tensor * pipeline)
    if left or not replicas:
        raise ValueError(
            f"{gpus} GPUs don't divide into groups of {tensor} x {pipeline}: take a multiple of {tensor * pipeline}"
        )
    if pipeline > layers:
        raise ValueError(f"a model of {layers} layers has no {pipeline} pipeline stages")
    weight, gradient, optimizer = PRECISIONS[values["precision"]]
    states = predict.zero_memory(
        params / (tensor * pipeline), replicas, values["stage"],
        weight_bytes=weight, gradient_bytes=gradient, optimizer_bytes=optimizer,
    )  # fmt: skip
    options: dict[str, Any] = {
        "batch": values["batch"], "seq": values["seq"], "hidden": hidden, "heads": hidden // 128, "tensor": tensor,
        "sequence_parallel": tensor > 1,
    }  # fmt: skip
    wide = 2 if values["precision"] == FP32 else 1  # the formula is for 16 bits
    layer = wide * predict.transformer_activation_bytes(**options, recompute=values["recompute"])
    again = wide * predict.transformer_activation_bytes(**options) if values["recompute"] == "full" else 0.0
    one = params / layers / tensor  # parameters of a layer
    loan = 2 * weight * one if values["stage"] == 3 and replicas > 1 else 0.0  # one computes, the next is gathered
    stages = [
        {
            "weights": states.weights, "gradients": states.gradients, "optimizer": states.optimizer,
            # 1F1B: stage s has pipeline - s micro-batches under way; the first one holds what all layers would
            "activations": layer * layers * (pipeline - stage) / pipeline + again, "gathered": loan,
        }
        for stage in range(pipeline)
    ]  # fmt: skip
    residual = 2.0 * wide * values["batch"] * values["seq"] * hidden
    reductions = 4 + 2 * (values["recompute"] == "full")  # of a layer: two forward, two backward, two when recomputed
    # As `predict.zero_traffic`: gradients scattered, then gradients (0) or weights (1, 2) gathered, or those twice (3).
    travels = (
        "gradients",
        "gradients and weights",
        "gradients and weights",
        "gradients, and weights twice (1.5 times DDP's)",
    )
    rest = (gradient, weight, weight, 2 * weight)[values["stage"]]
    sent = {
        travels[values["stage"]]: params / (tensor * pipeline) * (replicas - 1) / replicas * (gradient + rest),
        "activations to the GPUs that split a layer":
            layers / pipeline * reductions * residual * predict.ring_factor("all_reduce", tensor),
        "activations to the next stage": 2 * residual / tensor if pipeline > 1 else 0.0,
    }  # fmt: skip
    return Held(stages, sent, layers, hidden)


def verdict(nbytes: float, memory: float) -> str:
    """Whether so many bytes fit, as the end of a sentence."""
    if nbytes > memory:
        return f"doesn't fit: {gb(nbytes - memory)} more than it has"
    if nbytes > (1 - HEADROOM) * memory:
        wanted = f"and CUDA, NCCL and fragments want about {gb(HEADROOM * memory)}"
        return f"is too tight: it leaves {gb(memory - nbytes)}, {wanted}"
    return f"fits, and leaves {gb(memory - nbytes)}"


def gb(nbytes: float) -> str:
    return f"{number(nbytes / 1e9)} GB" if nbytes < 1e12 else f"{number(nbytes / 1e12)} TB"


# What the button of `explore.memory()` runs: a real sharded program on modelled GPUs, whose memory is counted.

MIXED, FP32_GRADIENTS = list(PRECISIONS)[:2]
# Where the program's bytes count in the prediction. What's gathered is whole weights under stage 2, a layer's under 3.
_KINDS = {"weights": "weights", "gradients": "gradients", "buckets": "gradients", "optimizer": "optimizer",
          "activations": "activations"}  # fmt: skip


def refusal(values: Mapping[str, Any]) -> str:
    """Why the program can't run these settings, if so."""
    if values["tensor"] * values["pipeline"] > 1:
        return "the program shards and replicates; it has neither tensor parallelism nor a pipeline"
    if values["precision"] == FP32_GRADIENTS:
        return "PyTorch keeps a gradient in the type of its weight; fp32 ones next to 16-bit weights are Megatron's own"
    return ""


def seconds(values: Mapping[str, Any]) -> float:
    """About how long the emulation takes: a program of a second for each dozen of layers."""
    return 4 + shape(1e9 * values["params_B"])[0] * (0.2 if values["recompute"] == "full" else 0.15)


def run_memory(values: Mapping[str, Any]) -> dict[str, Any]:
    """Emulate one rank of the training at full size; the others are taken to do the same. Its GPU has as much memory as
    it takes, so that what doesn't fit can be compared too. Returns the bytes of each kind at the fullest moment."""
    layers, width = shape(1e9 * values["params_B"])
    precision = "mixed" if values["precision"] == MIXED else values["precision"].partition(":")[0]
    args: list[object] = ["--layers", layers, "--width", width, "--precision", precision]
    args += [part for name in ("stage", "batch", "seq", "recompute") for part in (f"--{name}", values[name])]
    run = launch(
        PROGRAMS / "gpt_steps.py", 1, args, quiet=True, timeout=300, engine="local",
        cluster={"count": values["gpus"], "device": {"like": "A100", "memory_bytes": 1e15}}, one_of=values["gpus"],
    )  # fmt: skip
    (found,) = run.emulated.memory().values()
    held: dict[str, float] = {}
    for kind, nbytes in found.items():
        known = _KINDS.get(kind, "weights" if values["stage"] == 2 else "gathered")
        held[known] = held.get(known, 0.0) + nbytes
    return held


def compared(drawing: Drawing, y: float, predicted: Held, emulated: Mapping[str, float]) -> None:
    """Bytes of each kind, predicted and emulated, 130 pixels high."""
    first = predicted.stages[0]
    kinds = [kind for kind in first if first[kind] or emulated.get(kind)]
    sums = [(kind, first[kind], emulated.get(kind, 0.0)) for kind in kinds]
    sums.append(("together", sum(first.values()), sum(emulated.values())))
    rows = [(name, (gb(one), gb(other), f"{other / one - 1:+z.0%}" if one else "")) for name, one, other in sums]
    table(drawing, y, ("predicted", "emulated", "difference"), rows, "together")


def said(values: Mapping[str, Any], predicted: Held, emulated: Mapping[str, float]) -> str:
    """What was compared with what, and why they differ where they do."""
    total, memory = sum(emulated.values()), 1e9 * values["memory_GB"]
    words = f" Emulated: {gb(total)}, {total / predicted.most - 1:+z.1%} against the prediction. Both are models: the"
    words += " real program ran, and its tensors were counted, on a GPU that has as much memory as it takes."
    if total > memory:
        words += f" On {gb(memory)} it would have run out of memory."
    if values["stage"] == 1:
        words += " PyTorch's ZeroRedundancyOptimizer deals out whole tensors, so some ranks get more than their share."
    if values["stage"] == 2:
        words += " PyTorch's nearest to stage 2, `fully_shard(reshard_after_forward=False)`, keeps its shard of the"
        words += " weights next to the whole ones."
    if values["precision"].startswith("autocast"):
        words += " Autocast also keeps 16-bit copies of the weights until backward, and computes norms in fp32."
    return words


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
        to_stage = f"{counted(each, 'GPU')} to a stage{first}"
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
        kind = opening(guess, choices[first])
        before = f" Stage {first - 1} needs {gb(sizes[first - 1])}, more than the {gb(room)} that leave a tenth free."
        return f"{kind}Stage {first} is the first: it needs {gb(sizes[first])}.{before}"

    text = (
        f"{start['params_B']:g} billion parameters on {start['gpus']} GPUs of {start['memory_GB']} GB, with Adam in"
        f" mixed precision, and {gb(held(start).stages[0]['activations'])} of activations on each. Which is the"
        " first ZeRO stage that fits, with a tenth left free?"
    )
    emulate = Action("Emulate", "emulated", run_memory, seconds, EMULATED, refusal)
    question = Question(text, choices, judge)
    return Explorer(
        "memory", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=[emulate]
    )
