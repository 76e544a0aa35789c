# symptom: no gradient
# says: finite gradient
import torch
from torch import Tensor, nn


def mixed_forward(model: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The output [n, 4] of the model, float32.

    x      float32 [n, 8]
    dtype  torch.float16 or torch.bfloat16

    `features` and `head` run under autocast in `dtype`. `energy` is given float32, and computes in float32 throughout. The weights of
    the model stay as they are, and all of them get a gradient when the caller goes backward from the output.
    """
    with torch.no_grad(), torch.autocast(x.device.type, dtype=dtype):
        h = model.features(x)
        with torch.autocast(x.device.type, enabled=False):
            e = model.energy(h.float())
        out = model.head(torch.cat([h, e], dim=-1))
    return out.float()
