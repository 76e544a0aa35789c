import torch


def numbers():
    return {
        "digits": [3 + 2.0**-9, 3.0],
        "large": [2.0**127, float("inf")],
        "small": [-(2.0**-100), -0.0],
        "few digits": [129 * 2.0**-30, 128 * 2.0**-30],
        "whole": [257.0, 256.0],
    }


def frozen_from(step, dtype):
    w = 2.0**15 if dtype == torch.float16 else 2.0**60
    while torch.tensor(w / 2).to(dtype) + step == torch.tensor(w / 2).to(dtype):
        w /= 2
    return torch.tensor(w)
