# symptom: empty
# says: has no layer
def balance(layer_s: list[float], stages: int) -> list[int]:
    limit = max(max(layer_s), sum(layer_s) / stages)
    while True:
        counts, used, n = [], 0.0, 0
        for seconds in layer_s:
            if used + seconds > limit + 1e-9:
                counts.append(n)
                used, n = 0.0, 0
            used += seconds
            n += 1
        counts.append(n)
        if len(counts) <= stages:
            return counts + [0] * (stages - len(counts))
        limit += 0.1
