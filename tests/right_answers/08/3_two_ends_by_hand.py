def speed_up(products_s: float, rest_s: float, weights: float, compute_ratio: float, memory_Bps: float) -> tuple[float, float]:
    forward_s, backward_s = weights * (4 + 2) / memory_Bps, weights * (2 + 4) / memory_Bps
    waits = products_s / 2 + rest_s + forward_s + backward_s
    computes = waits - products_s / 2 + products_s / compute_ratio
    slow, fast = max(waits, computes), min(waits, computes)
    return (products_s + rest_s) / slow, (products_s + rest_s) / fast
