def safe_add(counter, lock, times):
    for _ in range(times):
        with lock:
            counter[0] = counter.item() + 1
