# symptom: not the best
# says: The slowest stage takes
def balance(layer_s: list[float], stages: int) -> list[int]:
    mean = sum(layer_s) / stages
    counts, used, n = [], 0.0, 0
    for i, seconds in enumerate(layer_s):
        still = len(layer_s) - i
        if n and len(counts) < stages - 1 and (used + seconds > mean or still <= stages - 1 - len(counts)):
            counts.append(n)
            used, n = 0.0, 0
        used += seconds
        n += 1
    return [*counts, n]
