# symptom: endless
# says: did not come to its end
def ranks_needed(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    n = 1
    while serial_s + split_s / n > deadline_s:
        n += 1
    return n
