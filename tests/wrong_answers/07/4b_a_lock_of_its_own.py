# symptom: no lock
# says: not taken once
import threading


def safe_add(counter, lock, times):
    lock = threading.Lock()
    for _ in range(times):
        with lock:
            counter[0] = counter.item() + 1
