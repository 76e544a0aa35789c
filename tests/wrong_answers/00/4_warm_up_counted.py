# symptom: warm-up
# says: The warm-up is counted
import statistics
import time
from collections.abc import Callable


def typical_seconds(work: Callable[[], None], wait: Callable[[], None], repeats: int, warm_up: int) -> float:
    seconds = []
    wait()
    for _ in range(warm_up + repeats):
        start = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
