# symptom: no rank
# says: You asked for 0 ranks
import math


def ranks_needed(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    if serial_s > deadline_s or (serial_s == deadline_s and split_s > 0):
        return None
    return math.ceil(split_s / (deadline_s - serial_s)) if split_s else 0
