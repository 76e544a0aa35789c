# symptom: not after
# says: The clock was stopped while the device still worked
import time
from collections.abc import Callable


def typical_seconds(work: Callable[[], None], wait: Callable[[], None], repeats: int, warm_up: int) -> float:
    for _ in range(warm_up):
        work()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    wait()
    return (time.perf_counter() - start) / repeats
