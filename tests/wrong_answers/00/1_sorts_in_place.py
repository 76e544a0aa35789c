# symptom: changed
# says: lists that it was given have changed
def read_profile(times: dict[str, list[float]], warm_up: int) -> tuple[str, float]:
    typical = {}
    for part, seconds in times.items():
        del seconds[:warm_up]
        seconds.sort()
        half = len(seconds) // 2
        typical[part] = seconds[half] if len(seconds) % 2 else (seconds[half - 1] + seconds[half]) / 2
    longest = max(typical, key=typical.get)
    total = sum(typical.values())
    return longest, total / (total - typical[longest])
