# symptom: calls
# says: times (repeats=5, warm_up=3)
import statistics
import time
from collections.abc import Callable


def typical_seconds(work: Callable[[], None], wait: Callable[[], None], repeats: int, warm_up: int) -> float:
    seconds = []
    wait()
    for i in range(repeats):
        start = time.perf_counter()
        work()
        wait()
        if i >= warm_up:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
