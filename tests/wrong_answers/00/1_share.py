# symptom: share
# says: is the part's share of a step
import statistics


def read_profile(times: dict[str, list[float]], warm_up: int) -> tuple[str, float]:
    typical = {part: statistics.median(seconds[warm_up:]) for part, seconds in times.items()}
    longest = max(typical, key=typical.get)
    total = sum(typical.values())
    return longest, typical[longest] / total
