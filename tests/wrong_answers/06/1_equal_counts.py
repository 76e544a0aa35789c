# symptom: equal counts
# says: which another division reaches
def balance(layer_s: list[float], stages: int) -> list[int]:
    n = len(layer_s)
    return [n * (k + 1) // stages - n * k // stages for k in range(stages)]
