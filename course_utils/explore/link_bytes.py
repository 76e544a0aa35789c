"""What each GPU sends and receives in a training step: nn.DataParallel in one process, and DDP."""

from __future__ import annotations

from collections.abc import Mapping

from .. import predict
from .explorer import Values

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
