# symptom: type
# says: two numbers
def speed_up(products_s: float, rest_s: float, weights: float, compute_ratio: float, memory_Bps: float) -> tuple[float, float]:
    """How many times as fast a step becomes: (low end, high end).

    weights        how many there are
    compute_ratio  the rate of 16-bit products over that of float32; it may be below 2, and below 1
    memory_Bps     bytes a second, read and written together
    """
    casts_s = 12 * weights / memory_Bps
    before_s = products_s + rest_s
    ends = sorted(before_s / (products_s / ratio + rest_s + casts_s) for ratio in (2.0, compute_ratio))
    return (ends[0] * ends[1]) ** 0.5
