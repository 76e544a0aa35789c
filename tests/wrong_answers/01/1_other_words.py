# symptom: type
# says: a prediction is 'script', 'eager' or 'equal'
def winners():
    return {"a": "yes", "b": "no", "c": "no", "d": "yes", "e": "no"}
