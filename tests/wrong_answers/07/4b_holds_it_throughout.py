# symptom: held
# says: took the lock 1 times
def safe_add(counter, lock, times):
    with lock:
        for _ in range(times):
            counter[0] = counter.item() + 1
