import torch


def program(curve: list[float]) -> str:
    numbers = torch.tensor(curve, dtype=torch.float64)
    forward, backward = numbers.tensor_split([len(curve) // 3])
    begins = backward.view(-1, 2)[:, 0].flip(0)
    if (forward.diff() == 0).all():
        return "one around all"
    added = (begins - forward).count_nonzero().item()
    return {0: "plain", len(forward): "each block"}.get(added, "every second block")
