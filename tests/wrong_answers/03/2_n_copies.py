# symptom: own share
# says: another number of bytes
from torch import Tensor, nn


def first_device_bytes(model: nn.Module, x: Tensor, output: Tensor, n: int) -> tuple[int, int]:
    chunks = x.chunk(n)
    others = len(chunks) if n > 1 else 0
    away = len(x) - len(chunks[0])
    inputs, outputs = away * x[0].nbytes, away * output[0].nbytes
    weights = sum(p.nbytes for p in model.parameters())
    buffers = sum(b.nbytes for b in model.buffers())
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return others * (weights + buffers) + inputs + outputs, others * gradients + outputs
