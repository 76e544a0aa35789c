# symptom: endless
# says: did not come to its end
def calls_until_paid(first_us, eager_us, compiled_us):
    n = 1
    while first_us + (n - 1) * compiled_us > n * eager_us:
        n += 1
    return n
