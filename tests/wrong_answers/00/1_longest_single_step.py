# symptom: other part
# says: Another part takes longer
import statistics


def read_profile(times: dict[str, list[float]], warm_up: int) -> tuple[str, float]:
    typical = {part: statistics.median(seconds[warm_up:]) for part, seconds in times.items()}
    longest = max(times, key=lambda part: max(times[part][warm_up:]))
    total = sum(typical.values())
    return longest, total / (total - typical[longest])
