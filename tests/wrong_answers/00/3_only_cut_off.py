# symptom: limit
# says: must still explain the run
def serial_and_split(n1: int, t1: float, n2: int, t2: float) -> tuple[float, float]:
    split_s = (t1 - t2) / (1 / n1 - 1 / n2)
    return max(0.0, t1 - split_s / n1), max(0.0, split_s)
