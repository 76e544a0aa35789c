# symptom: dead code
# says: Function a: you predict 'equal'
def winners():
    return {"a": "equal", "b": "equal", "c": "eager", "d": "script", "e": "eager"}
