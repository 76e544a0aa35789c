# symptom: max
# says: It is the longest call
import time
from collections.abc import Callable


def typical_seconds(work: Callable[[], None], wait: Callable[[], None], repeats: int, warm_up: int) -> float:
    for _ in range(warm_up):
        work()
    wait()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - start)
    return max(seconds)
