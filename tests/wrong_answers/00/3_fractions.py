# symptom: fractions
# says: not seconds
def serial_and_split(n1: int, t1: float, n2: int, t2: float) -> tuple[float, float]:
    split_s = max(0.0, (t1 - t2) / (1 / n1 - 1 / n2))
    serial_s = max(0.0, t1 - split_s / n1)
    return serial_s / (serial_s + split_s), split_s / (serial_s + split_s)
