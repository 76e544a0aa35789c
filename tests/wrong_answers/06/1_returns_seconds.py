# symptom: type
# says: must return a list of int
def balance(layer_s: list[float], stages: int) -> list[int]:
    """How many layers each stage gets, so that the slowest stage takes as little time as possible.

    layer_s  seconds of each layer, forward and backward, in the order of the model; at least `stages` of them, all above 0
    stages   at least 1

    Returns `stages` numbers, each at least 1, which add up to len(layer_s): the first stage takes that many layers from the
    front, and so on. Where several divisions are best, any of them.
    """
    n = len(layer_s)
    sums = [0.0]
    for seconds in layer_s:
        sums.append(sums[-1] + seconds)
    # best[i]: (slowest stage, counts) for the first i layers on as many stages as rounds have passed
    best: list[tuple[float, list[int]]] = [(0.0, [])] + [(float("inf"), [])] * n
    for _ in range(stages):
        rows = [(float("inf"), [])]
        for i in range(1, n + 1):
            slowest, cut = min((max(best[j][0], sums[i] - sums[j]), j) for j in range(i))
            rows.append((slowest, [*best[cut][1], i - cut]))
        best = rows
    return [float(c) for c in best[n][1]]
