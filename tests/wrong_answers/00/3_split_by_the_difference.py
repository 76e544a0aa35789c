# symptom: wrong parts
# says: do not explain the two runs
def serial_and_split(n1: int, t1: float, n2: int, t2: float) -> tuple[float, float]:
    split_s = t1 - t2
    return t1 - split_s, split_s
