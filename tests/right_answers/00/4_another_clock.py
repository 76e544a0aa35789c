import timeit
from collections.abc import Callable
from datetime import datetime
from statistics import median
from time import monotonic_ns


def typical_seconds(work: Callable[[], None], wait: Callable[[], None], repeats: int, warm_up: int) -> float:
    def timed(clock: Callable[[], float]) -> float:
        wait()
        start = clock()
        work()
        wait()
        return clock() - start

    for _ in range(warm_up):
        timed(lambda: datetime.now().timestamp())
    clocks = [timeit.default_timer, lambda: monotonic_ns() / 1e9, lambda: datetime.now().timestamp()]
    return median(timed(clocks[i % 3]) for i in range(repeats))
