import time


def racing_add(counter, times):
    for _ in range(times):
        value = counter.item()
        time.sleep(0.001)
        counter[0] = value + 1
