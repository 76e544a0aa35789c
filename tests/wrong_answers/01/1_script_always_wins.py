# symptom: long operations
# says: 12 in the optimised graph
def winners():
    return {"a": "script", "b": "script", "c": "script", "d": "script", "e": "script"}
