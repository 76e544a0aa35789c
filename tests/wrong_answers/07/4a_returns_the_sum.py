# symptom: wrong alone
# says: the counter says 0
def racing_add(counter, times):
    value = counter.item()
    for _ in range(times):
        value += 1
    return value
