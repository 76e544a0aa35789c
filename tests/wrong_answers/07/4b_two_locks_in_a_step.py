# symptom: lost
# says: took the lock 50 times
def safe_add(counter, lock, times):
    for _ in range(times):
        with lock:
            value = counter.item()
        with lock:
            counter[0] = value + 1
