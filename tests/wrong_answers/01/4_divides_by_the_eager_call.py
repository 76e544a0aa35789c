# symptom: wrong count
# says: not the smallest that is enough
def calls_until_paid(first_us, eager_us, compiled_us):
    if first_us <= eager_us:
        return 1
    if compiled_us >= eager_us:
        return None
    return -(-first_us // eager_us)
