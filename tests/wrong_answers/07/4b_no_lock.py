# symptom: no lock
# says: not taken once
def safe_add(counter, lock, times):
    for _ in range(times):
        counter[0] = counter.item() + 1
