# symptom: type
# says: it must return a dict
def winners():
    return ["script", "equal", "eager", "script", "eager"]
