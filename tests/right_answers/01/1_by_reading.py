def winners():
    return {"a": "script", "b": "equal", "c": "eager", "d": "script", "e": "eager"}
