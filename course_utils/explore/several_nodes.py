"""What more nodes bring: nodes, the link between them, gradients and computing, as a step's timeline and a speed-up."""

from __future__ import annotations

import functools
from typing import Any

from .. import predict
from ..emulation.clusters import cluster
from ..figures.canvas import GREY, ORANGE, RUST
from ..show.units import counted, readable
from .controls import Control
from .drawing import Drawing, View
from .explorer import Explorer, Found, Question, Values, opening
from .parts import LogPlot, timeline
from .scaling_laws import times

PER_NODE, DEVICE, MOST = 8, "H100", 128
WORDS_X = 100.0
MESSAGE_S = 14e-6  # a step between nodes: NCCL 2.19, src/graph/tuning.cc, hwLat of its network
LINKS = {  # words, and what `data/clusters.toml` calls it
    "25 Gbit/s Ethernet": "ethernet25",
    "100 Gbit/s Ethernet": "ethernet100",
    "EFA, 4 cards of 100 Gbit/s": "efa400",
    "InfiniBand HDR, 8 cards of 200 Gbit/s": "hdr200",
    "InfiniBand NDR, 8 cards of 400 Gbit/s": "ndr400",
}
NODES = Control("nodes", "nodes", 8, f"machines with {PER_NODE} {DEVICE} each", 1, MOST, base=2)
CONTROLS = (
    NODES,
    Control("link", "link", "ethernet100", "what joins the nodes: all network cards of one", choices=LINKS),
    Control("gradients_mb", "gradients", 102, "bytes that all ranks add up: 4 for each parameter in fp32, so ResNet-50"
            " has 102 MB", 1, 10_000, "MB", base=10, whole=False),
    Control("compute_ms", "computing", 18, "of one GPU in a step, without any message: a third of it is forward",
            1, 1000, "ms", base=10, whole=False),
)  # fmt: skip
LEAVES_OUT = (
    "DDP's buckets: here one sum begins when backward begins, so the real step is a little longer; that a library runs"
    " the parts of a sum at the same time; GPUs that come late, other users of the network, reading data and"
    " checkpoints. Each GPU keeps its batch (weak scaling), and more images may take more epochs to learn the same."
)


@functools.cache
def _links(name: str) -> tuple[predict.Link, predict.Link]:
    """Between the GPUs of a node, and one GPU's part of what joins the nodes."""
    found = cluster({"count": 2 * PER_NODE, "device": DEVICE, "between": name})
    return predict.Link(0.0, found.inside.busbw_Bps), predict.Link(MESSAGE_S, found.between.busbw_Bps / PER_NODE)


def sum_s(values: Values, nodes: int) -> float:
    """Seconds of the sum of all gradients: in each node over NVLink, and between nodes with all of their cards."""
    links = _links(values["link"])
    return predict.hierarchical_all_reduce(nodes, PER_NODE, values["gradients_mb"] * 1e6, links[0], links[1])


def step_s(values: Values, nodes: int) -> float:
    """Seconds of a step: forward, then backward or the sum, whichever takes longer."""
    compute_s = values["compute_ms"] / 1e3
    return max(compute_s, compute_s / 3 + sum_s(values, nodes))


def efficiency(values: Values, nodes: int) -> float:
    """The speed of each GPU, of what it has alone."""
    return values["compute_ms"] / 1e3 / step_s(values, nodes)


def render(values: Values, found: Found, answered: bool = True) -> View:
    """The step's timeline, and below it the speed-up over all numbers of nodes, with a mark at the one chosen."""
    nodes, compute_s = values["nodes"], values["compute_ms"] / 1e3
    gpus, share, total_s = nodes * PER_NODE, efficiency(values, nodes), step_s(values, nodes)
    gain = times(gpus * share)
    drawing = Drawing(420 if answered else 130)
    title = f"{counted(gpus, 'GPU')} are {gain} times as fast as one: an efficiency of {share:.0%}"
    drawing.text(12, 24, title if answered else "Backward or the sum: which takes longer?", 15, bold=True)
    spans = [(0, 0.0, compute_s / 3, "compute", "forward"), (0, compute_s / 3, compute_s, "compute", "backward")]
    if not answered:
        timeline(drawing, 34, spans, "predicted", compute_s)
        return View.of(drawing, "Forward and backward of a step. The sum and the speed-up show after your guess.")
    travels_s = sum_s(values, nodes)
    spans.append((0, compute_s / 3, compute_s / 3 + travels_s, "communication", "sum"))
    if total_s > compute_s:
        spans.append((0, compute_s, total_s, "waiting", "waits"))
    timeline(drawing, 34, spans, "predicted", total_s)
    plot = LogPlot(drawing, 150, 220, (1, MOST), (PER_NODE / 2, PER_NODE * MOST), "nodes", "x")
    plot.line([(1, PER_NODE), (MOST, PER_NODE * MOST)], GREY, 1)
    drawing.text(WORDS_X, 168, "grey: ideal · dashed: predicted speed-up over one GPU", 12)
    counts = [2**power for power in range(MOST.bit_length())]
    plot.line([(k, PER_NODE * k * efficiency(values, k)) for k in counts], ORANGE, 2.4, "7 4")
    plot.mark((nodes, gpus * share), RUST)
    backward_s = compute_s * 2 / 3
    how = "hides behind" if travels_s <= backward_s else "is longer than"
    said = (
        f"On {counted(nodes, 'node')} the sum takes {readable('s', travels_s)} and {how} backward's"
        f" {readable('s', backward_s)}: {gpus} GPUs are {gain} times as fast as one, {share:.0%} of the ideal."
    )
    return View.of(drawing, said)


def nodes(**settings: Any) -> Explorer:
    """What more nodes bring. `settings` are nodes, link, gradients_mb and compute_ms."""
    start = {control.name: control.default for control in CONTROLS}
    few, many = (efficiency(start, k) for k in (2, 64))
    choices = [f"they keep {share:.0%}" for share in (few, many, few * 2 / 64)]

    def judge(guess: str | None) -> str:
        first = opening(guess, choices[1])
        return (
            f"{first}Two nodes keep {few:.0%}, and 64 keep {many:.0%}: each node sends at most twice as much as"
            " with two, however many there are. Now try the other links, and a backward that's longer."
        )

    text = (
        f"ResNet-50 on nodes of {PER_NODE} {DEVICE}, over 100 Gbit/s. Two nodes keep {few:.0%} of each GPU's speed."
        " What do 64 nodes keep?"
    )
    question = Question(text, choices, judge)
    return Explorer("nodes", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question)
