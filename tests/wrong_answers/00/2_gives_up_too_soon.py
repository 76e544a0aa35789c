# symptom: possible
# says: you say that it cannot
import math


def ranks_needed(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    if serial_s >= deadline_s:
        return None
    return max(1, math.ceil(split_s / (deadline_s - serial_s)))
