# symptom: off by one
# says: after 999 calls
def calls_until_paid(first_us, eager_us, compiled_us):
    if first_us <= eager_us:
        return 1
    if compiled_us >= eager_us:
        return None
    return 1 + (first_us - eager_us) // (eager_us - compiled_us)
