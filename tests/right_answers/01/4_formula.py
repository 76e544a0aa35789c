def calls_until_paid(first_us: int, eager_us: int, compiled_us: int) -> int | None:
    if first_us <= eager_us:
        return 1
    if compiled_us >= eager_us:
        return None
    return 1 + -(-(first_us - eager_us) // (eager_us - compiled_us))
