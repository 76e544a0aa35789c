# symptom: not the best
# says: The slowest stage takes
from itertools import accumulate


def balance(layer_s: list[float], stages: int) -> list[int]:
    n, sums = len(layer_s), list(accumulate(layer_s))
    cuts = [0]
    for k in range(1, stages):
        goal = sums[-1] * k / stages
        nearest = min(range(cuts[-1] + 1, n - (stages - k) + 1), key=lambda i: abs(sums[i - 1] - goal))
        cuts.append(nearest)
    cuts.append(n)
    return [b - a for a, b in zip(cuts, cuts[1:], strict=False)]
