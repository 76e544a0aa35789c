# symptom: at once
# says: Already the first call is not slower
def calls_until_paid(first_us, eager_us, compiled_us):
    if compiled_us >= eager_us:
        return None
    return 1 + max(0, -(-(first_us - eager_us) // (eager_us - compiled_us)))
