import time
from collections.abc import Callable


def typical_seconds(work: Callable[[], None], wait: Callable[[], None], repeats: int, warm_up: int) -> float:
    for _ in range(warm_up):
        work()
        wait()
    wait()
    seconds = []
    last = time.monotonic()
    for _ in range(repeats):
        work()
        wait()
        now = time.monotonic()
        seconds.append(now - last)
        last = now
    seconds.sort()
    return (seconds[(len(seconds) - 1) // 2] + seconds[len(seconds) // 2]) / 2
