# symptom: lost
# says: and the counter says
def safe_add(counter, lock, times):
    for _ in range(times):
        value = counter.item()
        with lock:
            counter[0] = value + 1
