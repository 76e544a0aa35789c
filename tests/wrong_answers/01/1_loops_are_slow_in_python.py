# symptom: integers
# says: Function e: you predict 'script'
def winners():
    return {"a": "script", "b": "equal", "c": "eager", "d": "script", "e": "script"}
