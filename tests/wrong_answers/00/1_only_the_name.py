# symptom: type
# says: it must return the two things
import statistics


def read_profile(times: dict[str, list[float]], warm_up: int) -> tuple[str, float]:
    typical = {part: statistics.median(seconds[warm_up:]) for part, seconds in times.items()}
    longest = max(typical, key=typical.get)
    return longest
