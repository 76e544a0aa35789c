# symptom: raised ZeroDivisionError
# says: division by zero
import math


def ranks_needed(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    return max(1, math.ceil(split_s / (deadline_s - serial_s)))
