# symptom: inputs
# says: bytes are held
from itertools import combinations


def choose(kept_bytes: list[int], input_bytes: list[int], forward_s: list[float], limit_bytes: int) -> list[int] | None:
    """The indices of the blocks to recompute, in increasing order, so that the step takes as little more time as possible; None where nothing fits.

    A block that is not recomputed holds kept_bytes, its input included. One that is recomputed holds input_bytes, and takes forward_s more.
    On top comes, during backward, one whole block of those that are recomputed: count the one with the largest kept_bytes. All together is
    at most limit_bytes. Where several choices are best, any of them.
    """
    n = len(kept_bytes)
    best, best_s = None, float("inf")
    for count in range(n + 1):
        for chosen in combinations(range(n), count):
            held = sum(0 if i in chosen else kept_bytes[i] for i in range(n))
            held += max((kept_bytes[i] for i in chosen), default=0)
            more_s = sum(forward_s[i] for i in chosen)
            if held <= limit_bytes and more_s < best_s:
                best, best_s = list(chosen), more_s
    return best
