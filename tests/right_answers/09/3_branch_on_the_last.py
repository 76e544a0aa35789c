def choose(kept_bytes: list[int], input_bytes: list[int], forward_s: list[float], limit_bytes: int) -> list[int] | None:
    """For each block that may be the largest recomputed one, a table over bytes."""
    n = len(kept_bytes)
    plans = [(0.0, [])] if sum(kept_bytes) <= limit_bytes else []
    for largest in range(n):
        room = limit_bytes - kept_bytes[largest]
        table = {0: (0.0, [])}
        for i in range(n):
            grown = {}
            for held, (seconds, chosen) in table.items():
                options = [(held + kept_bytes[i], seconds, chosen)] if i != largest else []
                if kept_bytes[i] <= kept_bytes[largest]:
                    options.append((held + input_bytes[i], seconds + forward_s[i], [*chosen, i]))
                for h, s, c in options:
                    if h <= room and (h not in grown or s < grown[h][0]):
                        grown[h] = (s, c)
            table = grown
        plans += table.values()
    return min(plans)[1] if plans else None
