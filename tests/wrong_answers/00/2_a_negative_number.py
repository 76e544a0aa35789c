# symptom: impossible
# says: No number of ranks is enough
import math


def ranks_needed(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    if deadline_s == serial_s:
        return 1 if split_s == 0 else None
    return max(1, math.ceil(split_s / (deadline_s - serial_s)))
