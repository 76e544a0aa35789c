def serial_and_split(n1: int, t1: float, n2: int, t2: float) -> tuple[float, float]:
    # n t = n serial + split: on n ranks the serial part is paid n times
    serial_s = min(max((n2 * t2 - n1 * t1) / (n2 - n1), 0.0), t1)
    return serial_s, (t1 - serial_s) * n1
