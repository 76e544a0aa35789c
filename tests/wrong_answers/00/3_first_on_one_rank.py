# symptom: first on one
# says: for one on a single rank
def serial_and_split(n1: int, t1: float, n2: int, t2: float) -> tuple[float, float]:
    speedup = t1 / t2
    serial = min(max((1 / speedup - 1 / n2) / (1 - 1 / n2), 0.0), 1.0)
    return serial * t1, (1 - serial) * t1
