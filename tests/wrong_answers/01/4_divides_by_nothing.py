# symptom: raised ZeroDivisionError
# says: counting calls for first 1001 µs, eager 1000 µs, compiled 1000 µs
def calls_until_paid(first_us, eager_us, compiled_us):
    if first_us <= eager_us:
        return 1
    return 1 + -(-(first_us - eager_us) // (eager_us - compiled_us))
