from torch import Tensor, nn


def size(t: Tensor) -> int:
    return t.numel() * t.element_size()


def first_device_bytes(model: nn.Module, x: Tensor, output: Tensor, n: int) -> tuple[int, int]:
    sent = received = 0
    for part, result in list(zip(x.chunk(n), output.chunk(n)))[1:]:  # every device but the first
        sent += size(part) + size(result)
        received += size(result)
        for tensor in [*model.parameters(), *model.buffers()]:
            sent += size(tensor)
            received += size(tensor) if tensor.requires_grad else 0
    return sent, received
