def ranks_needed(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    if deadline_s < serial_s or (deadline_s == serial_s and split_s > 0):
        return None
    n = 1
    while serial_s + split_s / n > deadline_s:
        n += 1
    return n
