from functools import cache


def balance(layer_s: list[float], stages: int) -> list[int]:
    @cache
    def best(first: int, left: int) -> tuple[float, tuple[int, ...]]:
        """The layers from `first` on, on `left` stages."""
        rest = len(layer_s) - first
        if left == 1:
            return sum(layer_s[first:]), (rest,)
        found = []
        for n in range(1, rest - left + 2):
            later, counts = best(first + n, left - 1)
            found.append((max(sum(layer_s[first : first + n]), later), (n, *counts)))
        return min(found)

    return list(best(0, stages)[1])
