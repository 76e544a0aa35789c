def safe_add(counter, lock, times):
    for _ in range(times):
        lock.acquire()
        try:
            counter += 1
        finally:
            lock.release()
