# symptom: wrong alone
# says: alone nothing is lost
def racing_add(counter, times):
    for _ in range(times):
        counter = counter + 1
