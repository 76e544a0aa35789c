def calls_until_paid(first_us, eager_us, compiled_us):
    n, eager, compiled = 1, eager_us, first_us
    while compiled > eager:
        if compiled_us >= eager_us:
            return None
        n, eager, compiled = n + 1, eager + eager_us, compiled + compiled_us
    return n
