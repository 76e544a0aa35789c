import torch
from torch import Tensor


def underflow(gradients: list[Tensor], scale: float) -> tuple[float, float]:
    zero = infinite = total = 0
    for gradient in gradients:
        half = (gradient * scale).to(torch.float16)
        kept = gradient != 0
        total += int(kept.sum())
        zero += int(((half == 0) & kept).sum())
        infinite += int(torch.isinf(half).sum())
    return zero / total, infinite / total


def largest_scale(gradients: list[Tensor]) -> float:
    def fits(scale: float) -> bool:
        return all(bool((g * scale).half().isfinite().all()) for g in gradients)

    scale = 1.0
    while not fits(scale):
        scale /= 2
    while fits(2 * scale):
        scale *= 2
    return scale
