# symptom: warm-up
# says: steps of warm-up are counted
import statistics


def read_profile(times: dict[str, list[float]], warm_up: int) -> tuple[str, float]:
    typical = {part: statistics.fmean(seconds) for part, seconds in times.items()}
    longest = max(typical, key=typical.get)
    total = sum(typical.values())
    return longest, total / (total - typical[longest])
