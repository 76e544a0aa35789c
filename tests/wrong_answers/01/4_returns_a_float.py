# symptom: type
# says: it must return an int, or None
def calls_until_paid(first_us, eager_us, compiled_us):
    return (first_us - compiled_us) / (eager_us - compiled_us)
