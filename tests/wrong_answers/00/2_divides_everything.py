# symptom: all divided
# says: The serial part was divided as well
import math


def ranks_needed(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    return math.ceil((serial_s + split_s) / deadline_s)
