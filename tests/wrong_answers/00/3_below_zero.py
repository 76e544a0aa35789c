# symptom: below zero
# says: A part of a time is below zero
def serial_and_split(n1: int, t1: float, n2: int, t2: float) -> tuple[float, float]:
    split_s = (t1 - t2) / (1 / n1 - 1 / n2)
    return t1 - split_s / n1, split_s
