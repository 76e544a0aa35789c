# symptom: wrong alone
# says: the counter says 13
import time


def racing_add(counter, times):
    for i in range(times):
        value = counter.item()
        time.sleep(0.001)
        counter[0] = value + (i % 2 == 0)
