# symptom: deadlock
# says: never gave it back
def safe_add(counter, lock, times):
    for _ in range(times):
        lock.acquire()
        counter[0] = counter.item() + 1
