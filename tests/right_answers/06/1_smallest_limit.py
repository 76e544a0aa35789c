def balance(layer_s: list[float], stages: int) -> list[int]:
    def fill(limit: float) -> list[int]:
        """Stages filled from the front as far as the limit allows, leaving a layer for each stage that comes."""
        counts, i = [], 0
        for left in range(stages - 1, -1, -1):
            n, used = 0, 0.0
            while i < len(layer_s) - left and (n == 0 or used + layer_s[i] <= limit + 1e-12):
                used += layer_s[i]
                n, i = n + 1, i + 1
            counts.append(n)
        return counts if i == len(layer_s) and all(part <= limit + 1e-9 for part in times(counts)) else []

    def times(counts: list[int]) -> list[float]:
        ends = [sum(counts[: k + 1]) for k in range(len(counts))]
        return [sum(layer_s[end - n : end]) for n, end in zip(counts, ends, strict=False)]

    low, high = max(layer_s), sum(layer_s)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if fill(middle) else (middle, high)
    return fill(high)
