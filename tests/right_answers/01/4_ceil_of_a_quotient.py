import math


def calls_until_paid(first_us, eager_us, compiled_us):
    if first_us <= eager_us:
        return 1
    if compiled_us >= eager_us:
        return None
    return math.ceil((first_us - compiled_us) / (eager_us - compiled_us))
