import torch
from torch import Tensor, nn


def mixed_forward(model: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    autocast = torch.autocast("cpu", dtype=dtype)
    with autocast:
        h = model.features(x)
    e = model.energy(h.to(torch.float32))
    with torch.autocast("cpu", dtype=dtype):
        both = torch.cat([h.float(), e], dim=-1)
        return model.head(both).float()
