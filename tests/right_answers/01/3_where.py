import torch


def clipped(x):
    y = 3 * x.sin()
    norm = y.square().sum().sqrt()
    return torch.where(norm > 2.0, y * (2.0 / norm), y), norm
