# symptom: swapped
# says: in the wrong order
def serial_and_split(n1: int, t1: float, n2: int, t2: float) -> tuple[float, float]:
    split_s = (t1 - t2) / (1 / n1 - 1 / n2)
    serial_s = t1 - split_s / n1
    if split_s < 0:
        return 0.0, t1
    if serial_s < 0:
        return n1 * t1, 0.0
    return split_s, serial_s
