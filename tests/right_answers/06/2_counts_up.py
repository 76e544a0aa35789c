def bubble(spans: list[tuple[int, float, float]]) -> float:
    first, last = min(s[1] for s in spans), max(s[2] for s in spans)
    idle = {}
    for stage, start, end in spans:
        idle[stage] = idle.get(stage, last - first) - (end - start)
    return sum(idle.values()) / len(idle) / (last - first)


def enough_micro_batches(stages: int, most: float) -> int:
    m = 1
    while (stages - 1) / (m + stages - 1) > most:
        m += 1
    return m
