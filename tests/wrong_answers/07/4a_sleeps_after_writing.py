# symptom: too few lost
# says: were lost
import time


def racing_add(counter, times):
    for _ in range(times):
        counter[0] = counter.item() + 1
        time.sleep(0.001)
