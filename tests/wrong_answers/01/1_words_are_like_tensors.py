# symptom: words
# says: Function c: you predict 'script'
def winners():
    return {"a": "script", "b": "equal", "c": "script", "d": "script", "e": "eager"}
