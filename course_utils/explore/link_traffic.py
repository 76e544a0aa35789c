"""Bytes through the link of each GPU in a training step, DataParallel and DDP side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import predict
from ..figures.canvas import BLUE, GREEN, INK, PURPLE, RUST, SKY, YELLOW
from ..show.units import readable_unit
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import Explorer, Found, Question, Values, opening
from .parts import AXIS, round_numbers

# What each GPU sends and receives in a training step: nn.DataParallel in one process, and DDP.

RING, COPIES = "ring", "copies"
TOKENS = 32  # of a sequence, as in lesson 03
Ports = list[tuple[dict[str, float], dict[str, float]]]  # of each GPU: bytes sent and received, by what travels


def sizes(values: Values) -> tuple[float, float, float]:
    """Bytes of the parameters, of the inputs and of the outputs of a batch, for the language model of lesson 03: an
    embedding that is also the head, and `depth` linear layers of width by width, in fp32; tokens are int64."""
    vocabulary, width = values["vocabulary"], values["width"]
    parameters = 4.0 * (vocabulary * width + values["depth"] * (width * width + width))
    tokens = values["batch"] * TOKENS
    return parameters, 8.0 * tokens, 4.0 * tokens * vocabulary


def data_parallel(values: Values) -> Ports:
    """What passes through each GPU in a step of DataParallel, GPU 0 first.

    Inputs and outputs are copied straight to and from GPU 0 (torch/csrc/cuda/comm.cpp: scatter, gather), and so are the
    gradients of the outputs. The weights are broadcast and their gradients reduced, by NCCL where it's available
    (torch/nn/parallel/comm.py: reduce_add; comm.cpp: broadcast). NCCL does both around a ring: a GPU hands on what
    comes from its neighbour, the weights from GPU 0 on to the last, the sums from GPU 1 on to GPU 0. Otherwise they're
    copied.
    """
    n = values["gpus"]
    weights, inputs, outputs = sizes(values)
    first = predict.data_parallel_traffic(n, weights, inputs, outputs, by=values["by"])
    found = [(dict(first.sent), dict(first.received))]
    for gpu in range(1, n):
        passes = values["by"] == RING
        sent = {
            "outputs": outputs / n,
            "parameters": weights * (passes and gpu < n - 1),
            "gradients of parameters": weights,
        }
        received = {
            "inputs": inputs / n,
            "gradients of outputs": outputs / n,
            "parameters": weights,
            "gradients of parameters": weights * (passes and gpu > 1),
        }
        found.append((sent, received))
    return found


def ddp(values: Values) -> Ports:
    """What passes through each GPU in a step of DDP: a ring all-reduce of the gradients, for all alike."""
    traffic = predict.ddp_traffic(values["gpus"], sizes(values)[0])
    each = {"gradients of parameters": traffic.sent["gradients"]}
    return [(each, each)] * values["gpus"]


def through(port: tuple[Mapping[str, float], Mapping[str, float]]) -> float:
    """Bytes in and out of a GPU together."""
    return sum(port[0].values()) + sum(port[1].values())


CONTROLS = (
    Control("gpus", "GPUs", 8, "that share a batch", 2, 16),
    Control("batch", "batch", 16, "sequences of 32 tokens, over all GPUs", 1, 1024, "sequences", base=2),
    Control("by", "DataParallel by", RING, "how weights and their gradients travel",
            choices={"NCCL's ring": RING, "copies, without NCCL": COPIES}),
    Control("width", "width", 256, "of the model's layers", 64, 4096, base=2, more=True),
    Control("vocabulary", "vocabulary", 4096, "words that the model scores", 256, 65536, base=2, more=True),
    Control("depth", "layers", 4, "linear layers of width by width", 1, 64, more=True),
)  # fmt: skip
LEAVES_OUT = (
    "time: DataParallel sends all weights before anything is computed and all gradients after it, while DDP sends the"
    " first gradients when others are still computed. Also left out: buffers, and the loader's copies to each GPU,"
    " which both have. Inputs and outputs go straight between GPU 0 and each other, weights and gradients from"
    " neighbour to neighbour. The batch counts as if it divided evenly."
)
_LOOKS = {
    "parameters": (BLUE, "", "weights"), "gradients of parameters": (SKY, "///", "their gradients"),
    "inputs": (YELLOW, "\\\\\\", "inputs"), "outputs": (GREEN, "xx", "outputs"),
    "gradients of outputs": (PURPLE, "...", "gradients of outputs"),
}  # fmt: skip
TOP, TALL, LEFT, PANEL = 92.0, 190.0, 76.0, 284.0


def render(values: Values, found: Found, answered: bool = True) -> View:
    """For each GPU what it sends, above the line, and what it receives, below it."""
    sides = {"DataParallel: one process": data_parallel(values), "DDP: a process for each GPU": ddp(values)}
    first, other = (through(ports[0]) for ports in sides.values())
    factor, unit = readable_unit("bytes", max(first, other))
    numbers = f"{first * factor:.1f} {unit} in DataParallel, {other * factor:.1f} in DDP"
    drawing = Drawing(TOP + TALL + 72)
    title = f"In and out of GPU 0: {numbers}, {first / other:.1f} times"
    drawing.text(12, 24, title if answered else "How much passes through GPU 0 in a step?", 15, bold=True)
    most = {side: max(max(sum(part.values()) for ports in sides.values() for part in (port[side] for port in ports)), 1)
            for side in (0, 1)}  # fmt: skip
    middle = TOP + TALL * most[0] / (most[0] + most[1])
    scale = 0.94 * TALL / (most[0] + most[1])
    for side, sign in ((0, -1), (1, 1)):
        for nbytes in round_numbers(most[side] * factor)[bool(side) :]:
            y = middle + sign * scale * nbytes / factor
            drawing.line([(LEFT, y), (WIDTH - 12, y)], "#E6E6E6", 1)
            drawing.text(LEFT - 8, y + 4, f"{nbytes:g}" + f" {unit}" * (nbytes == 0), 11, "end")
    for i, (name, ports) in enumerate(sides.items()):
        x = LEFT + i * (PANEL + 24)
        drawing.text(x, 76, name, 13, bold=True)
        if answered or i:
            _panel(drawing, x, middle, scale, ports, factor)
        drawing.line([(x, middle), (x + PANEL, middle)], AXIS, 1.5)
        for gpu in range(len(ports)):
            words = f"GPU {gpu}" if len(ports) <= 5 else str(gpu)
            drawing.text(x + PANEL * (gpu + 0.5) / len(ports), TOP + TALL + 20, words, 11, "middle")
    drawing.text(12, (TOP + middle) / 2 + 4, "out ↑", 12, color=RUST)
    drawing.text(12, (TOP + TALL + middle) / 2 + 4, "in ↓", 12, color=RUST)
    x = 12.0
    for fill, hatch, words in _LOOKS.values():
        drawing.bar(x, TOP + TALL + 40, 16, 14, fill, hatch)
        drawing.text(x + 21, TOP + TALL + 52, words, 12)
        x += 38 + 6.6 * len(words)
    drawing.text(12, 48, f"weights {sizes(values)[0] * factor:.1f} {unit}, outputs {sizes(values)[2] * factor:.1f}", 12)
    if not answered:
        return View.of(drawing, "What each GPU sends and receives in DDP. DataParallel's side comes after your guess.")
    return View.of(drawing, f"Through GPU 0 pass {numbers}: {first / other:.1f} times as much. {_why(values)}")


def _panel(drawing: Drawing, x: float, middle: float, scale: float, ports: Ports, factor: float) -> None:
    pitch = PANEL / len(ports)
    for gpu, port in enumerate(ports):
        for part, sign in zip(port, (-1, 1), strict=True):
            level = middle
            for kind, (fill, hatch, words) in _LOOKS.items():
                tall = scale * part.get(kind, 0.0)
                tip = f"GPU {gpu} {'sends' if sign < 0 else 'receives'} {words}: {part.get(kind, 0.0) * factor:.2f}"
                if tall > 0:
                    drawing.bar(x + gpu * pitch + 0.12 * pitch, min(level, level + sign * tall), 0.76 * pitch, tall,
                                fill, hatch, tip)  # fmt: skip
                level += sign * tall
        if pitch > 24:
            total, up = through(port) * factor, middle - scale * sum(port[0].values())
            drawing.text(x + (gpu + 0.5) * pitch, up - 4, f"{total:.3g}", 11, "middle", gpu == 0, INK)


def _why(values: Values) -> str:
    weights, inputs, outputs = sizes(values)
    ports = data_parallel(values)
    travels = (inputs + 2 * outputs) * (1 - 1 / values["gpus"])
    if values["by"] == COPIES:
        return "As copies the weights leave GPU 0 once for each other GPU, and as many gradients come back."
    if travels > 2 * weights:
        return "Around a ring the weights leave GPU 0 once. It's the outputs and their gradients that fill its link."
    if through(ports[0]) < through(ddp(values)[0]):
        most = max(map(through, ports))
        factor, unit = readable_unit("bytes", most)
        gpu = ports.index(max(ports, key=through))
        busiest = f"GPU {gpu}, which passes things on, has {most * factor:.1f} {unit}"
        return f"So few outputs make it less; but {busiest}, and nothing of it hides behind computing."
    return "Around a ring the weights pass each GPU once; outputs, which DDP never sends, make the difference."


def links(**settings: Any) -> Explorer:
    """Bytes through each GPU's link in a step. `settings` are gpus, batch, by, and width, vocabulary, depth."""
    start = {control.name: control.default for control in CONTROLS}
    ring, copies = (through(data_parallel({**start, "by": by})[0]) / through(ddp(start)[0]) for by in (RING, COPIES))
    choices = [f"{times:.1f} times" for times in (0.7, ring, copies, 7)]

    def judge(guess: str | None) -> str:
        first = opening(guess, choices[1])
        return (
            f"{first}It's {choices[1]}: NCCL hands the weights from GPU to GPU, so they leave GPU 0 once. Copied to"
            f" each GPU it would be {choices[2]}. Now change the batch: when is it less than DDP's?"
        )

    weights, _, outputs = (nbytes / 2**20 for nbytes in sizes(start))
    text = (
        f"{start['gpus']} GPUs with NCCL, {weights:.1f} MiB of weights, {outputs:.1f} MiB of outputs in a batch. How"
        " many times as many bytes pass through GPU 0 with DataParallel as with DDP?"
    )
    question = Question(text, choices, judge)
    return Explorer("links", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question)
