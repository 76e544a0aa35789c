# symptom: too many
# says: Fewer ranks are enough


def ranks_needed(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    if serial_s + split_s <= deadline_s:
        return 1
    if serial_s >= deadline_s:
        return None
    return int(split_s / (deadline_s - serial_s)) + 1
