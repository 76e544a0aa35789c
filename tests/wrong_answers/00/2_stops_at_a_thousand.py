# symptom: given up
# says: you say that it cannot


def ranks_needed(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    for n in range(1, 1001):
        if serial_s + split_s / n <= deadline_s:
            return n
    return None
