# symptom: one by one
# says: worker0
def ask_all(workers, function, jobs):
    return [function(job) for job in jobs]
