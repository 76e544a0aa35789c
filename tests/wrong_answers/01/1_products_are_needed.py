# symptom: same product
# says: 24 tensor operations in eager mode
def winners():
    return {"a": "script", "b": "equal", "c": "eager", "d": "equal", "e": "eager"}
