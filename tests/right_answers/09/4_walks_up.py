def done_again(step: int, every: int) -> int:
    last_save = step // every * every
    return step - last_save


def save_every(step_s: float, save_s: float, failure_s: float) -> int:
    n = 1
    # one step more pays as long as n (n + 1) steps of work are less than 2 save_s failure_s
    while n * (n + 1) * step_s**2 < 2 * save_s * failure_s:
        n += 1
    return n
