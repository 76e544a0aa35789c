# symptom: too few lost
# says: were lost
def racing_add(counter, times):
    for _ in range(times):
        counter += 1
