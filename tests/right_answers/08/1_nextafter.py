import torch


def back(x, dtype):
    return torch.tensor(x).to(dtype).float().item()


def numbers():
    chosen = {"digits": 0.5009765625, "large": 65536.0, "small": 2.0**-25, "few digits": 3 * 2.0**-25, "whole": 257.0}
    others = {"digits": torch.bfloat16, "whole": torch.bfloat16}
    return {k: (x, back(x, others.get(k, torch.float16))) for k, x in chosen.items()}


def frozen_from(step, dtype):
    for power in range(-60, 60):
        w = torch.tensor(2.0**power, dtype=dtype)
        if w > 0 and torch.isfinite(w) and (w + torch.tensor(step, dtype=dtype)) == w:
            return float(w)
